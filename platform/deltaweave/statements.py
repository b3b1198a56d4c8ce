"""MERGE statements: as SQL text (`merge`, `explain`), and clause by clause (`MergeBuilder`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame, SparkSession

from deltaweave import clauses as when
from deltaweave._validation import check_choice, counted
from deltaweave.clauses import Clause
from deltaweave.delta.commit import Lease
from deltaweave.delta.jvm import active, translated
from deltaweave.delta.statement import (
    MergeParts,
    ParsedMerge,
    builtin_defects,
    merge_plan,
    parse_statement,
    resolve,
    run_builtin_merge,
)
from deltaweave.engine import run as engine_run
from deltaweave.engine.explain import MergePlan, explain_resolved
from deltaweave.engine.merge_run import ANY_VERSION, Preconditions
from deltaweave.engine.report import MergeMetrics, MergeResult, StrategyName, TouchedFiles
from deltaweave.errors import StatementError, UnsupportedFeatureError

logger = logging.getLogger(__name__)

Fallback = Literal["builtin"]


def merge(  # noqa: PLR0913 - the public options
    spark: SparkSession,
    statement: str,
    *,
    idempotency: tuple[str, int] | None = None,
    applied_before: int | None = None,
    computed_from: int | None = None,
    lease: Lease | None = None,
    fallback: Fallback | None = None,
    skip_unchanged_updates: bool = False,
) -> MergeResult:
    """Run a MERGE statement on deltaweave's engine.

    Args:
        spark: A Delta-enabled session.
        statement: Any `MERGE [WITH SCHEMA EVOLUTION] INTO … USING … ON … WHEN …` that Spark SQL
            accepts for a Delta table, by path or by name.
        idempotency: A transaction id, (application id, version), for the same commit. If the table
            already holds that version or a later one of that id, nothing is done and the result's
            strategy is `"already-applied"`.
        applied_before: The version of that application id in the table when the source was
            computed, -1 for none. The merge fails with a `CommitConflictError`, and nothing is
            written, if the table holds another one, below the id's, before this merge commits.
        computed_from: The version of the target from which the source was computed. The merge fails
            with a `CommitConflictError`, and nothing is written, if the target has moved past it.
            Give it for rows that were read from the target before: otherwise a merge that loses to
            another commit runs again with them.
        lease: A version that the target must still hold of an application id when the merge
            commits, and application ids with versions that the same commit adds. The merge fails
            with a `CommitConflictError`, and nothing is written, if the target holds another one.
        fallback: `"builtin"` runs Delta's own MERGE, with a warning in the log, if the table uses a
            feature that the engine refuses. Delta's MERGE does not know the other options: together
            with one of them the refusal stands, and the error names them. It also stands for a
            statement that Delta's MERGE may get wrong, and the error says how.
        skip_unchanged_updates: Whether to skip updates that give a row the values that it has
            (compared null-safe; -0.0 equals 0.0). A skipped row is not counted as updated, is not
            in the change data feed, and its file is not rewritten for it. The scan then reads all
            columns of the target in the candidate files.

    Returns:
        What was committed. Its `warnings` list what failed after the commit.

    Raises:
        StatementError: `applied_before` is given without `idempotency`, or the statement is wrong.
        CommitStateUnknownError: The commit failed, and whether it landed is unknown.
        DeltaweaveError: Another subclass that says what happened; nothing was committed.
    """
    with active(spark):
        return run_parsed(
            parse_statement(spark, statement),
            Preconditions.of(idempotency, applied_before, computed_from, lease),
            fallback=fallback,
            skip_unchanged_updates=skip_unchanged_updates,
        )


def explain(spark: SparkSession, statement: str) -> MergePlan:
    """Explain what a MERGE statement would do to its target as it is now; nothing is written.

    The source is read, and materialized during the call if a merge would materialize it. Of the
    target, the file list and the statistics are read, and no row.

    Raises:
        DeltaweaveError: As `merge` would.
    """
    with active(spark):
        return planned(parse_statement(spark, statement))


def planned(parsed: ParsedMerge) -> MergePlan:
    """Explain a parsed MERGE; the session is the active one."""
    return explain_resolved(resolve(parsed))


def run_parsed(
    parsed: ParsedMerge,
    preconditions: Preconditions = ANY_VERSION,
    *,
    fallback: Fallback | None = None,
    skip_unchanged_updates: bool = False,
) -> MergeResult:
    """Run a parsed MERGE on the engine or, where allowed and needed, on Delta's own."""
    table = parsed.table
    check_choice("fallback", fallback, (None, *get_args(Fallback)), table=table, operation="MERGE")
    if preconditions.applied_before is not None and preconditions.idempotency is None:
        raise StatementError(
            "applied_before is a version of `idempotency`'s id, and no `idempotency` is given.",
            table=table,
            hint="Give idempotency, too.",
        )
    resolved = resolve(parsed, skip_unchanged_updates=skip_unchanged_updates)
    try:
        with translated(table):
            done = engine_run.run(resolved, preconditions)
        return replace(done, table=table)
    except UnsupportedFeatureError as refused:
        not_in_builtin = preconditions.given
        if skip_unchanged_updates:
            not_in_builtin.append("skip_unchanged_updates")
        _check_fallback(refused, parsed, fallback, not_in_builtin)
    by_delta = run_builtin_merge(parsed, resolved.location)
    return MergeResult(
        by_delta.version,
        MergeMetrics(by_delta.metrics),
        TouchedFiles(),
        StrategyName.BUILTIN.value,
        warnings=by_delta.warnings,
        table=table,
    )


