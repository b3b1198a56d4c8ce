"""Whatever stops a local attempt, Spark does the merge, unless the error is the merge's answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkValueError
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.delta.commit.written_files import OwnFiles
from deltaweave.engine import prune
from deltaweave.engine.attempts import attempted, warnings_noted
from deltaweave.engine.backends.local import eligibility
from deltaweave.engine.backends.local import files as local_files
from deltaweave.engine.backends.local import matches as local_matches
from deltaweave.engine.backends.local import merge as local_merge
from deltaweave.engine.backends.local import partitions as local_partitions
from deltaweave.engine.backends.local import values as local_values
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.engine.source import collected
from deltaweave.engine.strategies import base, copy_in_place
from deltaweave.engine.tasks import NotRewritableError, TableFormat, file_statistics, storage
from tests.builders import frame, write_table
from tests.support.on_driver import rows_of, written_on_driver
from tests.support.oracles import actions, all_files, newest_version
from tests.support.settings import configured

SCHEMA = "k INT, v INT, p STRING"
FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}

# What Python, numpy, pyarrow, py4j and PySpark raise for values that they do not take.
UNEXPECTED: list[Exception] = [
    OverflowError("date value out of range"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ValueError("year 12000 is out of range"),
    KeyError("a column"),
    IndexError("a place"),
    TypeError("of another type"),
    AttributeError("None has no such attribute"),
    AssertionError(),
    RecursionError("too deep"),
    MemoryError(),
    OSError(28, "no space left on device"),
    np.exceptions.AxisError("axis 1 is out of bounds"),
    pa.ArrowInvalid("offset overflow"),
    pa.ArrowNotImplementedError("no such kernel"),
    Py4JError("no such method"),
    PySparkValueError("of PySpark"),
    errors.MergeFailedError("a defect of the local backend"),
    errors.LimitExceededError("too much at once"),
]


class DagsterInterruptError(BaseException):
    """Dagster's interrupts are no `Exception`."""


def cancelled() -> Exception:
    return errors.SourceError("cancelled", error_class="SPARK_JOB_CANCELLED")


ANSWERS: list[BaseException] = [
    errors.AmbiguousMatchError("two rows", table="t", version=0, error_class="A", sql_state=None),
    errors.ConstraintViolationError("broken"),
    errors.CommitConflictError("overtaken"),
    errors.SourceLostError("lost"),
    errors.SourceError("the source's query failed"),
    cancelled(),
    KeyboardInterrupt(),
    SystemExit(1),
    DagsterInterruptError(),
]


