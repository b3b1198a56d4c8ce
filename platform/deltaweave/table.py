"""The front door: a Delta table by path or name, the fluent merge builder, and `merge` for SQL."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Column, DataFrame

from deltaweave.delta import analyzer, builder
from deltaweave.delta import snapshot as snapshots
from deltaweave.delta.builtin import run_builtin_merge
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject
from deltaweave.engine import clauses as when
from deltaweave.engine import command
from deltaweave.engine import explain as explaining
from deltaweave.engine.clauses import Clause
from deltaweave.engine.explain import MergePlan
from deltaweave.engine.outcome import MergeMetrics, MergeResult, TouchedFiles
from deltaweave.errors import (
    NotADeltaTableError,
    StatementError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


logger = logging.getLogger(__name__)

Fallback = Literal["builtin"]


def merge(
    spark: SparkSession,
    statement: str,
    *,
    idempotency: tuple[str, int] | None = None,
    fallback: Fallback | None = None,
    skip_unchanged_updates: bool = False,
) -> MergeResult:
    """Run a MERGE statement on deltaweave's engine.

    Args:
        spark: A Delta-enabled session.
        statement: Any `MERGE [WITH SCHEMA EVOLUTION] INTO … USING … ON … WHEN …` that Spark SQL
            accepts for a Delta table, by path or by name.
        idempotency: An (application id, version) pair put into the same commit. If the table
            already holds that version or a later one of that id, nothing is done and the result's
            strategy is `"already-applied"`.
        fallback: `"builtin"` runs Delta's own MERGE, with a warning in the log, where the table
            uses a feature that the engine refuses. Not with the two other options, which Delta's
            MERGE does not know: then the refusal stands.
        skip_unchanged_updates: Whether updates that give a row the values it has (compared
            null-safe; -0.0 equals 0.0) leave it alone: the row is not counted as updated, not in
            the change data feed, and its file is not rewritten for it. Finding them reads all of
            the target's columns in the candidate files.

    Raises:
        DeltaweaveError: A subclass that says what happened; nothing was committed.
    """
    plan, table = analyzer.parse_statement(spark, statement)
    return _run(spark, plan, table, idempotency, fallback, skip_unchanged_updates)


def explain(spark: SparkSession, statement: str) -> MergePlan:
    """What a MERGE statement would do to its target as it is now; nothing is written.

    The source is read (and kept for the time of the call, where a merge would), the target's file
    list and statistics are; no row of the target is.

    Raises:
        DeltaweaveError: As `merge` would.
    """
    plan, table = analyzer.parse_statement(spark, statement)
    return explaining.explain(analyzer.resolve(spark, plan, table))


def _run(
    spark: SparkSession,
    plan: JavaObject,
    table: str,
    idempotency: tuple[str, int] | None,
    fallback: Fallback | None,
    skip_unchanged_updates: bool,
) -> MergeResult:
    """Run an unresolved MERGE plan on the engine or, where allowed and needed, on Delta's own."""
    resolved = analyzer.resolve(spark, plan, table, skip_unchanged_updates=skip_unchanged_updates)
    try:
        return command.run(resolved, idempotency)
    except UnsupportedFeatureError as refused:
        if fallback != "builtin" or idempotency is not None or skip_unchanged_updates:
            raise
        features = ", ".join(refused.features)
        logger.warning("%s uses %s: Delta's own MERGE runs instead", table, features)
    version, metrics = run_builtin_merge(spark, plan, resolved.location, table)
    return MergeResult(version, MergeMetrics(metrics), TouchedFiles(), "builtin")


@dataclass(frozen=True)
class TouchedRows:
    """The rows of the data files by which two versions of a table differ.

    Sums over `added` minus sums over `removed` are the exact change of any additive aggregate
    between the two versions, whatever commits lie between.

    Attributes:
        added: Rows of the files that `until` has and `after` has not.
        removed: Rows of the files that `after` has and `until` has not; empty if `after` is None.
        after: The older version, or None for the state before the first.
        until: The newer version.
        added_files: How many files `added` reads.
        removed_files: How many files `removed` reads.
    """

    added: DataFrame
    removed: DataFrame
    after: int | None
    until: int
    added_files: int
    removed_files: int


