"""Stores an output in the table of its asset: each declaration says how.

`store` adds an output to its table and `rebuild` replaces the table's rows by it; `store_nothing`
is for a function that returned None. The kinds of declarations are registered below with what
differs between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce, singledispatch
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue
from pyspark.sql import functions as F

import deltaweave
from dagster_deltaweave.io_manager import change_events
from dagster_deltaweave.io_manager.frames import viewed
from dagster_deltaweave.io_manager.merge_order import lease_of_run, order_of_refresh
from dagster_deltaweave.io_manager.output import (
    Output,
    Recording,
    Stored,
    declaration_of,
    record_listed_partitions,
)
from dagster_deltaweave.io_manager.rows_by_key import (
    RunPartitions,
    keys_may_be_elsewhere,
    one_row_for_each_key,
    refuse_keys_elsewhere,
    takes,
)
from dagster_deltaweave.io_manager.step_attempts import retry_run_if_transient
from dagster_deltaweave.io_manager.target_table import Start
from dagster_deltaweave.io_manager.transaction_ids import (
    RunIds,
    ids_of_refresh,
    ids_of_run,
    records_delivery,
    tag_as_recorded,
    tags_of_output,
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
    IDENTITY_TAG,
    NO_TABLE,
    covers_all_partitions,
    held_assets,
    lists_partitions,
    output_is_full_refresh,
    output_partition_keys,
    parent_of,
    partition_positions,
    partition_predicate,
    written_tag,
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
    from dagster import DagsterRun, OutputContext
    from pyspark.sql import Column, DataFrame

    from deltaweave import Table, WriteResult
    from deltaweave.clauses import Clause


def store(output: Output) -> Stored:
    """Add an output to its table as declared: merge, apply, append or write it."""
    declaration, ids = output.declaration, ids_of_run(output)
    # Rows of a delivery that replaced the run's would be appended once more by its own run.
    is_appended = declaration.adds_only and not ids.are_in_table()
    is_of_delivery = is_appended or declaration.idempotent_by == "delivery"
    if is_of_delivery and len(output.partitions) == 1:
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
    context, lease, plan = output.context, Lease(None, -1), None
    if not ids.are_in_table():
        lease = lease_of_run(output) or lease
        # Other runs may have inserted these keys during the wait.
        output = replace(output, rows=_rows_by_key(declaration, output, is_rebuilt=False))
    output.target.prepare(output.rows)
    spark, statement = output.rows.sparkSession, _statement_over(declaration, output)
    if url := spark.sparkContext.uiWebUrl:
        # No metadata: the link would outlive the driver.
        context.log.info(f"The merge's jobs are in the Spark UI while its driver runs: {url}")
    with viewed(output.rows) as view, _naming_arguments(declaration, statement):
        if output.options.explain:
            plan = deltaweave.explain(spark, statement(view))
            context.log.info(f"Before the merge:\n{plan}")
        with listening(context.log.info):
            result = deltaweave.merge(
                spark,
                statement(view),
                idempotency=ids.single,
                applied_before=ids.before,
                lease=replace(lease, marks={**lease.marks, **ids.of_partitions()}),
                skip_unchanged_updates=declaration.skip_unchanged_updates,
            )
    return Stored(
        result.version,
        lambda: record_merge(output, result, statement, plan),
        result.warnings,
        _record_before(ids, is_held=result.was_applied_before),
    )


@_store.register(ChangesDeclaration)
def _apply(declaration: ChangesDeclaration, output: Output, ids: RunIds) -> Stored:
    context, table = output.context, output.table
    with listening(context.log.info):
        result = deltaweave.apply_changes(
            output.rows.sparkSession,
            table.path_or_name,  # a table that is missing is created
            output.rows,
            **declaration.arguments,
            idempotency=ids.single,
        )

    def record() -> Mapping[str, Any]:
        rescued = change_events.rescued_metadata(context, table, declaration.rescued)
        return {**record_merge(output, result), **rescued}

    return Stored(result.version, record, result.warnings)


@_store.register(MergeOnReadDeclaration)
def _append(declaration: MergeOnReadDeclaration, output: Output, ids: RunIds) -> Stored:
    return change_events.append(declaration, output, ids)


@_store.register(WriteDeclaration)
def store_write(declaration: WriteDeclaration, output: Output, ids: RunIds) -> Stored:
    """Write the rows of an output as a write declaration says, without a merge."""
    predicate = _replaced(declaration, output)
    output.target.prepare(output.rows)
    start = output.target.start_of_write(adds_only=declaration.adds_only, predicate=predicate)
    written = write_output(output, ids, predicate, start)
    if written.version is None and ids.applied:
        output.context.log.info(f"Nothing is written: the table holds {', '.join(ids.applied)}.")
    is_of_partitions = predicate is not None and not declaration.replace_where
    stored = _recorded_write(output, written, declaration.mode, predicate, is_of_partitions)
    return replace(stored, record_before=_record_before(ids, is_held=written.version is None))


def _record_before(ids: RunIds, *, is_held: bool) -> Callable[[], Mapping[str, Any]] | None:
    """Return the function that records that the table held the run's rows; None if it did not."""
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
    # Without an expression this is an error, because the other partitions' rows would be lost.
    predicate = None if is_of_all else _partition_predicate(output)
    order = order_of_refresh(output, is_of_all=is_of_all)
    ids = replace(ids, applied={**ids.applied, **order})
    rows = _rows_of_empty_table(declaration, output)
    replaced = predicate
    if isinstance(declaration, MergeDeclaration) and predicate is not None:
        may_be_elsewhere = keys_may_be_elsewhere(declaration)
        if may_be_elsewhere and target.is_written():
            refuse_keys_elsewhere(output.table, declaration, rows, predicate)
        if order or may_be_elsewhere:
            # Any commit since conflicts: it may be of a newer partition, or insert the same keys.
            replaced = None
    target.prepare(output.rows)
    start = target.start_of_write(predicate=replaced)
    written = write_output(replace(output, rows=rows), ids, predicate, start, is_rebuilt=True)
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


