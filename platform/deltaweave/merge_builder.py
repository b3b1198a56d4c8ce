"""The fluent builder of merges: clauses added one by one, then run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession

from deltaweave import clauses as when
from deltaweave.clauses import Clause
from deltaweave.delta.commit import Lease
from deltaweave.delta.jvm import active
from deltaweave.delta.statement import ParsedMerge, merge_plan
from deltaweave.engine.explain import MergePlan
from deltaweave.engine.report import MergeResult
from deltaweave.errors import StatementError
from deltaweave.statements import Fallback, planned, run


class MergeBuilder:
    """One merge into a table: its clauses, in the order in which they are added.

    `Table.merge` makes it. Conditions and values are SQL text or Columns over the aliases of target
    and source, `t` and `s` by default. Of the clauses for a row, the first whose condition is true
    takes it; a clause without a condition takes every row of its kind.

    >>> changes = spark.createDataFrame([(1, "shipped")], "id BIGINT, state STRING")
    >>> merge = deltaweave.Table(spark, "/lake/orders").merge(changes, on="t.id = s.id")
    >>> merge.when_matched_update({"state": "s.state"}).when_not_matched_insert_all().execute()
    """

    def __init__(
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
        self._table = table
        self._target_parts = target_parts
        self._source_df = source_df
        self._on = on
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._with_schema_evolution = with_schema_evolution
        self._idempotency = idempotency
        self._clauses: tuple[Clause, ...] = ()

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
        spark = self._source_df.sparkSession
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
        spark = self._source_df.sparkSession
        with active(spark):
            parsed = self._parsed(spark)
            return run(
                parsed,
                idempotency=self._idempotency,
                applied_before=applied_before,
                computed_from=computed_from,
                lease=lease,
                fallback=fallback,
                skip_unchanged_updates=skip_unchanged_updates,
            )

    def _parsed(self, spark: SparkSession) -> ParsedMerge:
        if not self._clauses:
            raise StatementError(
                "it has no WHEN clause.", table=self._table, hint="Add a clause first."
            )
        return merge_plan(
            spark,
            table=self._table,
            target_parts=self._target_parts,
            target_alias=self._target_alias,
            source=self._source_df,
            source_alias=self._source_alias,
            on=self._on,
            clauses=self._clauses,
            with_schema_evolution=self._with_schema_evolution,
        )