def _check_fallback(
    refused: UnsupportedFeatureError,
    parsed: ParsedMerge,
    fallback: Fallback | None,
    not_in_builtin: Sequence[str],
) -> None:
    """Raise unless Delta's own MERGE is allowed, and does what the call asks for."""
    defects = builtin_defects(parsed)
    if fallback != "builtin":
        not_in_builtin = ()
        if not defects:
            raise refused
    if not_in_builtin or defects:
        raise UnsupportedFeatureError(
            refused.features,
            table=parsed.table,
            version=refused.version,
            not_in_builtin=not_in_builtin,
            builtin_defects=defects,
        ) from refused
    features = ", ".join(refused.features)
    logger.warning("%s uses %s: Delta's own MERGE runs instead", parsed.table, features)


class MergeBuilder:
    """One merge into a table: its clauses, in the order in which they are added.

    `Table.merge` makes it. Conditions and values are SQL text or Columns over the aliases of target
    and source, `t` and `s` by default. Of the clauses for a row, the first whose condition is true
    takes it; a clause without a condition takes every row of its kind.

    >>> changes = spark.createDataFrame([(1, "shipped")], "id BIGINT, state STRING")
    >>> merge = deltaweave.Table(spark, "/lake/orders").merge(changes, on="t.id = s.id")
    >>> merge.when_matched_update({"state": "s.state"}).when_not_matched_insert_all().execute()
    """

    def __init__(  # noqa: PLR0913 - the public options
        self,
        source_df: DataFrame,
        on: str | Column,
        *,
        table: str,
        target_parts: Sequence[str],
        source_alias: str,
        target_alias: str,
        with_schema_evolution: bool,
        idempotency: tuple[str, int] | None,
    ) -> None:
        self._parts = MergeParts(
            table=table,
            target_parts=target_parts,
            target_alias=target_alias,
            source=source_df,
            source_alias=source_alias,
            on=on,
            with_schema_evolution=with_schema_evolution,
        )
        self._idempotency = idempotency
        self._clauses: tuple[Clause, ...] = ()

    def __repr__(self) -> str:
        clauses = counted(len(self._clauses), "clause")
        return f"MergeBuilder({self._parts.table!r}, on={self._parts.on!r}, {clauses})"

    def add(self, *clauses: Clause) -> MergeBuilder:
        """Add clauses made by `deltaweave.clauses`, after those that are there."""
        self._clauses += clauses
        return self

    def when_matched_update(
        self,
        set: Mapping[str, str | Column],
        condition: str | Column | None = None,
    ) -> MergeBuilder:
        """Update the named columns of target rows that a source row matches.

        Args:
            set: Target column to its new value, SQL text or a Column.
            condition: Which matches to update; None for all.
        """
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
        """Insert source rows that match no target row, with values for the named columns.

        Args:
            values: Target column to its value, SQL text or a Column over the source. Other columns
                get their default, or null.
            condition: Which source rows to insert; None for all.
        """
        return self.add(when.when_not_matched_insert(values, condition))

    def when_not_matched_insert_all(self, condition: str | Column | None = None) -> MergeBuilder:
        """Insert source rows that match no target row, all columns (`INSERT *`)."""
        return self.add(when.when_not_matched_insert_all(condition))

    def when_not_matched_by_source_update(
        self,
        set: Mapping[str, str | Column],
        condition: str | Column | None = None,
    ) -> MergeBuilder:
        """Update the named columns of target rows that no source row matches.

        Args:
            set: Target column to its new value, SQL text or a Column over the target.
            condition: Which rows to update; None for all. Without one, every file is read.
        """
        return self.add(when.when_not_matched_by_source_update(set, condition))

    def when_not_matched_by_source_delete(
        self, condition: str | Column | None = None
    ) -> MergeBuilder:
        """Delete target rows that no source row matches.

        Args:
            condition: Which rows to delete; None for all. Without one, every file is read.
        """
        return self.add(when.when_not_matched_by_source_delete(condition))

    def explain(self) -> MergePlan:
        """Explain what the merge would do to the table as it is now; see `deltaweave.explain`.

        Nothing is written, and clauses may still be added afterwards.

        Raises:
            DeltaweaveError: As `execute` would.
        """
        spark = self._parts.source.sparkSession
        with active(spark):
            return planned(self._parsed(spark))

    def execute(
        self,
        *,
        fallback: Fallback | None = None,
        skip_unchanged_updates: bool = False,
        applied_before: int | None = None,
        computed_from: int | None = None,
        lease: Lease | None = None,
    ) -> MergeResult:
        """Run the merge.

        Args:
            fallback: See `deltaweave.merge`.
            skip_unchanged_updates: See `deltaweave.merge`.
            applied_before: See `deltaweave.merge`.
            computed_from: See `deltaweave.merge`.
            lease: See `deltaweave.merge`.

        Raises:
            CommitStateUnknownError: The commit failed, and whether it landed is unknown.
            DeltaweaveError: Another subclass that says what happened; nothing was committed.
        """
        spark = self._parts.source.sparkSession
        with active(spark):
            return run_parsed(
                self._parsed(spark),
                Preconditions.of(self._idempotency, applied_before, computed_from, lease),
                fallback=fallback,
                skip_unchanged_updates=skip_unchanged_updates,
            )

    def _parsed(self, spark: SparkSession) -> ParsedMerge:
        if not self._clauses:
            raise StatementError(
                "it has no WHEN clause.", table=self._parts.table, hint="Add a clause first."
            )
        return merge_plan(spark, self._parts, self._clauses)
