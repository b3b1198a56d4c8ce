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
from typing import TYPE_CHECKING
from uuid import uuid4

from dagster import MetadataValue
from pyspark.sql import functions as F

import deltaweave
from dagster_deltaweave.io_manager import change_events
from dagster_deltaweave.io_manager.merge_order import lease_of_run, marks_of_refreshed
from dagster_deltaweave.io_manager.output import (
    Output,
    Recording,
    Stored,
    record_listed_partitions,
)
from dagster_deltaweave.io_manager.rows_by_key import RunPartitions, one_row_for_each_key, takes
from dagster_deltaweave.io_manager.run_options import declaration_of
from dagster_deltaweave.io_manager.target_table import (
    Start,
    is_written,
    prepare_table,
    refuse_missing_columns,
    start_of_write,
)
from dagster_deltaweave.io_manager.transaction_ids import (
    Marks,
    first_attempt,
    marks_of_refresh,
    marks_of_run,
    partition_records,
    record_nothing_merged,
)
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
    output_is_full_refresh,
    output_partition_keys,
    partition_positions,
    partition_predicate,
    tags_of_run,
)
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    TableLocator,
    WriteDeclaration,
    open_merge_on_read,
    table_place,
)
from deltaweave import Lease
from deltaweave.delta.jvm import translated
from deltaweave.engine.phases import telling
from deltaweave.errors import CORRECT_STATEMENT, DeltaweaveError, StatementError
from deltaweave.identifiers import column, table_name, unquoted

if TYPE_CHECKING:
    from dagster import OutputContext
    from pyspark.sql import Column, DataFrame

    from deltaweave import MergePlan, MergeResult, Table, WriteResult
    from deltaweave.clauses import Clause

_logger = logging.getLogger(__name__)


def store(declaration: TableDeclaration, output: Output) -> Stored:
    """Add an output to its table as declared: merge, apply, append or write it."""
    step = output.context.step_context
    tags = tags_of_run(step.dagster_run, step.instance)
    key, table = output.context.asset_key, output.table
    marks = marks_of_run(
        key,
        declaration,
        output.changes,
        table=table,
        upstreams=output.upstreams,
        partitions=output.partitions,
        tags=tags,
        first_attempt=lambda: first_attempt(step.instance, step.dagster_run, key),
    )
    if declaration.idempotent_by == "delivery" and len(output.partitions) == 1:
        [partition] = output.partitions
        rows = rows_of_delivery(output.rows, partition, tags, table=table.path_or_name)
        output = replace(output, rows=rows)
    refuse_missing_columns(table, declaration, output.rows)
    return _stored(declaration, output, marks)


@singledispatch
def _stored(declaration: TableDeclaration, output: Output, marks: Marks) -> Stored:
    """Store an output, and with it the transaction ids of what it applies."""
    raise NotImplementedError(f"nothing stores the output of a {type(declaration).__name__}")


@_stored.register(MergeDeclaration)
def _merged(declaration: MergeDeclaration, output: Output, marks: Marks) -> Stored:
    context, table, lease = output.context, output.table, None
    if not marks.are_in(table):
        lease = lease_of_run(context, table, declaration, output.partitions, output.wait_seconds)
        # Not before: the runs that this one waited for have changed which keys are new.
        output = replace(output, rows=_rows_by_key(declaration, output, is_rebuilt=False))
    rows = output.rows
    prepare_table(table, declaration, rows, context.asset_spec.description)
    if url := table.spark.sparkContext.uiWebUrl:
        # No metadata: the link would outlive the driver.
        context.log.info(f"The merge's jobs are in the Spark UI while its driver runs: {url}")
    plan = _explained(table, declaration, rows) if output.explain else None
    if plan is not None:
        context.log.info(f"Before the merge:\n{plan}")
    with telling(context.log.info):
        recorded = partition_records(context, table, output.partitions)
        result = merge_output(table, declaration, rows, marks, lease, recorded)
    return _recorded_merge(output, result, _statement_over(table, declaration, rows), plan, marks)