def raising(error: BaseException) -> Any:
    def function(*arguments: Any, **named: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_an_unexpected_error_leaves_the_work_to_spark_and_warns(
    spark: SparkSession, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "deltaweave"), warnings_noted() as warnings:
        assert attempted("t", "Spark does it", raising(error)) is None
    [warning] = warnings
    assert warning.startswith("Spark does it: ")
    assert not str(error) or str(error) not in warning  # a message may quote rows
    logged = [each for each in caplog.records if each.name.endswith("attempts")]
    assert [(each.levelname, each.getMessage()) for each in logged] == [
        ("DEBUG", "t: Spark does it"),
        ("WARNING", f"t: {warning}"),
    ]
    assert logged[0].exc_info


def test_files_that_fail_are_one_warning_that_quotes_no_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reasons: dict[str, str | None] = {
        f"{number}.parquet": f"Error{number % 9}: Failed to parse string: 'Jane Doe, {number}'"
        for number in range(5_000)
    }
    with caplog.at_level(logging.DEBUG, "deltaweave"), warnings_noted() as warnings:
        copy_in_place.warn_of_failed_copies("t", {"rewritten.parquet": None} | reasons)
    assert warnings == [
        "Spark rewrites 5000 of 5001 files, the first of them 0.parquet: "
        "Error0, Error1, Error2, Error3, Error4"
    ]
    quoting = [each.levelname for each in caplog.records if "Jane" in each.getMessage()]
    assert quoting == ["DEBUG"] * 5_000


def test_no_file_that_fails_is_no_warning() -> None:
    with warnings_noted() as warnings:
        copy_in_place.warn_of_failed_copies("t", {"rewritten.parquet": None})
    assert not warnings


def test_a_refusal_is_no_warning(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), warnings_noted() as warnings:
        assert attempted("t", "Spark does it", raising(NotRewritableError("too big"))) is None
    assert not warnings
    assert [each.levelname for each in caplog.records] == ["INFO"]


@pytest.mark.parametrize("error", ANSWERS, ids=lambda error: type(error).__name__)
def test_an_error_that_is_the_answer_is_raised(spark: SparkSession, error: BaseException) -> None:
    with warnings_noted() as warnings, pytest.raises(type(error)) as raised:
        attempted("t", "Spark does it", raising(error))
    assert raised.value is error
    assert not warnings


def test_an_interrupt_that_an_error_hides_is_raised(spark: SparkSession) -> None:
    def attempt() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("the stream was closed")

    with pytest.raises(KeyboardInterrupt):
        attempted("t", "Spark does it", attempt)


# Steps of a merge on the driver: where each fails, and after how many calls.
STEPS = {
    "choosing": (eligibility, "compared", 0),
    "reading the source's files": (collected, "rows_of_files", 0),
    "evaluating the source": (collected, "with_broken_values", 0),
    "collecting keys": (collected, "collected_keys", 0),
    "pruning": (prune, "may_match", 0),
    "opening files": (local_matches, "check_copyable", 0),
    "reading keys": (local_matches, "read_keys_of_files", 0),
    "joining": (local_matches, "matching_rows", 0),
    "reading old rows": (local_values, "rows_at", 0),
    "values": (local_values, "values_by_query", 0),
    "partitions": (local_partitions, "partition_text", 0),
    "counting": (local_merge, "touched_files_of_pairs", 0),
    "format": (local_merge, "table_format", 0),
    "first rewritten file": (local_files, "rewrite_rows", 0),
    "second rewritten file": (local_files, "rewrite_rows", 1),
    "first new file": (local_files, "write_file", 0),
    "second new file": (local_files, "write_file", 1),
    "statistics": (file_statistics.FileStatistics, "to_json", 1),
    "change feed": (local_files, "record_changes", 0),
    "deletion vectors": (local_files, "mark_on_driver", 0),
    "log actions": (local_files, "written_without_spark", 0),
}
# The steps of tables without deletion vectors, and those of their own.
OF_VECTORS = {"deletion vectors"}
OF_COPIES = {"first rewritten file", "second rewritten file", "change feed"}


def fail_after(
    patch: pytest.MonkeyPatch, module: Any, name: str, calls: int, error: BaseException
) -> list[str]:
    """Let a function do its work, and raise the error once it was called so often before."""
    function, made = getattr(module, name), list[str]()

    def failing(*arguments: Any, **named: Any) -> Any:
        made.append(name)
        given = function(*arguments, **named)
        if len(made) > calls:
            raise error
        return given

    patch.setattr(module, name, failing)
    return made


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    return str(tmp_path / "table")


def merged(spark: SparkSession, path: str, step: str) -> MergeResult:
    """Update rows of two files, insert into two partitions, delete a row."""
    rows = [(0, 1, "a"), (1, -1, "a"), (2, 1, "b"), (8, 8, "b"), (9, 9, "c")]
    source = frame(spark, rows, SCHEMA)
    if step == "reading the source's files":
        source.write.format("delta").mode("overwrite").save(f"{path}-source")
        source = spark.read.format("delta").load(f"{path}-source")
    merge = Table(spark, path).merge(source, on="t.k = s.k")
    if step in ("reading old rows", "values"):
        merge = merge.when_matched_delete("s.v < t.v").when_matched_update({"v": "t.v + s.v"})
        return merge.when_not_matched_insert_all().execute()
    if step != "reading the source's files":
        merge = merge.when_matched_delete("s.v < 0")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def target(spark: SparkSession, path: str, step: str) -> set[str]:
    """Write two partitions, and return the files."""
    properties = VECTORS if step in OF_VECTORS else FEED
    rows = [(0, 0, "a"), (1, 0, "a"), (2, 0, "b"), (3, 0, "b"), (4, 0, "a")]
    setup = []
    if step == "evaluating the source":
        setup = ["ALTER TABLE {target} ADD CONSTRAINT positive CHECK (v > -9)"]
    write_table(spark, path, rows, SCHEMA, partition_by=["p"], properties=properties, setup=setup)
    return data_files(path)


# Rows after the merge: one is updated, two are as they were, and two are inserted.
REST = [(2, 1, "b"), (3, 0, "b"), (4, 0, "a"), (8, 8, "b"), (9, 9, "c")]


def data_files(path: str) -> set[str]:
    return {file for file in all_files(path) if "_delta_log" not in file and ".crc" not in file}


def files_without_vectors(path: str) -> set[str]:
    """The data files and those of the feed; Delta names deletion vectors, which VACUUM deletes."""
    return {file for file in data_files(path) if not file.endswith(".bin")}


def files_of_log(path: str) -> set[str]:
    """The files that versions of the table name, whether they still hold them or not."""
    named: set[str] = set()
    for version in range(newest_version(path) + 1):
        for action in actions(path, version):
            named |= {each["path"] for kind, each in action.items() if kind in ("add", "cdc")}
    return named


EVERY_DAY_STEPS = {"pruning", "values", "partitions", "second new file", "statistics"}
EACH_STEP = pytest.mark.parametrize(
    "step",
    [
        pytest.param(each, marks=() if each in EVERY_DAY_STEPS else pytest.mark.minutes)
        for each in STEPS
    ],
)


@pytest.mark.minutes
@EACH_STEP
def test_an_interrupt_at_any_step_ends_the_merge_and_a_failure_tries_spark(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before, version = target(spark, path, step), newest_version(path)
    with configured(spark, {ON_DRIVER: "true"}):
        with monkeypatch.context() as patch:
            fail_after(patch, *STEPS[step], DagsterInterruptError())
            with pytest.raises(DagsterInterruptError):
                merged(spark, path, step)
        assert newest_version(path) == version
        assert files_without_vectors(path) == before

        error = UNEXPECTED[list(STEPS).index(step) % len(UNEXPECTED)]
        of_local = written_on_driver(monkeypatch)
        made = fail_after(monkeypatch, *STEPS[step], error)
        result = merged(spark, path, step)
    assert made, "the step was not reached"
    expected = [(0, 1, "a"), (1, -1, "a"), *REST]
    if step != "reading the source's files":  # which has no clause that deletes
        del expected[1]
    assert rows_of(Table(spark, path)) == expected
    goes_on = step in ("reading the source's files", "pruning")
    assert bool(of_local) is goes_on
    assert result.warnings
    assert files_without_vectors(path) == files_of_log(path)
    assert newest_version(path) == 1 + (step == "evaluating the source")


def storage_that(fails_at: str) -> Any:
    """A disk whose method fails after its work; made here, it is sent to tasks by value."""

    class Failing(storage.Disk):
        def opened(self, location: str) -> Any:
            return self.checked("opened", super().opened(location), location)

        @contextmanager
        def created(self, location: str) -> Iterator[str]:
            with super().created(location) as path:
                yield self.checked("created", path, location)

        def size(self, location: str) -> int:
            return int(self.checked("size", super().size(location), location))

        def checked(self, what: str, given: Any, location: str) -> Any:
            import os

            if what == fails_at and "p=a" in location:
                os._exit(9)
            if what == fails_at.removeprefix("raise ") and "p=a" in location:
                raise OverflowError(f"{what} of a file")
            return given

    return Failing()


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("how", "where"),
    [  # the task reports an error, and Spark rewrites this file
        pytest.param("raise", "opened", marks=pytest.mark.minutes),
        ("raise", "created"),
        pytest.param("raise", "size", marks=pytest.mark.minutes),
        # the worker ends, and Spark rewrites all files
        pytest.param("end", "created", marks=pytest.mark.minutes),
        pytest.param("end", "size", marks=pytest.mark.minutes),
    ],
)
def test_a_file_that_a_task_cannot_rewrite_is_rewritten_by_spark(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch, where: str, how: str
) -> None:
    target(spark, path, "in place")
    broken = storage_that(f"raise {where}" if how == "raise" else where)
    monkeypatch.setattr(base, "storage_of", lambda table: broken)
    with configured(spark, {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}):
        result = merged(spark, path, "in place")
    assert rows_of(Table(spark, path)) == [(0, 1, "a"), *REST]
    [warning] = result.warnings
    assert warning.startswith("Spark rewrites")
    assert ("OverflowError" in warning) is (how == "raise")
    assert "of a file" not in warning  # the message
    strays = data_files(path) - files_of_log(path)
    # Spark may have started the other file's task before it ended the job: VACUUM deletes its file.
    assert not strays or (how == "end" and all("p=b" in each for each in strays))


@pytest.mark.minutes
def test_no_directory_is_searched_where_no_task_was_started(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target(spark, path, "in place")
    asked, searched = list[str](), list[object]()

    def refuse(transaction: object, columns: object) -> TableFormat:
        asked.append("format")
        raise NotRewritableError("refused by the test")

    monkeypatch.setattr(copy_in_place, "table_format", refuse)
    monkeypatch.setattr(OwnFiles, "delete_all", lambda *given: searched.append(given))
    with configured(spark, {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}):
        result = merged(spark, path, "in place")
    assert asked
    assert not searched
    assert not result.warnings
    assert rows_of(Table(spark, path)) == [(0, 1, "a"), *REST]


# Values that Python's dates, times and texts do not have, and others at their extremes.
BEYOND_PYTHON = {
    "far": ("DATE", "DATE'+12000-01-01'"),
    "before Christ": ("DATE", "DATE'-0044-03-15'"),
    "year 0": ("DATE", "DATE'0000-02-29'"),
    "no UTF-8": ("STRING", "CAST(X'41FF42' AS STRING)"),
    "half a character": ("STRING", "CAST(X'EDA080' AS STRING)"),
    "control": ("STRING", "'a\\u0001\\n%2F/='"),
    "null's directory": ("STRING", "'__HIVE_DEFAULT_PARTITION__'"),
    "64 bits": ("BIGINT", "9223372036854775807"),
    "far time": ("TIMESTAMP", "TIMESTAMP'+12000-01-01 00:00:00'"),
    "far local time": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'-0044-03-15 00:00:00'"),
    "38 digits": ("DECIMAL(38,10)", "9999999999999999999999999999.9999999999"),
    "not a number": ("DOUBLE", "double('NaN')"),
}
# What Delta makes of texts as partition values, hexadecimal: the log is UTF-8.
IN_THE_LOG = {
    "no UTF-8": "'41EFBFBD42'",
    "half a character": "'EFBFBD'",
    "null's directory": "NULL",
}
PLAIN = {
    "DATE": "DATE'2024-01-01'",
    "STRING": "'a'",
    "BIGINT": "1",
    "DECIMAL(38,10)": "CAST(1 AS DECIMAL(38,10))",
}
WAYS = {
    "driver": {ON_DRIVER: "true"},
    "in place": {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"},
    "spark": {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"},
}
EVERY_DAY = [("far", "partition", "driver"), ("no UTF-8", "partition", "driver")]
# Spark names partitions and writes files itself; tasks in place look no keys up.
PLACES = [
    ("partition", "driver"),
    ("value", "in place"),
    ("partition", "in place"),
    ("key", "driver"),
]


def merges() -> Iterator[Any]:
    """Each value in each place; in `make test-slow` in two of the places by turns."""
    for number, name in enumerate(BEYOND_PYTHON):
        for place, (where, way) in enumerate(PLACES):
            mark = pytest.mark.minutes if place // 2 == number % 2 else pytest.mark.full_matrix
            each = (name, where, way)
            yield pytest.param(*each, marks=[] if each in EVERY_DAY else [mark], id=" ".join(each))


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "where", "way"), list(merges()))
def test_values_that_python_lacks_are_merged(
    spark: SparkSession, path: str, name: str, where: str, way: str
) -> None:
    kind, value = BEYOND_PYTHON[name]
    plain = PLAIN.get(kind, f"CAST('2024-01-01' AS {kind})") if kind != "DOUBLE" else "1D"
    table, partitioned = f"delta.`{path}`", "PARTITIONED BY (x)" if where == "partition" else ""
    spark.sql(f"CREATE TABLE {table} (k INT, x {kind}, v INT) USING delta {partitioned}")
    old = value if where == "key" else plain  # of a row that matches
    spark.sql(f"INSERT INTO {table} VALUES (1, {old}, 1), (2, {plain}, 2)")
    source = f"SELECT 1 AS k, CAST({value} AS {kind}) AS x, 10 AS v UNION ALL SELECT 3, {value}, 30"
    key = "t.x = s.x AND t.k = s.k" if where == "key" else "t.k = s.k"
    merge = f"MERGE INTO {table} t USING ({source}) s ON {key} "
    with configured(spark, WAYS[way]):
        deltaweave.merge(
            spark, merge + "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        # What it wrote is read: the rows of the new partition match.
        deltaweave.merge(spark, merge + "WHEN MATCHED AND s.k = 3 THEN UPDATE SET v = t.v + 1")
    text = "hex({})" if kind == "STRING" else "CAST({} AS STRING)"
    new = text.format(value)
    if where == "partition" and name in IN_THE_LOG:
        new = IN_THE_LOG[name]
    expected = spark.sql(
        f"SELECT 1, {new}, 10 "  # updated, and moved where x names the partition
        f"UNION ALL SELECT 2, {text.format(plain)}, 2 "  # as it was
        f"UNION ALL SELECT 3, {new}, 31"  # inserted, then updated
    )
    found = spark.sql(f"SELECT k, {text.format('x')}, v FROM {table}")
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(
        map(tuple, expected.collect()), key=repr
    )


# Statistics of the file with k = 1, which other writers might leave.
ODD_STATISTICS = {
    "more rows than 64 bits": {"numRecords": 1 << 70},
    "fewer rows than none": {"numRecords": -1},
    "more digits than Python reads": '{"numRecords": ' + "9" * 5000 + "}",
    "nested too deeply": '{"numRecords": ' + "[" * 100_000,
    "no number": '{"numRecords": 1, "minValues": {"k": NaN}, "maxValues": {"k": Infinity}}',
    "bounds beyond 64 bits": {
        "numRecords": 1,
        "minValues": {"k": -(1 << 99)},
        "maxValues": {"k": 1 << 99},
    },
    "half a character": {
        "numRecords": 1,
        "minValues": {"p": "a"},
        "maxValues": {"p": "b\ud800"},
    },
}


def odd_statistics() -> Iterator[Any]:
    """Each of them on the driver and by Spark; in `make test-slow` in one way by turns."""
    for number, name in enumerate(ODD_STATISTICS):
        for place, way in enumerate(("driver", "spark")):
            mark = pytest.mark.minutes if number % 2 == place else pytest.mark.full_matrix
            yield pytest.param(name, way, marks=[mark] if number or place else [])


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "way"), list(odd_statistics()))
def test_statistics_that_are_no_numbers_hide_no_row(
    spark: SparkSession, path: str, name: str, way: str
) -> None:
    write_table(spark, path, [(1, 1, "a"), (9, 9, "z")], SCHEMA, files=2)
    log = Path(path) / "_delta_log" / f"{0:020}.json"
    odd = ODD_STATISTICS[name]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for each in lines:
        if "add" in each and '"minValues":{"k":1' in each["add"]["stats"]:
            each["add"]["stats"] = odd if isinstance(odd, str) else json.dumps(odd)
    log.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    for checksum in log.parent.glob("*.crc"):
        checksum.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    source = frame(spark, [(1, 10, "a"), (2, 20, "b")], SCHEMA)
    merge = Table(spark, path).merge(source, on="CAST(t.k AS DOUBLE) = s.k AND t.p = s.p")
    with configured(spark, WAYS[way]):
        result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert rows_of(Table(spark, path)) == [(1, 10, "a"), (2, 20, "b"), (9, 9, "z")]
    assert not result.warnings


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("zone", "way"),
    [
        ("UTC+5", "driver"),
        ("GMT+08:00", "in place"),
        ("+18:00", "driver"),
        ("-01:02:03", "in place"),
        ("EST5EDT", "driver"),
        ("CST", "in place"),
    ],
)
def test_time_zones_that_python_lacks_change_no_time(
    spark: SparkSession, path: str, zone: str, way: str
) -> None:
    table = f"delta.`{path}`"
    with configured(spark, {"spark.sql.session.timeZone": zone, **WAYS[way]}):
        spark.sql(f"CREATE TABLE {table} (at TIMESTAMP, v INT) USING delta")
        spark.sql(f"INSERT INTO {table} VALUES (TIMESTAMP'2024-07-01 00:00:00Z', 1)")
        source = "SELECT TIMESTAMP'2024-07-01 00:00:00Z' AS at, 10 AS v "
        source += "UNION ALL SELECT TIMESTAMP'2024-07-02 00:00:00Z', 20"
        merge = f"MERGE INTO {table} t USING ({source}) s ON t.at = s.at "
        merge += "WHEN MATCHED AND t.at > TIMESTAMP'2024-06-30 00:00:00Z' "
        merge += (
            "THEN UPDATE SET at = t.at + INTERVAL 1 DAY, v = s.v WHEN NOT MATCHED THEN INSERT *"
        )
        deltaweave.merge(spark, merge)
    found = spark.sql(f"SELECT unix_seconds(at) - 1719792000 AS s, v FROM {table}").collect()
    assert sorted(map(tuple, found)) == [(86_400, 10), (86_400, 20)]
