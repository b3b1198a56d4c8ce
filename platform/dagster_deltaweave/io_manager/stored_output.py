"""Stores an asset's output in its table as the declaration says, and records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, OutputContext

from dagster_deltaweave.io_manager import changeset_append, table_write
from dagster_deltaweave.io_manager.applied_again import is_known
from dagster_deltaweave.io_manager.merge_order import lease_of_run, marks_of_refreshed
from dagster_deltaweave.io_manager.partition_records import partition_records
from dagster_deltaweave.io_manager.rows_by_key import RunPartitions, one_row_for_each_key
from dagster_deltaweave.io_manager.schema_policy import (
    is_written,
    prepare_table,
    refuse_missing_columns,
    rows_of_table,
)
from dagster_deltaweave.io_manager.start_version import start_of_write
from dagster_deltaweave.io_manager.transaction_ids import Marks, marks_of_refresh, marks_of_run
from dagster_deltaweave.landing import rows_of_delivery
from dagster_deltaweave.metadata import (
    record_data_version,
    record_merge,
    record_write,
)
from dagster_deltaweave.partitions import (
    covers_all_partitions,
    partition_positions,
    partition_predicate,
    tags_of_run,
)
from dagster_deltaweave.tables import (
    Changes,
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    WriteDeclaration,
    touched_upstreams,
)
from deltaweave.engine.phases import telling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables import TableLocator
    from deltaweave import MergePlan, MergeResult, Table, WriteResult


@dataclass(frozen=True)
class Stored:
    """What was committed, and how it is recorded.

    Attributes:
        version: The committed version; None if there is none, or it is unknown.
        record: Records it and returns the metadata of the materialization.
        warnings: What already failed after the commit.
        was_applied_before: Whether the table holds what the run applies, so nothing was committed.
    """

    version: int | None
    record: Callable[[], Mapping[str, Any]]
    warnings: Sequence[str] = ()
    was_applied_before: bool = False

    def record_version(self, context: OutputContext) -> dict[str, Any]:
        """Make the version the data version, until `record` sets a more exact one."""
        if self.version is not None:
            record_data_version(context, self.version)
        return {}


def add_output(
    context: OutputContext,
    tables: TableLocator,
    table: Table,
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
    *,
    explain: bool,
    wait_seconds: float,
) -> Stored:
    """Merge or write the changes; with `explain`, log the plan before a merge.

    Before a merge, wait up to `wait_seconds` for a run of an older partition.
    """
    step, run = context.step_context, context.step_context.dagster_run
    tags = tags_of_run(run, step.instance)
    marks = marks_of_run(
        context.asset_key,
        declaration,
        changes,
        table=table,
        upstreams=_upstreams(context),
        partitions=partitions,
        tags=tags,
        first_attempt=lambda: changeset_append.first_attempt(step.instance, run, context.asset_key),
    )
    rows = changes.rows
    if declaration.idempotent_by == "delivery" and len(partitions) == 1:
        rows = rows_of_delivery(rows, partitions[0], tags, table=table.path_or_name)
    refuse_missing_columns(table, declaration, rows)
    if isinstance(declaration, MergeDeclaration):
        lease = None
        if not marks.are_in(table):
            lease = lease_of_run(context, table, declaration, partitions, wait_seconds)
            # Not before: the runs that this one waited for have changed which keys are new.
            of_delivery = replace(changes, rows=rows)
            rows = _one_row_for_each_key(context, table, declaration, of_delivery, partitions)
        prepare_table(table, declaration, rows, context.asset_spec.description)
        if url := table.spark.sparkContext.uiWebUrl:
            # No metadata: the link would outlive the driver.
            context.log.info(f"The merge's jobs are in the Spark UI while its driver runs: {url}")
        plan = table_write.explain(table, declaration, rows) if explain else None
        if plan is not None:
            context.log.info(f"Before the merge:\n{plan}")
        with telling(context.log.info):
            recorded = partition_records(context, table, partitions)
            result = table_write.merge(table, declaration, rows, marks, lease, recorded)
        statement = table_write.statement_over(table, declaration, rows)
        return _merged(context, tables, table, changes, partitions, statement, result, plan, marks)
    if isinstance(declaration, ChangesDeclaration):
        with telling(context.log.info):
            result = table_write.apply(table, declaration, rows, marks)
        stored = _merged(context, tables, table, changes, partitions, None, result)
        return _with_rescued(stored, context, table, declaration)
    if isinstance(declaration, MergeOnReadDeclaration):
        appended = changeset_append.ingest(context, tables, declaration, rows, marks.pair)
        return Stored(None, *appended)
    assert isinstance(declaration, WriteDeclaration)
    predicate = _replaced(context, table, declaration, changes, partitions)
    prepare_table(table, declaration, rows, context.asset_spec.description)
    start = start_of_write(
        context, table, adds_only=declaration.mode == "append", predicate=predicate
    )
    recorded = partition_records(context, table, partitions)
    written = table_write.write(table, declaration, rows, predicate, marks, recorded, start)
    return _written(context, table, written, declaration, predicate, partitions, marks)


def rebuild_with_output(
    context: OutputContext,
    table: Table,
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> Stored:
    """Rebuild the table, or only the rows of the run's partitions."""
    table_write.check_can_be_rebuilt(table, declaration)
    refuse_missing_columns(table, declaration, changes.rows)
    is_of_all = covers_all_partitions(context, partitions)
    marks = marks_of_refresh(
        context.asset_key,
        declaration,
        changes,
        table=table,
        upstreams=_upstreams(context),
        partitions=partitions,
        is_of_all=is_of_all,
    )
    ordered = marks_of_refreshed(context, table, declaration, partitions, is_of_all=is_of_all)
    marks = Marks({**marks.pairs, **ordered}, marks.before)
    predicate = None
    if not is_of_all:
        # Without an expression this is an error, because the other partitions' rows would be lost.
        predicate = _predicate(context, table, declaration, changes, partitions)
    if isinstance(declaration, MergeDeclaration):
        rows = _one_row_for_each_key(
            context, table, declaration, changes, partitions, is_rebuilt=True
        )
        changes = Changes(rows, changes.applied)
    prepare_table(table, declaration, changes.rows, context.asset_spec.description)
    start = start_of_write(context, table, predicate=predicate)
    recorded = partition_records(context, table, partitions)
    rows = changes.rows
    written = table_write.rebuild(table, declaration, rows, predicate, marks, recorded, start)
    return _written(context, table, written, None, predicate, partitions)


