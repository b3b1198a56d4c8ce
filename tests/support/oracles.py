"""Runs a merge case on copies of one table: with Delta's own MERGE, and with the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantVal

import deltaweave
from deltaweave import Table
from deltaweave.clauses import Clause
from deltaweave.delta.jvm import Jvm
from deltaweave.delta.log import TableLog, file_list
from deltaweave.errors import DeltaweaveError
from deltaweave.identifiers import column, quoted
from tests.builders import frame
from tests.merge_cases.case import COPY_ON_WRITE, FEED, Layout, MergeCase
from tests.support.kept_tables import IS_ANOTHER_PAIR, copy_or_write_table
from tests.support.settings import configured

CHANGED_ROWS = (
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsMatchedUpdated",
    "numTargetRowsNotMatchedBySourceUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsMatchedDeleted",
    "numTargetRowsNotMatchedBySourceDeleted",
)
VECTORS = (
    "numTargetDeletionVectorsAdded",
    "numTargetDeletionVectorsRemoved",
    "numTargetDeletionVectorsUpdated",
)


@dataclass(frozen=True)
class Outcome:
    """What a merge did to its copy of the table.

    Attributes:
        rows: The table's rows afterwards, each as text, sorted.
        schema: Its schema, as text.
        path: The copy's folder.
        version: The version the merge committed, or None.
        operation: The commit's operation.
        parameters: The commit's operation parameters.
        metrics: The commit's metrics; the merge's own where it committed nothing.
        changes: The commit's rows in the change data feed, as `rows`; None without a feed.
        error: What it raised, or None.
        error_classes: Spark's and Delta's error classes in the causes of that.
    """

    rows: list[str]
    schema: str
    path: str
    version: int | None
    operation: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    changes: list[str] | None = None
    error: Exception | None = None
    error_classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """One of the equal tables that a case runs on, and the source's view."""

    spark: SparkSession
    case: MergeCase
    path: str
    name: str
    source: str

    def statement(self) -> str:
        """The case's MERGE into this copy."""
        return self.case.statement(target=self._target(), source=self.source)

    def _target(self) -> str:
        if self.case.target_by == "name":
            self.spark.sql(f"CREATE TABLE {self.name} USING delta LOCATION '{self.path}'")
            return self.name
        if self.case.target_by in ("view", "permanent_view"):
            kind = "TEMPORARY VIEW" if self.case.target_by == "view" else "VIEW"
            query = self.case.view.format(target=f"delta.`{self.path}`")
            self.spark.sql(f"CREATE OR REPLACE {kind} {self.name} AS {query}")
            return self.name
        return f"delta.{quoted(self.path)}"


class Stage:
    """The table of one case, copied byte for byte for every way of running it.

    Attributes:
        original: The folder of the table that is copied.
        source: The name of the source's view.
    """

    def __init__(
        self, spark: SparkSession, case: MergeCase, folder: Path, layout: Layout = COPY_ON_WRITE
    ) -> None:
        case = layout.of(case)
        self._spark, self._case, self._folder = spark, case, folder
        self._layout, self._runs = layout, 0
        self.original = folder / "original" / case.folder
        self.source = f"{case.name}_source"
        copy_or_write_table(spark, self.original, case.table())
        # Kept: a merge reads its source several times, each time through a Python worker otherwise.
        rows = frame(spark, case.source, case.source_schema).localCheckpoint()
        rows.createOrReplaceTempView(self.source)

    def by_oracle(self) -> Outcome:
        """Delta's own MERGE."""

        def merge(copy: Copy) -> None:
            self._spark.sql(copy.statement())

        return self._run("oracle", merge)

    def by_sql(self) -> Outcome:
        """The engine, given SQL text."""
        return self._run("sql", lambda copy: deltaweave.merge(self._spark, copy.statement()))

    def by_builder(self, *, columns: bool) -> Outcome:
        """The engine, given clauses through the fluent builder, as strings or as Columns."""
        name = "columns" if columns else "strings"
        return self._run(name, lambda copy: run_builder(copy, columns=columns))

    def target_rows(self) -> DataFrame:
        """The rows of the table that is copied."""
        return newest_rows(self._spark, str(self.original))

    def _run(self, way: str, merge: Callable[[Copy], Any]) -> Outcome:
        self._runs += 1  # one way may be gone again, in another session configuration
        path = str(self._folder / f"{way}_{self._runs}" / self._case.folder)
        shutil.copytree(self.original, path)
        name = f"{self._case.name}_{self._layout}_{way}_{self._runs}"
        copy = Copy(self._spark, self._case, path, name, self.source)
        with configured(self._spark, self._case.conf):
            return _outcome(copy, merge)


