"""Stores an output in the table of its asset: each declaration says how.

`store` adds an output to its table and `rebuild` replaces the table's rows by it; `store_nothing`
is for a function that returned None. A declaration is registered with them below, or does without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dagster import MetadataValue
from pyspark.sql import functions as F

import deltaweave
from dagster_deltaweave.io_manager import change_events
from dagster_deltaweave.io_manager.merge_order import lease_of_run, order_of_refresh
from dagster_deltaweave.io_manager.output import (
    Output,
    Recording,
    Stored,
    declaration_of,
    record_listed_partitions,
)
from dagster_deltaweave.io_manager.rows_by_key import RunPartitions, one_row_for_each_key, takes
from dagster_deltaweave.io_manager.target_table import Start
from dagster_deltaweave.io_manager.transaction_ids import RunIds, ids_of_refresh, ids_of_run
from dagster_deltaweave.landing import rows_of_delivery
from dagster_deltaweave.metadata import (
    record_data_version,
    record_merge,
    record_unchanged,
    record_write,
)
from dagster_deltaweave.partitions import (
    FULL_REFRESH_TAG,
    covers_all_partitions,
    lists_partitions,
    output_is_full_refresh,
    output_partition_keys,
    partition_positions,
    partition_predicate,
)
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    TableLocator,
    WriteDeclaration,
    open_merge_on_read,
    table_location,
)
from deltaweave import Lease
from deltaweave.delta.jvm import parsed_expression, translated
from deltaweave.engine.report import listening
from deltaweave.errors import CORRECT_STATEMENT, DeltaweaveError, StatementError
from deltaweave.identifiers import column, table_name, unquoted

if TYPE_CHECKING:
    from dagster import OutputContext
    from pyspark.sql import Column, DataFrame

    from deltaweave import MergePlan, MergeResult, Table, WriteResult
    from deltaweave.clauses import Clause

_logger = logging.getLogger(__name__)


def store(output: Output) -> Stored:
    """Add an output to its table as declared: merge, apply, append or write it."""
    declaration, ids = output.declaration, ids_of_run(output)
    if declaration.idempotent_by == "delivery" and len(output.partitions) == 1:
        [partition] = output.partitions
        name = output.table.path_or_name
        rows = rows_of_delivery(output.rows, partition, output.tags, table=name)
        output = replace(output, rows=rows)
    output.target.refuse_missing_columns(output.rows)
    return _store(declaration, output, ids)


@singledispatch
def _store(declaration: TableDeclaration, output: Output, ids: RunIds) -> Stored:
    """Store an output, with the transaction ids of the applied changes."""
    raise NotImplementedError(f"nothing stores the output of a {type(declaration).__name__}")


@_store.register(MergeDeclaration)
def _merge(declaration: MergeDeclaration, output: Output, ids: RunIds) -> Stored:
    context, table, lease = output.context, output.table, None
    if not ids.are_in_table():
        lease = lease_of_run(output)
        # Other runs may have inserted these keys during the wait.
        output = replace(output, rows=_rows_by_key(declaration, output, is_rebuilt=False))
    output.target.prepare(output.rows)
    if url := table.spark.sparkContext.uiWebUrl:
        # No metadata: the link would outlive the driver.
        context.log.info(f"The merge's jobs are in the Spark UI while its driver runs: {url}")
    plan = _explained(table, declaration, output.rows) if output.explain else None
    if plan is not None:
        context.log.info(f"Before the merge:\n{plan}")
    with listening(context.log.info):
        result = merge_output(declaration, output, ids, lease, ids.of_partitions())
    stored = _recorded_merge(output, result, _statement_over(table, declaration, output.rows), plan)
    return replace(stored, record_before=_record_before(ids, is_held=result.was_applied_before))


@_store.register(ChangesDeclaration)
def _apply(declaration: ChangesDeclaration, output: Output, ids: RunIds) -> Stored:
    with listening(output.context.log.info):
        result = deltaweave.apply_changes(
            output.rows.sparkSession,
            output.table.path_or_name,  # a table that is missing is created
            output.rows,
            **declaration.arguments,
            idempotency=ids.single,
        )
    stored = _recorded_merge(output, result)
    return replace(
        stored,
        record=lambda: {
            **stored.record(),
            **change_events.rescued_metadata(output.context, output.table, declaration.rescued),
        },
    )


@_store.register(MergeOnReadDeclaration)
def _append(declaration: MergeOnReadDeclaration, output: Output, ids: RunIds) -> Stored:
    return change_events.append(declaration, output, ids)


@_store.register(WriteDeclaration)
def store_write(declaration: WriteDeclaration, output: Output, ids: RunIds) -> Stored:
    """Write the rows of an output as a write declaration says, without a merge."""
    predicate = _replaced(declaration, output)
    output.target.prepare(output.rows)
    start = output.target.start_of_write(adds_only=declaration.adds_only, predicate=predicate)
    written = write_output(declaration, output, predicate, ids, ids.of_partitions(), start)
    if written.version is None and ids.applied:
        output.context.log.info(f"Nothing is written: the table holds {', '.join(ids.applied)}.")
    of_partitions = predicate is not None and not declaration.replace_where
    stored = _recorded_write(output, written, declaration.mode, predicate, of_partitions)
    return replace(stored, record_before=_record_before(ids, is_held=written.version is None))


def _record_before(ids: RunIds, *, is_held: bool) -> Callable[[], Mapping[str, Any]] | None:
    """Return what records that the table held the run's rows before; None if it did not."""
    return ids.record_applied_before if is_held and ids.applied else None


