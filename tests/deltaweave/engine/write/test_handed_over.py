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

import deltaweave
from deltaweave import Table
from deltaweave.delta.jvm import interrupts_shown
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


# What cuts the rows that come, or leaves the merge to Spark once the driver has them.
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


LONG = "x" * 2_000
OF_TEXT = "k INT, text STRING"

# Sources, ON, clauses, and the jobs until the driver has the rows: one that hands them over, or one
# that hands over what is cut, one that counts, and one for the rows that were measured.
CUT = 3
SOURCES: dict[str, tuple[Callable[[DataFrame], DataFrame], str, int]] = {
    "short texts": (lambda rows: rows, "*", 1),
    "no row": (lambda rows: rows.where("k > 2"), "*", 1),
    "no partition": (lambda rows: rows.where("false"), "*", 1),
    "made texts": (lambda rows: rows.selectExpr("k", "repeat(text, 2000) AS text"), "*", CUT),
    "texts that some rows make": (
        lambda rows: rows.union(rows.selectExpr("k + 10 AS k", "repeat(text, 2000) AS text")),
        "*",
        CUT,
    ),
    "texts that clauses make": (
        lambda rows: rows, "(k, text) VALUES (s.k, repeat('x', 2000))", CUT
    ),
    "binary values": (
        lambda rows: rows.selectExpr("k", "CAST(repeat(text, 2000) AS BINARY) AS text"), "*", CUT
    ),
    "many rows": (
        lambda rows: rows.selectExpr("explode(sequence(1, 20)) AS k", "text"), "*", CUT
    ),
    "a list": (lambda rows: rows.selectExpr("k", "array(text) AS text"), "*", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_rows_that_are_many_or_long_are_measured_before_they_come_to_the_driver(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    name: str,
) -> None:
    monkeypatch.setattr(limits, "MAX_ROWS_HANDED_OVER", 10)
    change, values, jobs = SOURCES[name]
    files = frame(spark, [(1, "a"), (2, None)], OF_TEXT).coalesce(1)
    files.write.parquet(str(tmp_path / "source"))
    source = change(spark.read.schema(OF_TEXT).parquet(str(tmp_path / "source")))
    source.createOrReplaceTempView("handed_over")
    paths = [str(tmp_path / each) for each in ("ours", "theirs")]
    for path in paths:
        source.limit(0).write.format("delta").save(path)
    ours, theirs = (
        f"MERGE INTO delta.`{path}` t USING handed_over s ON t.k = s.k "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT {values}"
        for path in paths
    )
    assert jobs_of(spark, f"measured {name}", lambda: deltaweave.merge(spark, ours)) == jobs
    spark.sql(theirs)
    assert len(on_driver) == 1
    assert rows_of(Table(spark, paths[0])) == rows_of(Table(spark, paths[1]))


# The largest of the partitions has 13 rows. How many rows each may have, and the jobs then.
@pytest.mark.parametrize(("share", "jobs"), [(13, 1), (12, CUT), (0, 2)])
def test_each_partition_has_its_share_of_the_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int, jobs: int
) -> None:
    path, source = str(tmp_path / "table"), tmp_path / "source"
    write_table(spark, path, [(1, 10)], SCHEMA)
    for name, keys in (("a", range(13)), ("b", [13]), ("c", [14])):
        rows = frame(spark, [(k, 1) for k in keys], SCHEMA).coalesce(1)
        rows.write.parquet(str(source / f"part={name}"))
    with configured(spark, {"spark.sql.files.openCostInBytes": str(1 << 40)}):
        rows = spark.read.parquet(str(source)).select("k", "v")
        assert sorted(map(len, rows.rdd.glom().collect())) == [1, 1, 13]
        monkeypatch.setattr(limits, "MAX_ROWS_HANDED_OVER", 3 * share)
        merge = Table(spark, path).merge(rows, on="t.k = s.k")
        merge = merge.when_matched_update_all().when_not_matched_insert_all()
        assert jobs_of(spark, f"a share of {share}", merge.execute) == jobs
    assert sorted(rows_of(Table(spark, path))) == [(k, 1) for k in range(15)]


@pytest.mark.parametrize("setting", ["cluster", "bytes", "columns"])
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


def fail(cause: BaseException | None = None) -> None:
    raise OSError("of the block") from cause


def fail_while_interrupted() -> None:
    try:
        raise KeyboardInterrupt
    finally:
        fail(ValueError("another cause"))


def test_an_interrupt_is_raised_instead_of_the_error_that_took_its_place() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_shown():
        fail_while_interrupted()
    with pytest.raises(OSError, match="of the block"), interrupts_shown():
        fail()


def in_a_circle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize("handled", [KeyboardInterrupt(), in_a_circle()], ids=["one", "circle"])
def test_what_the_caller_handles_is_not_raised_again(handled: BaseException) -> None:
    try:
        raise handled
    except BaseException:
        with pytest.raises(OSError, match="of the block"), interrupts_shown():
            fail()


@pytest.mark.parametrize("setting", ["auto", "false"])
@pytest.mark.parametrize("handler", ["of pyspark", "of python"])
def test_an_interrupt_while_the_source_is_evaluated_ends_the_merge(
    spark: SparkSession, tmp_path: Path, handler: str, setting: str
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
        with configured(spark, {ON_DRIVER: setting}), pytest.raises(KeyboardInterrupt):
            Table(spark, path).merge(rows, on="t.k = s.k").when_matched_delete().execute()
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, of_pyspark)
    assert newest_version(path) == 0
