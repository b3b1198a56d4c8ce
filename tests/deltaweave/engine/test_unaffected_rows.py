"""Source rows for which a merge changes nothing are counted apart from the rows it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeResult, Table
from deltaweave.engine import limits
from deltaweave.engine.backends import spark as spark_backend
from deltaweave.engine.source import prepared as engine_source
from tests.support.spark_jobs import jobs_of

SCHEMA = "k INT, v INT, op STRING"
TARGET = [(1, 10, "t"), (2, 20, "t"), (3, 30, "t")]
SOURCE = [
    (1, 11, "upsert"),  # updated
    (2, 21, "delete"),  # deleted
    (3, 31, "keep"),  # matches, and no clause takes it
    (4, 41, "upsert"),  # inserted
    (5, 51, "delete"),  # matches nothing, and is not inserted
    (6, 61, "keep"),  # nor is this
]
UPSERT_AND_DELETE = """
    WHEN MATCHED AND s.op = 'delete' THEN DELETE
    WHEN MATCHED AND s.op = 'upsert' THEN UPDATE SET *
    WHEN NOT MATCHED AND s.op = 'upsert' THEN INSERT *"""


@contextmanager
def source(spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: str) -> Iterator[None]:
    spark.createDataFrame(rows, schema).createOrReplaceTempView("unaffected_source")
    yield
    spark.catalog.dropTempView("unaffected_source")


def target(spark: SparkSession, path: Path, rows: Sequence[tuple[object, ...]] = TARGET) -> Table:
    table = Table(spark, str(path / "target"))
    table.create_if_missing(SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    if rows:
        spark.createDataFrame(rows, SCHEMA).write.format("delta").mode("append").save(
            table.path_or_name
        )
    return table


def merged(
    table: Table,
    clauses: str,
    *,
    rows: Sequence[tuple[object, ...]] = SOURCE,
    on: str = "t.k = s.k",
    schema: str = SCHEMA,
) -> MergeResult:
    into = f"MERGE INTO delta.`{table.path_or_name}` t USING unaffected_source s"
    with source(table.spark, rows, schema):
        return deltaweave.merge(table.spark, f"{into} ON {on} {clauses}")


def accounted(result: MergeResult) -> tuple[int, int]:
    """The source rows, and how many of them are accounted for."""
    metrics = result.metrics
    unaffected = result.num_source_rows_unaffected
    assert unaffected is not None
    return (
        metrics.num_source_rows,
        metrics.num_target_rows_inserted
        + metrics.num_target_rows_matched_updated
        + metrics.num_target_rows_matched_deleted
        + unaffected,
    )


@pytest.mark.parametrize("on_driver", [True, False])
@pytest.mark.parametrize(
    ("clauses", "on", "unaffected"),
    [
        (UPSERT_AND_DELETE, "t.k = s.k", 3),
        (UPSERT_AND_DELETE, "t.k <=> s.k AND t.op = 't'", 3),
        (UPSERT_AND_DELETE, "t.k >= s.k AND t.k <= s.k", 3),  # keys are not collected
        ("WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *", "t.k = s.k", 0),
        ("WHEN MATCHED AND s.op = 'delete' THEN DELETE", "t.k = s.k", 5),
        (
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.op = 'upsert' THEN INSERT *"
            " WHEN NOT MATCHED AND s.op = 'keep' THEN INSERT (k) VALUES (s.k)",
            "t.k = s.k",
            1,
        ),
        (
            UPSERT_AND_DELETE + " WHEN NOT MATCHED BY SOURCE THEN DELETE",
            "t.k = s.k",
            3,
        ),
    ],
)
def test_every_source_row_is_accounted_for(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clauses: str,
    on: str,
    unaffected: int,
    on_driver: bool,
) -> None:
    if not on_driver:
        monkeypatch.setattr(spark_backend, "brought_to_driver", lambda *_, **__: None)

    result = merged(target(spark, tmp_path), clauses, on=on)

    assert result.num_source_rows_unaffected == unaffected
    assert accounted(result) == (6, 6)


@pytest.mark.minutes
def test_rows_of_a_first_load_and_of_a_big_source_are_accounted_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = target(spark, tmp_path, rows=[])
    first = merged(table, UPSERT_AND_DELETE)
    monkeypatch.setattr(limits, "MAX_COLLECTED_NUMBERS", 1)
    big = merged(table, UPSERT_AND_DELETE)

    # The first one only inserts (1), (4); then both are updated.
    assert (first.num_source_rows_unaffected, accounted(first)) == (4, (6, 6))
    assert (big.num_source_rows_unaffected, accounted(big)) == (4, (6, 6))


def test_source_rows_of_repeated_deletes_are_accounted_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = merged(
        target(spark, tmp_path), "WHEN MATCHED THEN DELETE", rows=[*SOURCE, (1, 12, "again")]
    )
    assert result.metrics.num_target_rows_deleted == 3
    assert accounted(result) == (7, 7)


@pytest.mark.minutes
def test_a_source_row_that_matches_several_rows_is_one_too_many(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = target(spark, tmp_path, rows=[*TARGET, (1, 12, "t")])
    rows, accounted_for = accounted(merged(table, UPSERT_AND_DELETE))
    assert (rows, accounted_for) == (6, 7)
    # Rows that no insert clause would take, too.
    rows, accounted_for = accounted(
        merged(table, UPSERT_AND_DELETE, rows=[(1, 0, "delete"), (9, 0, "delete")])
    )
    assert (rows, accounted_for) == (2, 3)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_condition_of_an_insert_may_fail_for_rows_that_match(
    spark: SparkSession, tmp_path: Path, compiled: bool, request: pytest.FixtureRequest
) -> None:
    # Compiled code computes only once what expressions have in common, as 1 / s.v.
    modes = {"wholeStage": "true", "factoryMode": "FALLBACK"} if compiled else {}
    for name, value in modes.items():
        key = f"spark.sql.codegen.{name}"
        request.addfinalizer(partial(spark.conf.set, key, str(spark.conf.get(key))))
        spark.conf.set(key, value)
    clauses = """WHEN MATCHED AND s.op = 'upsert' THEN UPDATE SET *
        WHEN NOT MATCHED AND 1 / s.v > 0 AND s.op = 'upsert' THEN INSERT *
        WHEN NOT MATCHED AND 1 / s.v > 0 AND s.op = 'keep' THEN INSERT *"""
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    rows = [(1, 0, "upsert"), (7, 1, "upsert"), (8, 1, "delete")]

    result = merged(target(spark, tmp_path), clauses, rows=rows)

    assert (result.num_source_rows_unaffected, accounted(result)) == (1, (3, 3))


@pytest.mark.minutes
def test_what_cannot_be_counted_is_not_reported(spark: SparkSession, tmp_path: Path) -> None:
    table = target(spark, tmp_path)
    insert_only = merged(table, "WHEN NOT MATCHED THEN INSERT *")
    assert insert_only.num_source_rows_unaffected is None
    spark.udf.register("is_new", lambda op: op == "upsert", "boolean")
    by_python = merged(
        table,
        "WHEN MATCHED AND s.op = 'x' THEN DELETE WHEN NOT MATCHED AND is_new(s.op) THEN INSERT *",
    )
    assert by_python.num_source_rows_unaffected is None


def test_a_lost_row_is_not_accounted_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaweave.engine.strategies import rows

    real = rows.rows_after_scan

    def losing(*arguments: object) -> DataFrame:
        rows: DataFrame = real(*arguments)  # type: ignore[arg-type]
        return rows.where("k <> 4")

    monkeypatch.setattr(rows, "rows_after_scan", losing)
    rows, accounted_for = accounted(merged(target(spark, tmp_path), UPSERT_AND_DELETE))
    assert (rows, accounted_for) == (6, 5)


@pytest.mark.minutes
def test_counting_them_takes_no_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[MergeResult] = []

    def jobs(name: str) -> int:
        table = target(spark, tmp_path / name)
        table.version()
        return jobs_of(spark, name, lambda: results.append(merged(table, UPSERT_AND_DELETE)))

    counted = jobs("counted")
    monkeypatch.setattr(engine_source, "insertable", lambda _: None)
    assert counted == jobs("not counted")
    assert [each.num_source_rows_unaffected for each in results] == [3, None]