def rebuild(output: Output) -> Stored:
    """Rebuild the table of an output, or only the rows of the run's partitions."""
    context, declaration, target = output.context, output.declaration, output.target
    if not declaration.can_be_rebuilt:
        raise StatementError(
            "a table that change events keep is not rebuilt from some of them.",
            table=output.table.path_or_name,
            operation="full refresh",
            hint="Drop the table, then apply all events again: their order does not matter.",
        )
    if lacking := set(output.partitions).difference(output.returned_partitions):
        raise StatementError(
            f"the asset returned no rows of {', '.join(sorted(lacking))}, and no partition can be "
            "rebuilt from None.",
            table=output.table.path_or_name,
            operation="full refresh",
            hint="Return a DataFrame without rows for a partition that is to be empty.",
        )
    target.refuse_missing_columns(output.rows)
    is_of_all = covers_all_partitions(context, output.partitions)
    ids = ids_of_refresh(output, is_of_all=is_of_all)
    ids = replace(ids, applied={**ids.applied, **order_of_refresh(output, is_of_all=is_of_all)})
    # Without an expression this is an error, because the other partitions' rows would be lost.
    predicate = None if is_of_all else _partition_predicate(output)
    output = replace(output, rows=_rows_by_key(declaration, output, is_rebuilt=True))
    target.prepare(output.rows)
    start = target.start_of_write(predicate=predicate)
    written = rebuild_output(output, predicate, ids, ids.of_partitions(), start)
    return _recorded_write(output, written, "full refresh", predicate, predicate is not None)


def store_nothing(context: OutputContext, tables: TableLocator) -> None:
    """Record that there was nothing to store, for each of the run's partitions."""
    key = context.asset_key
    declared = declaration_of(context)
    if declared is not None and output_is_full_refresh(context):
        raise StatementError(
            "the asset returned None, and no table can be rebuilt from None.",
            table=tables.path_or_name(key, declared),
            operation="full refresh",
            hint="Return all rows, or a DataFrame without rows to empty the table; or run it "
            f"without the tag {FULL_REFRESH_TAG}.",
        )
    context.log.info("The asset returned None: nothing is written.")
    _record_nothing(declared, context, tables)
    if declared is not None:
        nothing = MetadataValue.text("nothing: the asset returned None")
        context.add_output_metadata({"write/mode": nothing})
        if lists_partitions(context):
            record_listed_partitions(context, output_partition_keys(context))


