"""Pairs on the driver and pairs on the executors: the same merges, and fewer jobs for the few."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave.engine import limits
from deltaweave.engine.backends import spark as spark_backend
from deltaweave.engine.clauses import CLAUSE, FILE, SOURCE_ROW, TARGET_ROW_ID
from deltaweave.engine.pairs import Pairs, brought_to_driver
from tests.builders import frame, write_table
from tests.support.big_source import keep_pairs_on_executors
from tests.support.spark_jobs import jobs_of

VECTORS = {"delta.enableDeletionVectors": "true"}
SCHEMA = "k INT, v INT"

PAIRS = [
    ("a", 0, 10, 0),
    ("a", 1, 11, -1),  # matched, and left alone by every clause
    ("a", 2, 12, 1),
    ("a", 2, 13, 1),  # matched by two source rows
    ("b", 0, 10, 0),  # its source row matches one in another file too
    ("c d", 7, 14, -1),
    ("b", 4, None, 1),  # without a source row
]


@pytest.fixture
def both(spark: SparkSession) -> tuple[Pairs, Pairs]:
    schema = f"{FILE} STRING, {TARGET_ROW_ID} BIGINT, {SOURCE_ROW} BIGINT, {CLAUSE} INT"
    rows = frame(spark, PAIRS, schema)
    here = brought_to_driver(rows)
    assert here is not None
    assert here.on_driver is not None
    return here, Pairs(rows)


@pytest.mark.parametrize("one_each", [True, False])
def test_pairs_are_counted_alike_wherever_they_are(
    both: tuple[Pairs, Pairs], one_each: bool
) -> None:
    here, there = (pairs.counts_per_file(2, one_each=one_each) for pairs in both)
    names = here.column_names
    assert set(names) == set(there.column_names)
    assert sorted(here.to_pylist(), key=lambda row: row[FILE]) == sorted(
        there.select(names).to_pylist(), key=lambda row: row[FILE]
    )
    if not one_each:
        by_file = {row[FILE]: row for row in here.to_pylist()}
        counts = ("pairs", "matched", "ambiguous", "changed", "clause_0", "clause_1")
        assert [by_file["a"][name] for name in counts] == [4, 3, 1, 2, 1, 1]
        assert [by_file["b"][name] for name in counts] == [1, 1, 0, 2, 1, 1]
        assert [by_file["c d"][name] for name in counts] == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("files", [None, ["a"], ["b", "c d"], []])
def test_pairs_are_chosen_alike_wherever_they_are(
    both: tuple[Pairs, Pairs], files: list[str] | None
) -> None:
    columns = (FILE, TARGET_ROW_ID, CLAUSE)
    here, there = (
        sorted(map(tuple, pairs.changed(*columns, in_files=files).collect())) for pairs in both
    )
    wanted = files if files is not None else ["a", "b", "c d"]
    assert here == there == sorted((f, i, c) for f, i, _, c in PAIRS if c != -1 and f in wanted)
    here, there = (sorted(map(tuple, pairs.matched(SOURCE_ROW).collect())) for pairs in both)
    assert here == there == sorted((row,) for _, _, row, _ in PAIRS if row is not None)


def test_source_rows_in_a_pair_are_counted_once(both: tuple[Pairs, Pairs]) -> None:
    assert [pairs.num_source_rows for pairs in both] == [5, None]


def test_source_rows_of_several_keys_are_distinguished(spark: SparkSession) -> None:
    rows = frame(spark, [(1, "x"), (1, "y"), (1, "x"), (None, "x")], "a INT, b STRING")
    identity = F.struct("a", "b").alias(SOURCE_ROW)
    pairs = brought_to_driver(rows.select(identity, F.lit(0).alias(CLAUSE)))
    assert pairs is not None
    assert pairs.num_source_rows == 3
    assert sorted(map(str, pairs.matched(SOURCE_ROW).collect())) == sorted(
        map(str, rows.select(identity).collect())
    )


def test_too_many_pairs_are_left_where_they_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(5).select(F.col("id").alias(SOURCE_ROW), F.lit(0).alias(CLAUSE))
    monkeypatch.setattr(limits, "MAX_PAIRS_ON_DRIVER", 4)
    assert brought_to_driver(rows) is None
    monkeypatch.setattr(limits, "MAX_PAIRS_ON_DRIVER", 5)
    assert brought_to_driver(rows) is not None


def test_keys_that_arrow_may_change_are_left_where_they_are(spark: SparkSession) -> None:
    times = spark.range(2).select(F.timestamp_seconds("id").alias(SOURCE_ROW))
    assert brought_to_driver(times) is None


STATEMENTS = {
    "an upsert": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "updates alone": "WHEN MATCHED THEN UPDATE SET *",
    "some updates": "WHEN MATCHED AND s.k < 3 THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "other values": "WHEN MATCHED THEN UPDATE SET v = -s.v WHEN NOT MATCHED THEN INSERT *",
    "the target's values": "WHEN MATCHED THEN UPDATE SET v = t.v + s.v",
    "deletes": "WHEN MATCHED AND s.k = 2 THEN DELETE WHEN NOT MATCHED THEN INSERT *",
    "constants for rows without a source row": "WHEN MATCHED THEN UPDATE SET * "
    "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET k = -1, v = -1",
    "some rows without a source row": "WHEN MATCHED THEN UPDATE SET * "
    "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.k > 7 THEN DELETE",
    "some inserts": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED AND s.k > 21 THEN INSERT *",
}
SOURCES = {
    "some match": [(0, 100), (2, 102), (21, 121), (22, 122)],
    "all match": [(0, 100), (2, 102)],
    "one matches two rows": [(0, 100), (7, 107), (21, 121)],  # 7 is in two files
}


def _statements_and_sources() -> Iterator[Any]:
    """Each statement with each source and place; in `make test-slow`, with one of each by turns."""
    for number, (statement, clauses) in enumerate(STATEMENTS.items()):
        for place, (source, rows) in enumerate(SOURCES.items()):
            for on_executors in (False, True):
                is_told = number % len(SOURCES) == place and number % 2 == on_executors
                marks = [] if is_told else [pytest.mark.full_matrix]
                where = "on_executors" if on_executors else "too_many"
                name = f"{statement}-{source}-{where}"
                yield pytest.param(clauses, rows, on_executors, id=name, marks=marks)


@pytest.mark.minutes
@pytest.mark.parametrize(("clauses", "rows", "on_executors"), list(_statements_and_sources()))
def test_merges_are_those_of_built_in_merge_wherever_pairs_are(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clauses: str,
    rows: list[tuple[int, int]],
    on_executors: bool,
) -> None:
    source = str(tmp_path / "source")
    write_table(spark, source, rows, SCHEMA)
    original, target = str(tmp_path / "original"), [(k, k) for k in (0, 1, 2, 3, 7, 7, 8, 9)]
    properties = VECTORS if on_executors else {}
    write_table(spark, original, target, SCHEMA, files=2, properties=properties)

    def merged(name: str, merge: Callable[[str], object]) -> tuple[list[tuple[int, int]], object]:
        path = str(tmp_path / name)
        shutil.copytree(original, path)
        counts = merge(
            f"MERGE INTO delta.`{path}` t USING delta.`{source}` s ON t.k = s.k {clauses}"
        )
        return sorted(map(tuple, spark.read.format("delta").load(path).collect())), counts

    def built_in(text: str) -> object:
        row = spark.sql(text).first()
        assert row is not None
        return tuple(row[1:])

    def ours(text: str) -> object:
        counts = deltaweave.merge(spark, text).metrics
        return (
            counts.num_target_rows_updated,
            counts.num_target_rows_deleted,
            counts.num_target_rows_inserted,
        )

    expected = merged("built in", built_in)
    assert merged("on the driver", ours) == expected
    if on_executors:
        keep_pairs_on_executors(monkeypatch)
        assert merged("on the executors", ours) == expected
        return

    # Seen after the job alone: the source is small, and its pairs are not.
    def too_many(*arguments: Any, **options: Any) -> Pairs | None:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "MAX_PAIRS_ON_DRIVER", 1)
            return brought_to_driver(*arguments, **options)

    monkeypatch.setattr(spark_backend, "brought_to_driver", too_many)
    assert merged("too many", ours) == expected


@pytest.mark.minutes
def test_vectors_written_by_the_driver_add_to_those_that_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, source = str(tmp_path / "a b=ü"), str(tmp_path / "source")
    write_table(
        spark,
        path,
        [(k, k) for k in range(100)],
        SCHEMA,
        files=2,
        properties=VECTORS,
        setup=["DELETE FROM {target} WHERE k % 10 = 3"],
    )
    write_table(spark, source, [(k, -k) for k in range(0, 100, 10)], SCHEMA)
    result = deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t USING delta.`{source}` s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET *",
    )
    assert result.strategy == "deletion-vectors"
    assert result.metrics.num_target_deletion_vectors_updated == 2
    expected = {(k, -k if k % 10 == 0 else k) for k in range(100) if k % 10 != 3}
    assert {tuple(row) for row in spark.read.format("delta").load(path).collect()} == expected
    by_delta_rs = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT k, v FROM t")
    read = pa.table(by_delta_rs.read_all()).to_pylist()
    assert {(row["k"], row["v"]) for row in read} == expected


def test_a_small_upsert_takes_four_jobs(spark: SparkSession, tmp_path: Path) -> None:
    path, source = str(tmp_path / "table"), str(tmp_path / "source")
    write_table(spark, path, [(k, k) for k in range(8)], SCHEMA, files=2, properties=VECTORS)
    write_table(spark, source, [(1, 10), (9, 90)], SCHEMA)

    def upsert() -> None:
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING delta.`{source}` s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        )

    # The source's keys, the source's broadcast, the pairs, and the new rows.
    assert jobs_of(spark, "upsert", upsert) == 4


def test_files_that_are_a_dictionary_go_to_spark_by_their_names(both: tuple[Pairs, Pairs]) -> None:
    here, there = both
    assert here.on_driver is not None
    place = here.on_driver.column_names.index(FILE)
    files = here.on_driver[FILE].dictionary_encode()
    numbered = Pairs(here.computed, here.on_driver.set_column(place, FILE, files))
    for wanted in (None, ["b", "c d"]):
        rows = numbered.changed(FILE, TARGET_ROW_ID, CLAUSE, in_files=wanted).collect()
        expected = there.changed(FILE, TARGET_ROW_ID, CLAUSE, in_files=wanted).collect()
        assert sorted(rows) == sorted(expected)