class Table:
    """A Delta table, by path or by catalog name.

    Args:
        spark: A Delta-enabled session.
        path_or_name: A path where it holds a slash, else a name, e.g. `"sales.orders"`. A name of
            the form ``delta.`/path` `` is a path too.
    """

    def __init__(self, spark: SparkSession, path_or_name: str) -> None:
        self.spark = spark
        self.path_or_name = path_or_name
        if "/" in path_or_name and "`" not in path_or_name:
            self._parts = ["delta", path_or_name]
        else:
            self._parts = builder.name_parts(spark, path_or_name)

    def __repr__(self) -> str:
        return f"Table({self.path_or_name!r})"

    def exists(self) -> bool:
        """Whether there is a Delta table here."""
        try:
            return bool(self._log().tableExists())
        except TableNotFoundError:
            return False

    def create_if_missing(
        self,
        schema: StructType | str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> bool:
        """Create an empty table unless there is one; an existing table is left as it is.

        Args:
            schema: Its columns, as a StructType or as DDL such as `"k INT, v STRING"`.
            partition_by: Its partition columns.
            properties: Its table properties.

        Returns:
            Whether this call created it.
        """
        from delta.tables import DeltaTable
        from pyspark.sql.types import StructType

        if self.exists():
            return False
        wanted = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
        assert isinstance(wanted, StructType)
        create = DeltaTable.createIfNotExists(self.spark).addColumns(wanted)
        create = create.location(self._parts[1]) if self._is_path else create.tableName(self._name)
        create = create.partitionedBy(*partition_by) if partition_by else create
        for key, value in (properties or {}).items():
            create = create.property(key, value)
        with translated(self.path_or_name, operation="creation"):
            create.execute()
        return True

    def location(self) -> str:
        """Where its data is, e.g. `file:/lake/orders`."""
        return snapshots.data_path(self._log())

    def version(self) -> int:
        """Its newest version."""
        return self._snapshot().version

    def id(self) -> str:
        """Delta's id of it: a table made anew in the same place has another."""
        return str(self._snapshot().snapshot.metadata().id())

    def read(self, version: int | None = None) -> DataFrame:
        """Its rows, at the newest version or at the one given."""
        if version is not None:
            return self._snapshot(version).read()
        if self._is_path:
            self._snapshot()  # names the table in the error where there is none
            return self.spark.read.format("delta").load(self._parts[1])
        return self.spark.table(self._name)

    def row_count(self) -> int:
        """How many rows it has: by the log's statistics or, where a file has none, counted."""
        snapshot = self._snapshot()
        known = snapshot.num_records()
        return snapshot.read().count() if known is None else known

    def last_applied(self, application_id: str) -> int | None:
        """The newest version that a merge with this application id committed, or None."""
        applied = self._snapshot().snapshot.transactions().get(application_id)
        return int(applied.get()) if applied.isDefined() else None

    def touched_rows(self, after: int | None, until: int | None = None) -> TouchedRows:
        """The rows of only those files by which two versions differ.

        Args:
            after: The older version, or None for everything.
            until: The newer version, or None for the newest.

        Raises:
            TableNotFoundError: The log no longer holds one of the versions.
        """
        newer = self._snapshot(until)
        if after is None:
            everything = newer.read()
            files = int(newer.snapshot.numOfFiles())
            return TouchedRows(everything, everything.limit(0), None, newer.version, files, 0)
        older = self._snapshot(after)
        added, removed = newer.files_not_in(older), older.files_not_in(newer)
        return TouchedRows(
            added=newer.read_files(added),
            removed=older.read_files(removed),
            after=after,
            until=newer.version,
            added_files=len(added),
            removed_files=len(removed),
        )

    def merge(
        self,
        source_df: DataFrame,
        on: str | Column,
        source_alias: str = "s",
        target_alias: str = "t",
        with_schema_evolution: bool = False,
        idempotency: tuple[str, int] | None = None,
    ) -> MergeBuilder:
        """Begin a merge of `source_df` into this table; add clauses, then `execute`.

        Args:
            source_df: The source rows.
            on: The match condition, e.g. `"t.k = s.k"`.
            source_alias: What conditions and values call the source.
            target_alias: What they call this table.
            with_schema_evolution: Whether new source columns are added to this table.
            idempotency: See `deltaweave.merge`.
        """
        return MergeBuilder(
            self, source_df, on, source_alias, target_alias, with_schema_evolution, idempotency
        )

    @property
    def _is_path(self) -> bool:
        return len(self._parts) == 2 and self._parts[0].lower() == "delta"

    @property
    def _name(self) -> str:
        return ".".join(map(quoted, self._parts))

    def _log(self) -> JavaObject:
        return snapshots.delta_log(self.spark, self._parts)

    def _snapshot(self, version: int | None = None) -> snapshots.TableSnapshot:
        log = self._log()
        if not log.tableExists():
            raise NotADeltaTableError(
                "there is no Delta table here.",
                table=self.path_or_name,
                operation="opening",
                state="Nothing was read or written.",
                hint="Check the path or name, or create the table with create_if_missing().",
            )
        if version is None:
            return snapshots.latest(self.spark, log)
        return snapshots.at_version(self.spark, log, version)


class MergeBuilder:
    """The clauses of one merge, in the order they are added."""

    def __init__(
        self,
        target: Table,
        source_df: DataFrame,
        on: str | Column,
        source_alias: str,
        target_alias: str,
        with_schema_evolution: bool,
        idempotency: tuple[str, int] | None,
    ) -> None:
        self._target = target
        self._source_df = source_df
        self._on = on
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._with_schema_evolution = with_schema_evolution
        self._idempotency = idempotency
        self._clauses: tuple[Clause, ...] = ()

    def add(self, *clauses: Clause) -> MergeBuilder:
        """Add clauses made by `deltaweave.clauses`."""
        self._clauses += clauses
        return self

    def when_matched_update(
        self,
        set: Mapping[str, str | Column],
        condition: str | Column | None = None,
    ) -> MergeBuilder:
        """Update the named columns of target rows that a source row matches."""
        return self.add(when.when_matched_update(set, condition))

    def when_matched_update_all(self, condition: str | Column | None = None) -> MergeBuilder:
        """Update every column of matched target rows from the source (`UPDATE SET *`)."""
        return self.add(when.when_matched_update_all(condition))

    def when_matched_delete(self, condition: str | Column | None = None) -> MergeBuilder:
        """Delete target rows that a source row matches."""
        return self.add(when.when_matched_delete(condition))

    def when_not_matched_insert(
        self,
        values: Mapping[str, str | Column],
        condition: str | Column | None = None,
    ) -> MergeBuilder:
        """Insert source rows that match no target row, giving the named columns."""
        return self.add(when.when_not_matched_insert(values, condition))

    def when_not_matched_insert_all(self, condition: str | Column | None = None) -> MergeBuilder:
        """Insert source rows that match no target row, all columns (`INSERT *`)."""
        return self.add(when.when_not_matched_insert_all(condition))

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, str | Column],
        condition: str | Column | None = None,
    ) -> MergeBuilder:
        """Update target rows that no source row matches."""
        return self.add(when.when_not_matched_by_source_update(set, condition))

    def when_not_matched_by_source_delete(
        self, condition: str | Column | None = None
    ) -> MergeBuilder:
        """Delete target rows that no source row matches."""
        return self.add(when.when_not_matched_by_source_delete(condition))

    def execute(
        self, *, fallback: Fallback | None = None, skip_unchanged_updates: bool = False
    ) -> MergeResult:
        """Run the merge.

        Args:
            fallback: See `deltaweave.merge`.
            skip_unchanged_updates: See `deltaweave.merge`.

        Raises:
            DeltaweaveError: A subclass that says what happened; nothing was committed.
        """
        table = self._target.path_or_name
        if not self._clauses:
            raise StatementError(
                "it has no WHEN clause.", table=table, hint="Add a clause before execute()."
            )
        spark = self._target.spark
        plan = builder.merge_plan(
            spark,
            table=table,
            target_parts=self._target._parts,
            target_alias=self._target_alias,
            source=self._source_df,
            source_alias=self._source_alias,
            on=self._on,
            clauses=self._clauses,
            with_schema_evolution=self._with_schema_evolution,
        )
        return _run(spark, plan, table, self._idempotency, fallback, skip_unchanged_updates)