@_stored.register(ChangesDeclaration)
def _applied(declaration: ChangesDeclaration, output: Output, marks: Marks) -> Stored:
    with telling(output.context.log.info):
        result = deltaweave.apply_changes(
            output.rows.sparkSession,
            output.table.path_or_name,  # a table that is missing is created
            output.rows,
            **declaration.arguments,
            idempotency=marks.pair,
        )
    stored = _recorded_merge(output, result)
    return replace(
        stored,
        record=lambda: {
            **stored.record(),
            **change_events.rescued_metadata(output.context, output.table, declaration.rescued),
        },
    )


@_stored.register(MergeOnReadDeclaration)
def _appended(declaration: MergeOnReadDeclaration, output: Output, marks: Marks) -> Stored:
    return change_events.append(declaration, output, marks)


@_stored.register(WriteDeclaration)
def _written(declaration: WriteDeclaration, output: Output, marks: Marks) -> Stored:
    context, table = output.context, output.table
    predicate = _replaced(declaration, output)
    prepare_table(table, declaration, output.rows, context.asset_spec.description)
    start = start_of_write(context, table, adds_only=declaration.adds_only, predicate=predicate)
    recorded = partition_records(context, table, output.partitions)
    written = write_output(table, declaration, output.rows, predicate, marks, recorded, start)
    of_partitions = predicate is not None and not declaration.replace_where
    applied_before = marks.pairs if written.version is None else {}
    stored = _recorded_write(output, written, declaration.mode, predicate, of_partitions)
    return replace(stored, applied_before=applied_before)


def rebuild(declaration: TableDeclaration, output: Output) -> Stored:
    """Rebuild the table of an output, or only the rows of the run's partitions."""
    context, table, partitions = output.context, output.table, output.partitions
    if not declaration.can_be_rebuilt:
        raise StatementError(
            "a table that change events keep is not rebuilt from some of them.",
            table=table.path_or_name,
            operation="full refresh",
            hint="Drop the table, then apply all events again: their order does not matter.",
        )
    refuse_missing_columns(table, declaration, output.rows)
    is_of_all = covers_all_partitions(context, partitions)
    marks = marks_of_refresh(
        context.asset_key,
        declaration,
        output.changes,
        table=table,
        upstreams=output.upstreams,
        partitions=partitions,
        is_of_all=is_of_all,
    )
    ordered = marks_of_refreshed(context, table, declaration, partitions, is_of_all=is_of_all)
    marks = Marks({**marks.pairs, **ordered}, marks.before)
    # Without an expression this is an error, because the other partitions' rows would be lost.
    predicate = None if is_of_all else _partition_predicate(declaration, output)
    rows = _rows_by_key(declaration, output, is_rebuilt=True)
    prepare_table(table, declaration, rows, context.asset_spec.description)
    start = start_of_write(context, table, predicate=predicate)
    recorded = partition_records(context, table, partitions)
    written = rebuild_output(table, declaration, rows, predicate, marks, recorded, start)
    return _recorded_write(output, written, "full refresh", predicate, predicate is not None)


def store_nothing(context: OutputContext, tables: TableLocator) -> None:
    """Record that there was nothing to store, for each of the run's partitions.

    Raises:
        StatementError: The run is a full refresh, where None does not mean an empty table.
    """
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
        record_listed_partitions(context, output_partition_keys(context))


@singledispatch
def _record_nothing(
    declared: TableDeclaration | None, context: OutputContext, tables: TableLocator
) -> None:
    """Record that the table, if there is one, is as it was."""
    key = context.asset_key
    try:
        place = table_place(context.definition_metadata, asset=key.to_user_string())
        table = tables.table(key, place) if tables.is_known(place) else None
        if table is None or not table.exists():
            return
    except DeltaweaveError:
        if declared is not None:
            raise
        return  # an asset that declares no table needs no place for one
    after = Recording(context, [])
    after.attempt("this run", lambda: record_nothing_merged(context, table))
    if after.warnings:
        after.add_metadata({})
    record_unchanged(context, table)


@_record_nothing.register(MergeOnReadDeclaration)
def _record_no_batch(
    declared: MergeOnReadDeclaration, context: OutputContext, tables: TableLocator
) -> None:
    record_data_version(context, open_merge_on_read(tables, declared).newest_batch())