def _one_row_for_each_key(
    context: OutputContext,
    table: Table,
    declaration: MergeDeclaration,
    changes: Changes,
    partitions: Sequence[str],
    *,
    is_rebuilt: bool = False,
) -> DataFrame:
    definition = context.asset_spec.partitions_def
    positions = partition_positions(definition, context.step_context.instance)
    run = RunPartitions(definition, partitions, positions)
    return one_row_for_each_key(table, declaration, changes, run, is_rebuilt=is_rebuilt)


def _with_rescued(
    stored: Stored, context: OutputContext, table: Table, declaration: ChangesDeclaration
) -> Stored:
    """Record how many events wait to be corrected, beside what was stored."""
    return replace(
        stored,
        record=lambda: {
            **stored.record(),
            **changeset_append.rescued_metadata(context, table, declaration.rescued),
        },
    )


def _merged(
    context: OutputContext,
    tables: TableLocator,
    table: Table,
    changes: Changes,
    partitions: Sequence[str],
    statement: Callable[[str], str] | None,
    result: MergeResult,
    plan: MergePlan | None = None,
    marks: Marks | None = None,
) -> Stored:
    return Stored(
        result.version,
        lambda: record_merge(context, tables, table, changes, partitions, statement, result, plan),
        result.warnings,
        marks is not None and result.was_applied_before and is_known(table, marks.pairs),
    )


def _written(
    context: OutputContext,
    table: Table,
    written: WriteResult,
    declaration: WriteDeclaration | None,
    predicate: str | None,
    partitions: Sequence[str],
    marks: Marks | None = None,
) -> Stored:
    """Return how a write is recorded: as declared, or as a full refresh."""
    how = declaration.mode if declaration else "full refresh"
    of_partitions = predicate is not None and not (declaration and declaration.replace_where)
    return Stored(
        written.version,
        lambda: record_write(
            context, table, written, how, predicate, partitions, is_of_partitions=of_partitions
        ),
        written.warnings,
        marks is not None and written.version is None and is_known(table, marks.pairs),
    )


def _upstreams(context: OutputContext) -> list[AssetKey]:
    definition = context.step_context.assets_def
    return touched_upstreams(definition) if definition else []


def _replaced(
    context: OutputContext,
    table: Table,
    declaration: WriteDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> str | None:
    """Return the predicate of the rows that a write replaces; None if it replaces all or none."""
    if declaration.mode == "append":
        return None
    if declaration.replace_where is not None:
        return declaration.replace_where
    if declaration.mode == "overwrite" and context.asset_spec.partitions_def is None:
        return None
    return _predicate(context, table, declaration, changes, partitions)


def _predicate(
    context: OutputContext,
    table: Table,
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> str:
    return partition_predicate(
        context.asset_spec.partitions_def,
        partitions,
        declaration.partition_expr,
        table=table.path_or_name,
        # A table that does not exist yet has no columns, so take those of the changes.
        rows=table.read() if is_written(table) else rows_of_table(declaration, changes.rows),
    )