def run_builder(copy: Copy, *, columns: bool) -> deltaweave.MergeResult:
    """Run the case's clauses with the fluent builder."""
    case, as_given = copy.case, F.expr if columns else str
    return (
        Table(copy.spark, copy.path)
        .merge(
            copy.spark.table(copy.source),
            on=as_given(case.on),
            with_schema_evolution=case.with_schema_evolution,
        )
        .add(*[_with_values(clause, as_given) for clause in case.clauses])
        .execute()
    )


def _with_values(clause: Clause, as_given: Callable[[Any], Any]) -> Clause:
    assignments = clause.assignments
    return Clause(
        clause.kind,
        clause.action,
        None if clause.condition is None else as_given(clause.condition),
        None if assignments is None else {k: as_given(v) for k, v in assignments.items()},
    )


def collected(table: DataFrame) -> list[Row]:
    """The rows; all values as texts where one is a time of a year that Python does not have."""
    try:
        return table.collect()
    except ValueError:
        texts = [column(name).cast("string").alias(name) for name in table.columns]
        return table.select(*texts).collect()


def _outcome(copy: Copy, merge: Callable[[Copy], Any]) -> Outcome:
    before = newest_version(copy.path)
    result, error = None, None
    try:
        result = merge(copy)
    except (DeltaweaveError, PySparkException, Py4JJavaError) as raised:
        error = raised
    after = newest_version(copy.path)
    table = newest_rows(copy.spark, copy.path)
    rows, schema = rows_as_text(collected(table)), table.schema.treeString()
    if after == before:
        metrics = {} if result is None else dict(result.metrics)
        classes = () if error is None else error_classes(error)
        return Outcome(
            rows, schema, copy.path, None, metrics=metrics, error=error, error_classes=classes
        )
    assert after == before + 1, "one merge made several commits"
    commit = commit_info(copy.path, after)
    metrics = {name: int(value) for name, value in commit.get("operationMetrics", {}).items()}
    if result is not None and metrics:
        told = {name: result.metrics[name] for name in CHANGED_ROWS}
        assert told == {name: metrics[name] for name in CHANGED_ROWS}, "result against history"
        assert result.version == after
    has_feed = copy.case.properties.get(FEED) == "true"
    return Outcome(
        rows,
        schema,
        copy.path,
        after,
        commit["operation"],
        commit["operationParameters"],
        metrics,
        change_feed(copy.spark, copy.path, after) if has_feed else None,
        error,
    )


def newest_rows(spark: SparkSession, path: str) -> DataFrame:
    """A table's rows, read by Delta from all of its files.

    `spark.read` would first compute the state of the table and totals over it, which takes longer
    than these rows. So the log is replayed here, where no checkpoint stands for a part of it.
    """
    newest = TableLog.of(spark, ["delta", path]).latest()
    if (_log(path) / "_last_checkpoint").exists():
        return newest.read()
    adds: dict[str, dict[str, Any]] = {}
    for version in range(newest_version(path) + 1):
        of_commit = actions(path, version)
        for action in of_commit:
            if "remove" in action:
                adds.pop(action["remove"]["path"], None)
        adds |= {action["add"]["path"]: action for action in of_commit if "add" in action}
    jvm = Jvm.of(spark)
    parse = jvm.singleton(jvm.delta.actions, "Action").fromJson
    files = jvm.seq([parse(json.dumps(action)) for action in adds.values()])
    return newest.read_files(file_list.FileList(spark, files, path))


def change_feed(spark: SparkSession, path: str, version: int) -> list[str]:
    """What one commit says in the change data feed, except its time."""
    changes = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", str(version))
        .option("endingVersion", str(version))
        .load(path)
    )
    return rows_as_text(collected(changes.drop("_commit_timestamp", "_commit_version")))


def newest_version(path: str) -> int:
    """The newest version in a table's log."""
    return max(int(file.stem) for file in _log(path).glob("*.json") if file.stem.isdigit())


def commit_info(path: str, version: int) -> dict[str, Any]:
    """What a commit says about itself."""
    return next(action["commitInfo"] for action in actions(path, version) if "commitInfo" in action)


def actions(path: str, version: int) -> list[dict[str, Any]]:
    """The actions of one commit."""
    # Not by `splitlines`: names may hold other characters at which that splits.
    lines = (_log(path) / f"{version:020}.json").read_text().split("\n")
    return [json.loads(line) for line in lines if line]


