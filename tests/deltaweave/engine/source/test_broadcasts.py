"""Joins broadcast a source by its decoded bytes, whatever it takes when compressed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import deltaweave
from deltaweave import Table
from deltaweave.engine import limits
from deltaweave.engine.source import PreparedSource
from tests.builders import write_table

SETTING = "spark.databricks.delta.merge.materializeSource"
ON_DRIVER = "spark.deltaweave.merge.onDriver"
ROWS, TEXT = 2_000, 1_000  # 2 MB decoded, which a thousandth of it stores


@pytest.fixture(autouse=True)
def _settings_are_as_before(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in (SETTING, ON_DRIVER)}
    yield
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


# The ways in which a source is measured: when it is materialized, with its keys, by a job.
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("materialize", "on", "max_bytes", "broadcasts"),
    [
        ("all", "t.k = s.k", 4_000_000, True),
        ("all", "t.k = s.k", 500_000, False),
        ("auto", "t.k = s.k", 500_000, False),
        ("auto", "t.k + 0 = s.k", 500_000, False),
    ],
    ids=["fits", "materialized", "with_keys", "without_keys"],
)
def test_repeated_text_is_broadcast_by_its_decoded_bytes(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    materialize: str,
    on: str,
    max_bytes: int,
    broadcasts: bool,
) -> None:
    target, source = str(tmp_path / "target"), str(tmp_path / "source")
    write_table(spark, target, [(1, "old"), (-1, "kept")], "k INT, v STRING")
    repeated = spark.range(ROWS).selectExpr("int(id) k", f"repeat('x', {TEXT}) v")
    repeated.coalesce(1).write.format("delta").save(source)
    monkeypatch.setattr(limits, "MAX_BROADCAST_SOURCE_BYTES", max_bytes)
    spark.conf.set(SETTING, materialize)
    spark.conf.set(ON_DRIVER, "false")
    plans: list[str] = []
    monkeypatch.setattr(PreparedSource, "for_join", _joined(PreparedSource.for_join, plans))
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{target}` t USING delta.`{source}` s ON {on} "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    )
    assert plans
    assert all(("BroadcastHashJoin" in plan) == broadcasts for plan in plans), plans[0]
    rows = spark.read.format("delta").load(target)
    assert rows.count() == ROWS + 1
    assert rows.where(f"length(v) = {TEXT}").count() == ROWS


@pytest.mark.minutes
def test_a_source_with_values_of_unknown_width_is_not_broadcast(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BROADCAST_SOURCE_BYTES", 4_000)
    spark.conf.set(ON_DRIVER, "false")
    schema = StructType([StructField("k", LongType()), StructField("v", VectorUDT())])

    def rows(first: int) -> DataFrame:
        vectors = [(k, Vectors.dense([float(first)] * 1_000)) for k in (first, first + 1)]
        return spark.createDataFrame(vectors, schema)

    target, plans = str(tmp_path / "target"), list[str]()
    rows(0).write.format("delta").save(target)
    monkeypatch.setattr(PreparedSource, "for_join", _joined(PreparedSource.for_join, plans))
    merge = Table(spark, target).merge(rows(1), on="t.k = s.k")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert plans
    assert not any("Broadcast" in plan for plan in plans), plans[0]
    found = [(row.k, row.v[0]) for row in Table(spark, target).read().collect()]
    assert sorted(found) == [(0, 0.0), (1, 1.0), (2, 1.0)]


@pytest.mark.minutes
def test_a_value_that_fails_in_a_row_that_matches_nothing_is_no_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "source")
    write_table(spark, source, [(5, "x")], "k INT, v STRING")
    spark.conf.set(ON_DRIVER, "false")
    rows = []
    for name, run in (("theirs", spark.sql), ("ours", partial(deltaweave.merge, spark))):
        target = str(tmp_path / name)
        write_table(spark, target, [(1, "old")], "k INT, v STRING")
        run(
            f"MERGE INTO delta.`{target}` t "
            f"USING (SELECT k, CAST(CAST(v AS INT) AS STRING) AS v FROM delta.`{source}`) s "
            "ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v"
        )
        rows.append(sorted(map(tuple, spark.read.format("delta").load(target).collect())))
    assert rows == [[(1, "old")]] * 2


def test_a_source_that_cannot_be_measured_is_not_broadcast(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_table(spark, str(tmp_path / "source"), [(1, "x")], "k INT, v STRING")
    rows = spark.read.format("delta").load(str(tmp_path / "source"))
    failing = rows.selectExpr("k", "CAST(CAST(v AS INT) AS STRING) AS v")
    source = PreparedSource(failing, "t", False, "", gives_same_rows=True)
    assert not source.fits_broadcast
    assert source.width_to_sum is None  # no query measures it again


def _joined(for_join: Any, plans: list[str]) -> Any:
    """Return the rows to join, and keep the plan of a left join with them."""

    def joined(source: PreparedSource) -> DataFrame:
        rows: DataFrame = for_join(source)
        left = rows.sparkSession.range(100_000_000).withColumnRenamed("id", "left")
        query = left.join(rows, left["left"] == rows["k"], "left")
        plans.append(query._jdf.queryExecution().sparkPlan().toString())
        return rows

    return joined