def store_held(context: OutputContext, tables: TableLocator) -> bool:
    """Record that the table holds the run's delivery already, if it does; then nothing is written.

    The sensor said so when it requested the run. Or the table's own record of the partition says it
    of a run that the sensor has just requested: where it cannot read the table's log, it knows only
    the runs that Dagster still has. Who executes a run again wants its rows again.

    No record of the partition is made, because a RESTORE may have undone the merge since.

    Returns:
        Whether the table holds it. It does not if it was dropped since.
    """
    key, declared = context.asset_key, declaration_of(context)
    if key in held_assets(tags_of_output(context)):
        if _repeats_success(context):
            return False
        location = table_location(context.definition_metadata, asset=key.to_user_string())
        table = tables.table(key, location)
        is_held = table.exists()
    elif isinstance(declared, (MergeDeclaration, WriteDeclaration)) and _is_of_new_run(context):
        with retry_run_if_transient(declared.retries, context):
            table = tables.table(key, declared)
            is_held = records_delivery(context, table)
    else:
        return False
    if not is_held:
        return False
    after = Recording(context, [])
    context.log.info("Nothing is written: the table holds the delivery.")
    after.attempt("this run", lambda: tag_as_recorded(context))
    record_unchanged(context, table)
    after.add_metadata({"write/mode": MetadataValue.text("nothing: the table held the delivery")})
    return True


def _repeats_success(context: OutputContext) -> bool:
    """Return whether a run that succeeded is executed again, also after attempts that failed."""
    step = context.step_context
    run: DagsterRun | None = step.dagster_run
    while run is not None and (parent := parent_of(run)):
        run = step.instance.get_run_by_id(parent)
        if run is not None and run.is_success:
            return True
    return False


def _is_of_new_run(context: OutputContext) -> bool:
    """Return whether a sensor requested the run for a delivery, and it executes none again."""
    tags, run = tags_of_output(context), context.step_context.dagster_run
    is_requested = written_tag(tags, IDENTITY_TAG) is not None
    return is_requested and parent_of(run) is None and len(output_partition_keys(context)) == 1


@singledispatch
def _record_nothing(
    declared: TableDeclaration | None, context: OutputContext, tables: TableLocator
) -> None:
    """Record that a table, if it exists, did not change."""
    key = context.asset_key
    try:
        location = table_location(context.definition_metadata, asset=key.to_user_string())
        table = tables.table(key, location) if tables.is_known(location) else None
        has_table = table is not None and table.exists()
    except DeltaweaveError:
        if declared is not None:
            raise
        return  # an asset that declares no table needs no location for one
    after = Recording(context, [])
    if table is None or not has_table:
        if declared is not None and output_partition_keys(context):
            after.attempt("this run", lambda: tag_as_recorded(context, NO_TABLE))
        return
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