@singledispatch
def _record_nothing(
    declared: TableDeclaration | None, context: OutputContext, tables: TableLocator
) -> None:
    """Record that a table, if it exists, did not change."""
    key = context.asset_key
    try:
        location = table_location(context.definition_metadata, asset=key.to_user_string())
        table = tables.table(key, location) if tables.is_known(location) else None
        if table is None or not table.exists():
            return
    except DeltaweaveError:
        if declared is not None:
            raise
        return  # an asset that declares no table needs no location for one
    after = Recording(context, [])
    after.attempt(
        "this run",
        lambda: RunIds(context, table, output_partition_keys(context)).record_nothing_merged(),
    )
    if after.warnings:
        after.add_metadata({})
    record_unchanged(context, table)


@_record_nothing.register(MergeOnReadDeclaration)
def _record_no_batch(
    declared: MergeOnReadDeclaration, context: OutputContext, tables: TableLocator
) -> None:
    record_data_version(context, open_merge_on_read(tables, declared).newest_batch())


@singledispatch
def _rows_by_key(
    declaration: TableDeclaration,  # noqa: ARG001 - its kind decides
    output: Output,
    *,
    is_rebuilt: bool,  # noqa: ARG001 - for merges
) -> DataFrame:
    """Return the rows of an output that are stored: all, or one for each key of a merge."""
    return output.rows


@_rows_by_key.register(MergeDeclaration)
def _one_row_for_each_key(
    declaration: MergeDeclaration, output: Output, *, is_rebuilt: bool
) -> DataFrame:
    definition = output.context.asset_spec.partitions_def
    positions = partition_positions(definition, output.context.step_context.instance)
    run = RunPartitions(definition, output.partitions, positions)
    changes = replace(output.changes, rows=output.rows)
    return one_row_for_each_key(output.table, declaration, changes, run, is_rebuilt=is_rebuilt)


def merge_output(
    declaration: MergeDeclaration,
    output: Output,
    ids: RunIds,
    lease: Lease | None,
    recorded: Mapping[str, int],
) -> MergeResult:
    """Run the declared statement over a temporary view of the changes."""
    changes, lease = output.rows, lease or Lease(None, -1)
    with _declared_statement(output.table, declaration, changes) as statement:
        return deltaweave.merge(
            changes.sparkSession,
            statement,
            idempotency=ids.single,
            applied_before=ids.before,
            lease=replace(lease, marks={**lease.marks, **recorded}),
            skip_unchanged_updates=declaration.skip_unchanged_updates,
        )


def _statement_over(
    table: Table, declaration: MergeDeclaration, changes: DataFrame
) -> Callable[[str], str]:
    """Return the declared statement as a function of the name of the changes."""
    target = table_name(table.path_or_name)
    return lambda source: declaration.statement(target, source, changes.columns)


def _explained(table: Table, declaration: MergeDeclaration, changes: DataFrame) -> MergePlan:
    """Explain what the declared statement is expected to do."""
    with _declared_statement(table, declaration, changes) as statement:
        return deltaweave.explain(changes.sparkSession, statement)


@contextmanager
def _declared_statement(
    table: Table, declaration: MergeDeclaration, changes: DataFrame
) -> Iterator[str]:
    """Yield the declared statement over a temporary view of the changes.

    Errors of a generated statement name the arguments that its author wrote.
    """
    statement = _statement_over(table, declaration, changes)
    try:
        with _view(changes) as view:
            yield statement(view)
    except StatementError as error:
        if declaration.merge_text is None and error.hint == CORRECT_STATEMENT:
            error.restate(
                hint="Correct on=, clauses= or the other arguments of the asset. They give this "
                f"statement:\n{statement('changes')}"
            )
        raise


@contextmanager
def _view(changes: DataFrame) -> Iterator[str]:
    view = f"changes_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        try:
            changes.sparkSession.catalog.dropTempView(view)
        except Exception:  # the session ended, but its commit stands
            _logger.warning("The view %s stays", view, exc_info=True)