def all_files(path: str) -> set[str]:
    """Every file under a table's folder but checksums."""
    files = (file for file in Path(path).rglob("*") if file.is_file())
    return {str(file.relative_to(path)) for file in files if not file.name.endswith(".crc")}


def _log(path: str) -> Path:
    return Path(path) / "_delta_log"


def error_classes(error: BaseException) -> tuple[str, ...]:
    """Spark's and Delta's error classes in an error and the Java exceptions behind it."""
    if isinstance(error, DeltaweaveError):
        return (error.error_class,) if error.error_class else ()
    return tuple(name for java in _java_exceptions(error) if (name := _condition(java)))


def _java_exceptions(error: BaseException | None) -> Iterator[Any]:
    """The Java exceptions behind a Python one; pyspark's translation of one may itself fail."""
    while error is not None:
        java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        while java is not None:
            yield java
            java = java.getCause()
        error = error.__context__


def _condition(java: Any) -> str | None:
    try:
        condition = java.getCondition()
    except Py4JError:  # this class of exceptions has none
        return None
    return condition if isinstance(condition, str) else None


def rows_as_text(rows: Iterable[Any]) -> list[str]:
    """Rows as sorted text: NaN equals itself, -0.0 is not 0.0, and a diff reads well."""
    return sorted(repr(_plain(row)) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, VariantVal):
        return str(value)
    return value


def assert_outcome(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """The case's own outcome for both, and the same outcome from both."""
    assert_same_rows(case, ours, theirs)
    if theirs.error is None:
        assert_same_files(ours, theirs)
        if ours.version is not None and theirs.version is not None:
            assert ours.changes == theirs.changes, "the change data feed"


def assert_same_rows(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """What does not depend on how the table is kept: rows, schema, counts of them, errors."""
    if IS_ANOTHER_PAIR:
        assert_as_this_pair_does(case, ours, theirs)
        return
    if case.error is not None:
        assert case.error in theirs.error_classes, theirs.error
        assert isinstance(ours.error, DeltaweaveError)
        assert ours.error_classes == (case.error,)
        assert ours.version is None
        assert ours.rows == theirs.rows
        return
    for outcome in (theirs, ours):
        if outcome.error is not None:
            raise outcome.error
    expected = rows_as_text(case.expected or ())
    assert theirs.rows == expected, "the oracle's rows"
    assert ours.rows == expected, "the engine's rows"
    assert ours.schema == theirs.schema
    assert_same_counts(case, ours, theirs)


def assert_as_this_pair_does(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """Rows, schema, counts or error are those of this pair's own MERGE."""
    assert ours.rows == theirs.rows
    assert ours.schema == theirs.schema
    if theirs.error is not None:
        assert isinstance(ours.error, DeltaweaveError), theirs.error
        assert set(ours.error_classes) & set(theirs.error_classes), theirs.error
        assert ours.version is None
        return
    if ours.error is not None:
        raise ours.error
    assert_same_counts(case, ours, theirs)


def assert_same_counts(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """The metrics of rows changed and read; no file is added where nothing changes."""
    changed = {name: theirs.metrics.get(name, 0) for name in CHANGED_ROWS}
    assert {name: ours.metrics[name] for name in CHANGED_ROWS} == changed
    if theirs.version is not None:
        assert_same_source_rows(case, ours, theirs)
    if not any(changed.values()) and ours.schema == theirs.schema:
        assert ours.metrics["numTargetFilesAdded"] == 0


def assert_same_source_rows(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """Both count the source's rows; the engine does so exactly."""
    counted, told = ours.metrics["numSourceRows"], theirs.metrics["numSourceRows"]
    if case.oracle_overcounts:
        assert counted == len(case.source)
        assert counted <= told
    else:
        assert counted == told


def assert_same_metrics(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """The row metrics agree, and those of files."""
    assert_same_counts(case, ours, theirs)
    assert_same_files(ours, theirs)


def assert_same_files(ours: Outcome, theirs: Outcome) -> None:
    """The metrics of files and vectors; the engine rewrites no file in which nothing changes."""
    for name in ("numTargetRowsCopied", "numTargetFilesRemoved"):
        assert ours.metrics[name] <= theirs.metrics.get(name, 0), name
    if ours.metrics["numTargetFilesRemoved"] == theirs.metrics.get("numTargetFilesRemoved", 0):
        copied = theirs.metrics.get("numTargetRowsCopied", 0)
        assert ours.metrics["numTargetRowsCopied"] == copied
    for name in VECTORS:
        assert ours.metrics[name] == theirs.metrics.get(name, 0), name