def _rows_by_key(declaration: MergeDeclaration, output: Output, *, is_rebuilt: bool) -> DataFrame:
    """Return the rows of a merge with one row for each key."""
    definition = output.context.asset_spec.partitions_def
    positions = partition_positions(definition, output.context.step_context.instance)
    run = RunPartitions(definition, output.returned_partitions, positions)
    changes = replace(output.changes, rows=output.rows)
    with _naming_arguments(declaration, _statement_over(declaration, output)):
        return one_row_for_each_key(output.table, declaration, changes, run, is_rebuilt=is_rebuilt)


def _statement_over(declaration: MergeDeclaration, output: Output) -> Callable[[str], str]:
    """Return the declared statement as a function of the name of the changes."""
    target, columns = table_name(output.table.path_or_name), output.rows.columns
    return lambda source: declaration.statement(target, source, columns)


@contextmanager
def _naming_arguments(
    declaration: MergeDeclaration, statement: Callable[[str], str]
) -> Iterator[None]:
    """Let errors of a generated statement name the arguments that its author wrote."""
    try:
        yield
    except StatementError as error:
        if declaration.merge_text is None and error.hint == CORRECT_STATEMENT:
            error.restate(
                hint="Correct on=, clauses= or the other arguments of the asset. They give this "
                f"statement:\n{statement('changes')}"
            )
        raise


def write_output(
    output: Output,
    ids: RunIds,
    predicate: str | None,
    start: Start,
    *,
    is_rebuilt: bool = False,
) -> WriteResult:
    """Append the rows, or replace all rows or those of the predicate with them."""
    declaration, table = output.declaration, output.table
    if predicate is not None:
        _check_predicate(table, predicate)
    return table.write(
        output.rows,
        "append" if declaration.adds_only and not is_rebuilt else "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=ids.applied,
        once=not is_rebuilt,
        applied_before=None if is_rebuilt else ids.before,
        recorded=ids.of_partitions(),
        computed_from=start.version,
        reads_all=start.reads_all,
    )


@singledispatch
def _rows_of_empty_table(
    declaration: TableDeclaration,  # noqa: ARG001 - its kind decides
    output: Output,
) -> DataFrame:
    """Return the rows that an output leaves in an empty table."""
    return output.rows


@_rows_of_empty_table.register(MergeDeclaration)
def _inserted_rows(declaration: MergeDeclaration, output: Output) -> DataFrame:
    """Return the rows that the merge would insert into an empty table, where no row matches."""
    name = output.table.path_or_name
    inserts = [clause for clause in declaration.clauses if clause.kind == "not_matched"]
    if not inserts:
        raise StatementError(
            "a full refresh takes the rows that the asset's clauses insert, and there are none."
            if declaration.clauses
            else "a full refresh cannot be derived from a MERGE text.",
            table=name,
            operation="full refresh",
            hint="Declare the merge by keys or on, with a clause that inserts.",
        )
    changes, taken = _rows_by_key(declaration, output, is_rebuilt=True), F.lit(False)
    source = changes.alias("s")
    parts: list[DataFrame] = []
    with translated(name, operation="full refresh"):
        for clause in inserts:
            wanted = takes(changes.sparkSession, clause)
            values = _values(clause, declaration, changes)
            parts.append(source.where(wanted & ~taken).select(*values))
            taken = taken | wanted
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _values(clause: Clause, declaration: MergeDeclaration, changes: DataFrame) -> Sequence[Column]:
    if clause.action == "insert_all":
        return [column("s", name) for name in declaration.table_columns(changes.columns)]
    return [
        parsed_expression(changes.sparkSession, str(value)).alias(unquoted(name))
        for name, value in (clause.assignments or {}).items()
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


def _recorded_write(
    output: Output,
    written: WriteResult,
    how: str,
    predicate: str | None,
    is_of_partitions: bool,
) -> Stored:
    """Return how a write is recorded: as declared, or as a full refresh."""
    return Stored(
        written.version,
        lambda: record_write(output, written, how, predicate, is_of_partitions=is_of_partitions),
        written.warnings,
    )
