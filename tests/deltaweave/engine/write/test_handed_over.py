"""Sources that the query computes that hands them to the driver, before they are measured."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave import Table
from deltaweave.delta.scan import keeps_lengths
from deltaweave.engine import limits
from deltaweave.engine.phases import telling
from deltaweave.engine.source import prepared
from deltaweave.engine.write.driver_choice import ON_DRIVER
from tests.builders import Rows, frame, write_table
from tests.on_driver import rows_of
from tests.oracles import configured, newest_version
from tests.spark_jobs import jobs_of

pytestmark = pytest.mark.usefixtures("switched_on")

SCHEMA = "k INT, v INT"


def read_as(spark: SparkSession, path: Path, rows: Rows) -> DataFrame:
    """The rows as files, which a merge materializes, since they may change."""
    frame(spark, rows, SCHEMA).coalesce(1).write.parquet(str(path))
    return spark.read.schema(SCHEMA).parquet(str(path))


# What leaves the merge to Spark after the driver has the rows, and the jobs of the source: the one
# that hands it over, and others.
@pytest.mark.parametrize(
    "limit", [None, "MAX_ROWS_HANDED_OVER", "MAX_ROWS_ON_DRIVER", "MAX_NEW_BYTES_ON_DRIVER"]
)
def test_a_source_of_files_is_computed_once_by_the_job_that_hands_it_over(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    limit: str | None,
) -> None:
    path, calls = str(tmp_path / "table"), tmp_path / "calls"
    write_table(spark, path, [(k, 0) for k in range(8)], SCHEMA, files=4)

    def noted(k: int) -> int:
        with calls.open("a", encoding="utf-8") as file:
            file.write(f"{k} ")
        return k

    rows = read_as(spark, tmp_path / "source", [(k, 1) for k in range(6, 10)])
    rows = rows.withColumn("k", F.udf(noted, "INT")("k"))
    table = Table(spark, path)
    merge = table.merge(rows, on="t.k = s.k")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    if limit is not None:
        monkeypatch.setattr(limits, limit, 1)
    told: list[str] = []
    with configured(spark, {ON_DRIVER: "auto"}), telling(told.append):
        jobs = jobs_of(spark, f"computed once {limit}", merge.execute)
    assert calls.read_text(encoding="utf-8").split() == ["6", "7", "8", "9"]
    assert rows_of(table) == [*[(k, 0) for k in range(6)], *[(k, 1) for k in range(6, 10)]]
    assert len(on_driver) == (1 if limit in (None, "MAX_ROWS_HANDED_OVER") else 0)
    assert told.count("MERGE operation - materialize source") == 1
    if limit is None:
        assert jobs == 1


# Whether the rows may come to the driver before they are measured.
OF_SOURCES: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "columns as they are": (lambda rows: rows.where("k > 0").distinct(), True),
    "numbers": (lambda rows: rows.selectExpr("length(text) + k AS k"), True),
    "counts": (lambda rows: rows.groupBy("text").count(), True),
    "made texts": (lambda rows: rows.selectExpr("k", "repeat(text, 1000) AS text"), False),
    "sums of texts": (lambda rows: rows.groupBy("k").agg(F.collect_list("text")), False),
    "texts in a struct": (lambda rows: rows.selectExpr("struct(text) AS s"), False),
    "repeated rows": (lambda rows: rows.selectExpr("text", "explode(sequence(1, k)) AS k"), False),
    "joined rows": (lambda rows: rows.join(rows.selectExpr("k AS j"), F.expr("k > j")), False),
    "what a function makes": (
        lambda rows: rows.select(F.udf(lambda k: "x" * k, "STRING")("k").alias("text")), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SOURCES)
def test_what_may_come_to_the_driver_before_it_is_measured(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    rows_of_source, is_bounded = OF_SOURCES[name]
    frame(spark, [(1, "a"), (2, "b")], "k INT, text STRING").write.parquet(str(tmp_path / "s"))
    rows = spark.read.schema("k INT, text STRING").parquet(str(tmp_path / "s"))
    assert keeps_lengths(rows_of_source(rows)) == is_bounded


@pytest.mark.parametrize("setting", ["cluster", "bytes", "partitions"])
def test_other_sources_are_measured_before_they_come_to_the_driver(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    setting: str,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    if setting == "cluster":
        monkeypatch.setattr(prepared, "_LOCAL_MASTER", re.compile("none"))
    else:
        monkeypatch.setattr(limits, f"MAX_{setting.upper()}_HANDED_OVER", 0)
    rows = read_as(spark, tmp_path / "source", [(2, 21), (3, 31)])
    merge = Table(spark, path).merge(rows, on="t.k = s.k")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    assert jobs_of(spark, f"measured {setting}", merge.execute) == 2
    assert len(on_driver) == 1
    assert rows_of(Table(spark, path)) == [(1, 10), (2, 21), (3, 31)]


@pytest.mark.parametrize("handler", ["of pyspark", "of python"])
def test_an_interrupt_while_the_source_is_evaluated_ends_the_merge(
    spark: SparkSession, tmp_path: Path, handler: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    begun, of_pyspark = tmp_path / "begun", signal.getsignal(signal.SIGINT)

    def slow(k: int) -> int:
        begun.touch()
        time.sleep(0.5)
        return k

    rows = read_as(spark, tmp_path / "source", [(k, 1) for k in range(4)])
    rows = rows.withColumn("k", F.udf(slow, "INT")("k"))

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    if handler == "of python":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        assert of_pyspark is not signal.default_int_handler
    try:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            Table(spark, path).merge(rows, on="t.k = s.k").when_matched_delete().execute()
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, of_pyspark)
    assert newest_version(path) == 0
