"""`apply_changes` keeps a table current by change events, in whatever order they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Column

from deltaweave._validation import options_of
from deltaweave.changes.current import (
    OWN_COLUMNS,
    apply_to_current_rows,
    as_in_table,
    current_row_columns,
)
from deltaweave.changes.delivery import EventBatch, id_of_batch, rescue, rescued_table
from deltaweave.changes.events import Events, EventShape, read_events
from deltaweave.changes.history import END, START, Histories, Remembered, history_columns
from deltaweave.changes.options import (
    ChangeOptions,
    check_columns,
    check_names_are_free,
    check_types_are_known,
    properties_of_new,
    schema_of,
    wrong,
)
from deltaweave.changes.side_tables import (
    SideTable,
    Tombstones,
    check_are_of,
    check_has_keys,
    completed,
)
from deltaweave.changes.table_columns import TableColumns
from deltaweave.delta.commit import retried_after_conflict
from deltaweave.delta.jvm import active, in_session, own_session, translated
from deltaweave.engine.report import MergeResult
from deltaweave.errors import SourceError, StatementError
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def apply_changes(  # noqa: PLR0913 - the public options
    spark: SparkSession,
    target: str,
    source: DataFrame | str,
    *,
    keys: Sequence[str],
    sequence_by: str | Column,
    apply_as_deletes: str | Column | None = None,
    apply_as_truncates: str | Column | None = None,
    ignore_null_updates: bool = False,
    present_columns: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    message_column: str | None = None,
    rescued: str | bool = False,
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    late_by: timedelta = timedelta(days=7),
    idempotency: tuple[str, int] | None = None,
) -> MergeResult:
    """Apply a batch of change events to a table, on deltaweave's engine.

    The table is the same in whatever order events arrive, however they are batched, and however
    often each of them arrives. The parameters have the names of Spark's `create_auto_cdc_flow`.

    Each event inserts, updates or deletes the row of its key. The newest event of a key wins, by
    `sequence_by` and not by arrival. If events of a key have the same sequence, a delete wins;
    among upserts, the one with the greater digest of its values wins, which is arbitrary but always
    the same one. An event that cannot be applied, e.g. without a sequence or with a null in its
    key, is an error, and nothing of its batch is applied; or it is `rescued`.

    A target that does not exist is created, with deletion vectors. In addition to the events'
    columns, a table of current rows has `_cdc_sequence` and, if events may leave columns out,
    `_cdc_column_sequences`. Add these columns to an existing table first. Rows without a sequence
    count as older than every event.

    Args:
        spark: A Delta-enabled session.
        target: Path or catalog name of the table.
        source: The events, as a DataFrame or the name of a table.
        keys: Columns that identify a row.
        sequence_by: SQL expression or Column that orders the events of a key: a number, a time, a
            string, or a struct of these to break ties.
        apply_as_deletes: Condition of events that delete their key's row.
        apply_as_truncates: Condition of events that delete all rows older than they are. In
            histories, such an event is an error.
        ignore_null_updates: Whether nulls in an upsert leave the columns as they are.
        present_columns: Column with the names of the columns that an event sets: an array of
            strings, or null for all. Other columns stay as they are. A null in a named column is
            written. It is not a column of the table.
        column_list: Columns of the source that are columns of the table; by default all.
        except_column_list: Columns of the source that are not columns of the table; give only one
            of the two lists.
        message_column: Column with the message of an event: a struct of `place` (where it is),
            `problem` (what is wrong with it; null if nothing) and `event` (its text), all strings.
            `absent`, an array, may name columns that it does not have: a warning names those that
            no message of a batch has. `cut`, an array, may name columns whose value lost digits: an
            event with a key among them is refused. It is not a column of the table.
        rescued: Path or name of a table that takes the events which cannot be applied: those
            without a sequence, with a null in their key, with a problem in their message, or with
            names of missing columns. It has the columns `id`, `rescued_at`, `reason`,
            `message`, `event` (JSON of the source's row, or the message's text) and `target` (the
            location of the target), and an event of a target once. True for the target's path or
            name with `_rescued` appended. By default such an event is an error.
        stored_as_scd_type: 1 for current rows; 2 for histories, with a row for each version of a
            key, from `__START_AT` to before `__END_AT`, which is null for the newest.
        track_history_column_list: Columns whose change begins a version; by default all but the
            keys. A change of other columns alone updates the current version.
        track_history_except_column_list: Columns whose change begins no version; give only one of
            the two lists.
        late_by: How long after an event older events of its key may still arrive. For this time a
            side table remembers deletes, and events that histories do not show. An older event that
            arrives later than that may bring a deleted row back.
        idempotency: See `deltaweave.merge`.

    Returns:
        What the merge into the target did.

    Raises:
        StatementError: Arguments or the table's columns do not fit.
        SourceError: Events cannot be applied and are not `rescued`, or they could not be read.
        CommitStateUnknownError: The commit failed, and it is unknown whether it took effect.
        DeltaweaveError: Anything else; the target is as it was, or empty if it was created here.
    """
    options, table = options_of(ChangeOptions, locals()), Table(spark, target)
    rows = spark.table(source) if isinstance(source, str) else source
    with active(spark), own_session(spark) as own:
        if own is not spark:
            table, rows = Table(own, target), in_session(rows, own)
        return _apply_batch(table, rows, options, idempotency)


def _apply_batch(
    table: Table, rows: DataFrame, options: ChangeOptions, idempotency: tuple[str, int] | None
) -> MergeResult:
    """Apply a batch of change events to a table; see `apply_changes`."""
    shape = options.shape(table, rows)
    columns = shape.columns
    if options.keeps_histories:
        own = {START.lower(), END.lower()}
        names = (*shape.keys, *shape.columns)
        check_names_are_free(table, [name for name in names if name.lower() in own])
        columns = _history_columns(table, shape)
    options.tracked(table, columns)  # fails before the source is read
    rescues = rescued_table(table, options.rescued) is not None
    events = read_events(rows, shape, table=table.path_or_name, rescues=rescues)
    try:
        if options.keeps_histories and events.truncated is not None:
            raise _not_emptied(table)
        columns_beside = history_columns if options.keeps_histories else current_row_columns
        schema = schema_of(events, columns_beside(events))
        check_types_are_known(table, events, schema)
        properties = properties_of_new(shape, schema)
        with id_of_batch(table, idempotency) as transaction_id:
            table.create_if_missing(schema, properties=properties, for_a_write=True)
            check_columns(table, schema)
            if events.unusable is not None:
                _check_remembered_keys(table, shape, keeps_histories=options.keeps_histories)
            rescue(events, table, options.rescued, holder=table, transaction_id=transaction_id)
            delivery = EventBatch.of(table, transaction_id)
            if options.keeps_histories:
                result = _to_histories(table, events, options, delivery)
            else:
                result = _to_current_rows(table, events, options.late_by, delivery)
        return _with_findings(result, events)
    finally:
        events.release()


def _check_remembered_keys(table: Table, shape: EventShape, *, keeps_histories: bool) -> None:
    """Fail before events are rescued if the table's side table has other names for keys."""
    kind: type[SideTable] = Remembered if keeps_histories else Tombstones
    own = (START, END) if keeps_histories else OWN_COLUMNS
    kept_in = kind.of(table).kept_in
    if kept_in.exists():
        columns = TableColumns.of(table.snapshot(), own)
        check_has_keys(kept_in.snapshot(), replace(shape, table=columns))