@singledispatch
def _rows_by_key(declaration: TableDeclaration, output: Output, *, is_rebuilt: bool) -> DataFrame:
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
    table: Table,
    declaration: MergeDeclaration,
    changes: DataFrame,
    marks: Marks,
    lease: Lease | None,
    recorded: Mapping[str, int],
) -> MergeResult:
    """Run the declared statement over a temporary view of the changes."""
    lease = lease or Lease(None, -1)
    statement = _statement_over(table, declaration, changes)
    with _hinting_at_declaration(declaration, statement), _view(changes) as view:
        return deltaweave.merge(
            changes.sparkSession,
            statement(view),
            idempotency=marks.pair,
            applied_before=marks.before,
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
    statement = _statement_over(table, declaration, changes)
    with _hinting_at_declaration(declaration, statement), _view(changes) as view:
        return deltaweave.explain(changes.sparkSession, statement(view))


@contextmanager
def _hinting_at_declaration(
    declaration: MergeDeclaration, statement: Callable[[str], str]
) -> Iterator[None]:
    """Name in errors of a generated statement the arguments that its author wrote."""
    try:
        yield
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
        except Exception:  # the session is gone, but its commit stands
            _logger.warning("The view %s stays", view, exc_info=True)


def write_output(
    table: Table,
    declaration: WriteDeclaration,
    rows: DataFrame,
    predicate: str | None,
    marks: Marks,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Append the rows, or replace all rows or those of the predicate with them."""
    if predicate is not None:
        _check_predicate(table, predicate)
    return table.write(
        rows,
        "append" if declaration.adds_only else "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=marks.pairs,
        once=True,
        applied_before=marks.before,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


def rebuild_output(
    table: Table,
    declaration: TableDeclaration,
    rows: DataFrame,
    predicate: str | None,
    marks: Marks,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Replace all rows, or those of the predicate, with what an empty table would get."""
    if predicate is not None:
        _check_predicate(table, predicate)
    return table.write(
        _rows_of_empty_table(declaration, table, rows),
        "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=marks.pairs,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


@singledispatch
def _rows_of_empty_table(
    declaration: TableDeclaration, table: Table, changes: DataFrame
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
            wanted = takes(clause)
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
    return [F.expr(str(value)).alias(unquoted(name)) for name, value in assignments.items()]


def _check_predicate(table: Table, predicate: str) -> None:
    """Fail before anything is written if the predicate does not fit the table."""
    with translated(table.path_or_name, operation="overwriting", otherwise=StatementError):
        table.read().where(predicate)


def _replaced(declaration: WriteDeclaration, output: Output) -> str | None:
    """Return the predicate of the rows that a write replaces; None if it replaces all or none."""
    if declaration.adds_only:
        return None
    if declaration.replace_where is not None:
        return declaration.replace_where
    if declaration.mode == "overwrite" and output.context.asset_spec.partitions_def is None:
        return None
    return _partition_predicate(declaration, output)


def _partition_predicate(declaration: TableDeclaration, output: Output) -> str:
    table, changes = output.table, output.changes.rows
    return partition_predicate(
        output.context.asset_spec.partitions_def,
        output.partitions,
        declaration.partition_expr,
        table=table.path_or_name,
        # A table that does not exist yet has no columns, so take those of the changes.
        rows=table.read() if is_written(table) else declaration.table_rows(changes),
    )


def _recorded_merge(
    output: Output,
    result: MergeResult,
    statement: Callable[[str], str] | None = None,
    plan: MergePlan | None = None,
    marks: Marks | None = None,
) -> Stored:
    """Return how a merge is recorded."""
    context, tables, table = output.context, output.tables, output.table
    changes, partitions = output.changes, output.partitions
    return Stored(
        result.version,
        lambda: record_merge(context, tables, table, changes, partitions, statement, result, plan),
        result.warnings,
        marks.pairs if marks is not None and result.was_applied_before else {},
    )


def _recorded_write(
    output: Output, written: WriteResult, how: str, predicate: str | None, of_partitions: bool
) -> Stored:
    """Return how a write is recorded: as declared, or as a full refresh."""
    context, table, partitions = output.context, output.table, output.partitions
    return Stored(
        written.version,
        lambda: record_write(
            context, table, written, how, predicate, partitions, is_of_partitions=of_partitions
        ),
        written.warnings,
    )