def write_output(
    declaration: WriteDeclaration,
    output: Output,
    predicate: str | None,
    ids: RunIds,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Append the rows, or replace all rows or those of the predicate with them."""
    if predicate is not None:
        _check_predicate(output.table, predicate)
    return output.table.write(
        output.rows,
        "append" if declaration.adds_only else "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=ids.applied,
        once=True,
        applied_before=ids.before,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


def rebuild_output(
    output: Output,
    predicate: str | None,
    ids: RunIds,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Replace all rows, or those of the predicate, with what an empty table would get."""
    declaration, table = output.declaration, output.table
    if predicate is not None:
        _check_predicate(table, predicate)
    return table.write(
        _rows_of_empty_table(declaration, table, output.rows),
        "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=ids.applied,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


@singledispatch
def _rows_of_empty_table(
    declaration: TableDeclaration,  # noqa: ARG001 - its kind decides
    table: Table,  # noqa: ARG001 - for merges
    changes: DataFrame,
) -> DataFrame:
    """Return the rows that changes leave in an empty table."""
    return changes


@_rows_of_empty_table.register(MergeDeclaration)
def _inserted_rows(declaration: MergeDeclaration, table: Table, changes: DataFrame) -> DataFrame:
    """Return the rows that the merge would insert into an empty table, where no row matches."""
    inserts = [clause for clause in declaration.clauses if clause.kind == "not_matched"]
    if not inserts:
        raise StatementError(
            "a full refresh takes the rows that the asset's clauses insert, and there are none."
            if declaration.clauses
            else "a full refresh cannot be derived from a MERGE text.",
            table=table.path_or_name,
            operation="full refresh",
            hint="Declare the merge by keys or on, with a clause that inserts.",
        )
    source = changes.alias("s")
    taken = F.lit(False)
    rows: DataFrame | None = None
    with translated(table.path_or_name, operation="full refresh"):
        for clause in inserts:
            wanted = takes(changes.sparkSession, clause)
            own = source.where(wanted & ~taken).select(*_values(clause, declaration, changes))
            rows = own if rows is None else rows.unionByName(own, allowMissingColumns=True)
            taken = taken | wanted
    assert rows is not None
    return rows


def _values(clause: Clause, declaration: MergeDeclaration, changes: DataFrame) -> Sequence[Column]:
    if clause.action == "insert_all":
        names = declaration.table_columns(changes.columns)
        return [column("s", name) for name in names]
    assignments = clause.assignments or {}
    return [
        parsed_expression(changes.sparkSession, str(value)).alias(unquoted(name))
        for name, value in assignments.items()
    ]


def _check_predicate(table: Table, predicate: str) -> None:
    """Fail before anything is written if the predicate does not fit the table."""
    with translated(table.path_or_name, operation="overwriting", otherwise=StatementError):
        table.read().where(parsed_expression(table.spark, predicate))


def _replaced(declaration: WriteDeclaration, output: Output) -> str | None:
    """Return the predicate of the rows that a write replaces; None if it replaces all or none."""
    if declaration.adds_only:
        return None
    if declaration.replace_where is not None:
        return declaration.replace_where
    if declaration.mode == "overwrite" and output.context.asset_spec.partitions_def is None:
        return None
    return _partition_predicate(output)


def _partition_predicate(output: Output) -> str:
    declaration, table = output.declaration, output.table
    return partition_predicate(
        output.context.asset_spec.partitions_def,
        output.returned_partitions,
        declaration.partition_expr,
        table=table.path_or_name,
        # A table that does not exist yet has no columns, so take those of the changes.
        rows=(
            table.read()
            if output.target.is_written()
            else declaration.table_rows(output.changes.rows)
        ),
    )


def _recorded_merge(
    output: Output,
    result: MergeResult,
    statement: Callable[[str], str] | None = None,
    plan: MergePlan | None = None,
) -> Stored:
    """Return how a merge is recorded."""
    return Stored(
        result.version, lambda: record_merge(output, result, statement, plan), result.warnings
    )


def _recorded_write(
    output: Output, written: WriteResult, how: str, predicate: str | None, of_partitions: bool
) -> Stored:
    """Return how a write is recorded: as declared, or as a full refresh."""
    return Stored(
        written.version,
        lambda: record_write(output, written, how, predicate, is_of_partitions=of_partitions),
        written.warnings,
    )