def _with_findings(result: MergeResult, events: Events) -> MergeResult:
    """Add what was found in the batch to the result."""
    warnings = (*result.warnings, *events.warnings)
    return replace(result, num_events_rescued=events.num_unusable, warnings=warnings)


def _not_emptied(table: Table) -> StatementError:
    return wrong(
        table,
        "an event empties the table, and a table of histories is not emptied.",
        "Leave it out (rows of debezium_changes: .where(\"_cdc_op <> 't'\")), and give each key of "
        "the table a delete with its sequence: docs/how-to/debezium.md shows how.",
    )


# Applying a batch is idempotent, so it may be repeated as a whole. Each attempt reads the table's
# columns again, because another table may have replaced it.
@retried_after_conflict
def _to_histories(
    table: Table, events: Events, options: ChangeOptions, delivery: EventBatch
) -> MergeResult:
    remembered = Remembered.of(table)
    if remembered.are_partial():
        events = events.naming_columns()
    whole = _completed(events, table, TableColumns.of(table.snapshot(), (START, END)))
    tracked = options.tracked(table, whole.shape.columns)
    histories = Histories(table, whole, tracked, remembered, options.late_by)
    return histories.apply(delivery)


@retried_after_conflict
def _to_current_rows(
    table: Table, events: Events, late_by: timedelta, delivery: EventBatch
) -> MergeResult:
    read = table.snapshot()
    events, columns = as_in_table(events, read), TableColumns.of(read, OWN_COLUMNS)
    shape = events.shape
    if not shape.is_partial:
        # In current rows, columns that the events lack keep their values.
        columns = columns.only([*shape.keys, *shape.columns])
    whole = _completed(events, table, columns)
    tombstones = Tombstones.of(table)
    newest = tombstones.settle()
    check_are_of(newest, whole)
    terms = delivery.commit_terms(newest)
    noting = tombstones.noting(whole, late_by, None if terms.is_applied else delivery.noted)
    lease = terms.lease(noting.noted)
    return apply_to_current_rows(table, whole, tombstones, noting, lease, terms.idempotency)


def _completed(events: Events, table: Table, columns: TableColumns) -> Events:
    """Complete the events as `completed` does, and raise errors as those of this operation."""
    with translated(table.path_or_name, operation="applying changes", otherwise=SourceError):
        return completed(events, columns)


def _history_columns(table: Table, shape: EventShape) -> tuple[str, ...]:
    """Return the columns of the events and of a table of histories, without the keys."""
    if not table.exists():
        return shape.columns
    columns = TableColumns.of(table.snapshot(), (START, END))
    further = columns.lacking([*shape.keys, *shape.columns])
    return (*shape.columns, *[field.name for field in further])
