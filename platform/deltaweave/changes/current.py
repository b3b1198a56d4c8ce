"""A table of current rows (slowly changing dimension of type 1): the newest event of a key wins.

Each row has the sequence of its newest event in `_cdc_sequence`. If events may leave columns out,
each column has the value of the newest event that sets it. `_cdc_column_sequences` then has the
sequences of columns whose event is not the row's, null for columns that no event set. So a row
consists of maxima over all events of its key. It is the same in whatever order they were applied,
and a repeated event changes nothing.

A delete removes all that is older. `tombstones` remembers it once the row is deleted. An event that
empties the table removes all older rows; in a row with columns from several events, it leaves the
newer columns.

A row is combined with the changes of its key by SQL text, because Column functions need a JVM call
for each part of an expression, and a table with many columns has many expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructField

from deltaweave import clauses
from deltaweave.changes.epochs import (
    NEWEST,
    newest_changes,
    unless_emptied_in_other_log,
    unless_held_of_other_log,
    unless_of_other_log,
)
from deltaweave.changes.events import (
    COLUMN_SEQUENCES,
    DELETE,
    EVENT_VALUES,
    INSERTED,
    OPERATION,
    PREFIX,
    SEQUENCE,
    TRUNCATE,
    UPSERT,
    Events,
    EventShape,
    last_at,
    mentions,
)
from deltaweave.changes.restores import LineageLease
from deltaweave.changes.side_tables import DELETED, Noting, Tombstones
from deltaweave.clauses import Clause
from deltaweave.delta.commit import TransactionId
from deltaweave.delta.jvm import grouped, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.engine.report import MergeResult
from deltaweave.errors import SourceError
from deltaweave.identifiers import column, literal, quoted
from deltaweave.table import Table

OWN_COLUMNS = (SEQUENCE, COLUMN_SEQUENCES)
"""The columns that a table of current rows has of itself."""

UPSERTED = f"{PREFIX}upserted"
SET_SEQUENCES = f"{PREFIX}spoken_of"
"""Columns of changes: the sequences of the newest upsert and of each column."""

CHANGED = f"{PREFIX}is_changed"
"""Column of rows: whether the changes give the row other values."""

Named = Callable[[str], str]
"""Gives the SQL for a column of one side by the column's name."""

NamedColumn = Callable[[str], Column]
"""Gives a column of the row by its name."""


@dataclass(frozen=True)
class Combined:
    """The row after the changes.

    Attributes:
        is_there: Whether there is a row; evaluating it is an error if row and changes are of two
            logs that nothing tells apart.
        values: The row's columns without the keys, by name.
        differs: Whether it differs from the row before, if there is one.
    """

    is_there: str
    values: Mapping[str, str]
    differs: str


def combined(shape: EventShape, row: Named, change: Named, in_table: str = "true") -> Combined:
    """Combine a row of the table with the changes of its key; either may be missing.

    Args:
        shape: How the events were read.
        row: A column of the table's row; its sequence is null if it is older than all events.
        change: A column of the changes, without upserts that are older than the delete.
        in_table: Whether there is a row.
    """
    held, upserted, deleted = row(SEQUENCE), change(UPSERTED), change(DELETED)
    outlives = f"({in_table} AND coalesce({held} > {deleted}, {deleted} IS NULL))"
    is_there = unless_held_of_other_log(
        f"({upserted} IS NOT NULL OR {outlives})",
        shape.log_fields,
        {key: change(key) for key in shape.keys},
        change(NEWEST),
        f"greatest({upserted}, {deleted})",
        held,
    )
    newer = f"({upserted} IS NOT NULL AND coalesce({upserted} > {held}, true))"
    if not shape.is_partial:
        values = {
            c: f"CASE WHEN {newer} THEN {_changed_value(change, c)} ELSE {row(c)} END"
            for c in shape.columns
        }
        values[SEQUENCE] = f"CASE WHEN {newer} THEN {upserted} ELSE {held} END"
        return Combined(is_there, values, newer)
    sequence = f"greatest({upserted}, CASE WHEN {outlives} THEN {held} END)"
    values, sequences, differs = {}, {}, [newer]
    for c in shape.columns:
        at, held_of = f"{change(SET_SEQUENCES)}.{quoted(c)}", _sequence_of_value(shape, row, c)
        kept = f"({in_table} AND coalesce({held_of} > {deleted}, {deleted} IS NULL))"
        wins = f"({at} IS NOT NULL AND (NOT {kept} OR coalesce({at} > {held_of}, true)))"
        values[c] = (
            f"CASE WHEN {wins} THEN {_changed_value(change, c)} WHEN {kept} THEN {row(c)} END"
        )
        sequences[c] = f"CASE WHEN {wins} THEN {at} WHEN {kept} THEN {held_of} END"
        differs += [wins, f"(NOT {kept} AND {held_of} IS NOT NULL)"]
    values[SEQUENCE] = sequence
    values[COLUMN_SEQUENCES] = _own_sequences(sequence, sequences, values, shape)
    return Combined(is_there, values, f"({' OR '.join(differs)})")


def new_row(shape: EventShape, change: Named) -> dict[str, str]:
    """Return the columns, without the keys, of a new row that changes make, by name."""
    upserted = change(UPSERTED)
    if not shape.is_partial:
        return {**{c: _changed_value(change, c) for c in shape.columns}, SEQUENCE: upserted}
    at = {c: f"{change(SET_SEQUENCES)}.{quoted(c)}" for c in shape.columns}
    values = {
        c: f"CASE WHEN {sequence} IS NOT NULL THEN {_changed_value(change, c)} END"
        for c, sequence in at.items()
    }
    return {
        **values,
        SEQUENCE: upserted,
        COLUMN_SEQUENCES: _own_sequences(upserted, at, values, shape),
    }


def _changed_value(change: Named, column: str) -> str:
    return f"{change(EVENT_VALUES)}.{quoted(column)}"


def stored_names(shape: EventShape, column: str) -> list[str]:
    """Return the names by which a row's sequences of columns may hold that of a column."""
    return [column] if shape.table is None else shape.table.names(column)


def _may_be_added(shape: EventShape, column: str) -> bool:
    """Return whether the column may have been added after the table was created."""
    added = None if shape.table is None else shape.table.added
    return added is None or column.lower() in added


def _null_is_unset(shape: EventShape, column: str) -> bool:
    """Return whether a null without a sequence of its own counts as set by no event."""
    if shape.table is not None and shape.table.added is not None:
        return _may_be_added(shape, column)
    return (
        shape.ignore_nulls and shape.present is None
    )  # if all events were applied with these options


def _sequence_of_value(shape: EventShape, row: Named, column: str) -> str:
    """Return the sequence of a column's value in a row; null if no event set it."""
    others, cases = row(COLUMN_SEQUENCES), ""
    for each in map(literal, stored_names(shape, column)):
        cases += f"WHEN map_contains_key({others}, {each}) THEN {others}[{each}] "
    if _null_is_unset(shape, column):
        cases += f"WHEN {row(column)} IS NULL THEN NULL "
    return f"CASE {cases}ELSE {row(SEQUENCE)} END"


def _own_sequences(
    sequence: str, sequences: Mapping[str, str], values: Mapping[str, str], shape: EventShape
) -> str:
    """Return the columns' sequences by stored name, except those that equal the row's.

    Null if all do. A null that an event set has its sequence here too, where it would otherwise
    count as not set.
    """
    if not sequences:  # of keys alone: an empty array of entries would have no type
        return f"CASE WHEN false THEN map('', {sequence}) END"
    # Not a map filter, because Delta does not resolve columns of a merge in lambda functions.
    entries = []
    for c, at in sequences.items():
        is_other = f"NOT ({at} <=> {sequence})"
        if _may_be_added(shape, c):
            is_other = f"({is_other} OR ({at} IS NOT NULL AND ({values[c]}) IS NULL))"
        entry = f"named_struct('key', {literal(shape.stored(c))}, 'value', {at})"
        entries.append(f"CASE WHEN {is_other} THEN {entry} END")
    others = f"map_from_entries(array_compact(array({', '.join(entries)})))"
    return f"CASE WHEN size({others}) > 0 THEN {others} END"


def current_row_columns(events: Events) -> list[StructField]:
    """Return the columns that a table of current rows has in addition to the events' columns."""
    fields = [StructField(SEQUENCE, events.sequence_type)]
    if events.shape.is_partial:
        sequences = MapType(StringType(), events.sequence_type)
        fields.append(StructField(COLUMN_SEQUENCES, sequences))
    return fields


def as_in_table(events: Events, table: TableSnapshot) -> Events:
    """Return events that name the columns they set, if the table's rows have columns' sequences."""
    return events.naming_columns() if COLUMN_SEQUENCES in table.schema.names else events


def newest_of_keys(events: Events) -> DataFrame:
    """Reduce the events to one row for each key: the maxima over its events.

    Columns: the keys; `_cdc_upserted` and `_cdc_deleted`, the sequences of the newest upsert and
    delete; `_cdc_values`, the newest values; if upserts may leave columns out, `_cdc_spoken_of`, a
    struct with the sequence of each column's value; if events say that they insert,
    `_cdc_inserted`, null for a key with events that do not say; if sequences tell logs apart,
    `_cdc_newest`.
    """
    is_upsert = F.col(OPERATION) == UPSERT
    upserted = F.when(is_upsert, F.col(SEQUENCE))
    maxima = [
        F.max(upserted).alias(UPSERTED),
        F.max(F.when(F.col(OPERATION) == DELETE, F.col(SEQUENCE))).alias(DELETED),
    ]
    if INSERTED in events.rows.columns:
        inserts = F.when(F.bool_or(INSERTED), True)
        is_known = F.bool_and(F.col(INSERTED).isNotNull())
        maxima.append(inserts.when(is_known, False).alias(INSERTED))
    if events.shape.log_fields:
        maxima.append(F.expr(newest_changes(events.shape.log_fields)).alias(NEWEST))
    columns = events.shape.columns
    if not events.shape.is_partial:
        maxima.append(F.max_by(EVENT_VALUES, upserted).alias(EVENT_VALUES))
    else:
        at = {c: F.when(is_upsert & mentions(c, events.shape), F.col(SEQUENCE)) for c in columns}
        values = [F.max_by(F.col(EVENT_VALUES)[c], at[c]).alias(c) for c in columns]
        maxima.append(F.struct(*values).alias(EVENT_VALUES))
        sequences = [F.max(at[c]).alias(c) for c in columns]
        maxima.append(F.struct(*sequences).alias(SET_SEQUENCES))
    keys = [quoted(key) for key in events.shape.keys]
    rows = events.rows.where(F.col(OPERATION) != TRUNCATE)
    # No key is null. Spark would add this filter to each join of the result; added here, the joins
    # share one computation.
    for key in events.shape.keys:
        rows = rows.where(column(key).isNotNull())
    return grouped(rows, keys, maxima)


def apply_to_current_rows(
    table: Table,
    events: Events,
    tombstones: Tombstones,
    noting: Noting,
    lease: LineageLease,
    idempotency: TransactionId | None = None,
) -> MergeResult:
    """Apply the events to the table, and remember their deletes.

    It is a conflict if the table is restored or replaced before the commit.

    Other runs may remember deletes of keys that this merge inserts. Further merges then apply these
    deletes, also if an earlier run committed the batch and died before that. Of a batch that was
    committed before, only the keys count.
    """
    name, operation = table.path_or_name, "applying changes"
    with translated(name, operation=operation, otherwise=SourceError):
        newest = newest_of_keys(events)
        changes = alive(tombstones.with_deletes(newest, events, noting.read), events)
    result = merge_changes(table, changes, events, noting.on(lease), idempotency)
    seen = noting.seen_by(result.version, table, lease.since)
    if result.was_applied_before:
        seen, events = None, replace(events, truncated=None)
        newest = newest.withColumn(DELETED, F.lit(None).cast(newest.schema[DELETED].dataType))
    further = lease.for_later_merges
    while (version := tombstones.version()) != seen:
        with translated(name, operation=operation, commits=True):
            deleted = _without_upserts(tombstones.with_deletes(newest, events, version), events)
        result = result.then(merge_changes(table, deleted, events, further))
        seen = version
    return lease.checked(result, table)


def alive(changes: DataFrame, events: Events) -> DataFrame:
    """Drop upserts that are older than the key's last delete from the changes.

    Evaluating them is an error if they are of several logs that nothing tells apart.
    """
    shape = events.shape
    if shape.log_fields:
        keys = {key: quoted(key) for key in shape.keys}
        last = f"greatest({UPSERTED}, {DELETED})"
        upserted = unless_of_other_log(UPSERTED, shape.log_fields, keys, NEWEST, last)
        changes = changes.withColumn(UPSERTED, F.expr(upserted))

    def if_newer(sequence: Column) -> Column:
        deleted = F.col(DELETED)
        return F.when(deleted.isNull() | (sequence > deleted), sequence)

    changes = changes.withColumn(UPSERTED, if_newer(F.col(UPSERTED)))
    if events.shape.is_partial:
        at = [if_newer(F.col(SET_SEQUENCES)[c]).alias(c) for c in events.shape.columns]
        changes = changes.withColumn(SET_SEQUENCES, F.struct(*at))
    return changes


def _without_upserts(changes: DataFrame, events: Events) -> DataFrame:
    """Keep only the deletes among the changes."""
    nothing = F.lit(None).cast(changes.schema[UPSERTED].dataType)
    changes = changes.withColumn(UPSERTED, nothing)
    if events.shape.is_partial:
        at = [nothing.alias(c) for c in events.shape.columns]
        changes = changes.withColumn(SET_SEQUENCES, F.struct(*at))
    return changes.where(F.col(DELETED).isNotNull())


def merge_changes(
    table: Table,
    changes: DataFrame,
    events: Events,
    lease: LineageLease,
    idempotency: TransactionId | None = None,
) -> MergeResult:
    """Merge changes, one row for each key, into the table."""
    keys = [f"t.{quoted(key)} = s.{quoted(key)}" for key in events.shape.keys]
    merge = table.merge(changes, on=" AND ".join(keys), idempotency=idempotency)
    return merge.add(*_clauses(events), *clauses_for_other_keys(events)).execute(lease=lease)


def _clauses(events: Events) -> list[Clause]:
    shape = events.shape

    def row(name: str) -> str:
        return f"t.{quoted(name)}"

    def change(name: str) -> str:
        return f"s.{quoted(name)}"

    after = combined(shape, row, change)
    inserted = {key: change(key) for key in shape.keys} | new_row(shape, change)
    # If events have whole rows, an update needs nothing of the old row, not even its key.
    updated = after.values if shape.is_partial else inserted
    return [
        clauses.when_matched_delete(condition=f"NOT {after.is_there}"),
        clauses.when_matched_update(_quoted(updated), condition=after.differs),
        clauses.when_not_matched_insert(
            _quoted(inserted), condition=f"{change(UPSERTED)} IS NOT NULL"
        ),
    ]


def _quoted(values: Mapping[str, str]) -> dict[str, str | Column]:
    return {quoted(name): value for name, value in values.items()}


def clauses_for_other_keys(events: Events) -> list[Clause]:
    """Build the clauses for rows that no other event changes."""
    if events.truncated is None:
        return []

    def row(name: str) -> Column:
        return column("t", name)

    found = [clauses.when_not_matched_by_source_delete(condition=_is_older(row, events))]
    if events.shape.is_partial:
        emptied: dict[str, str | Column] = {
            quoted(name): value for name, value in _values_left(row, events).items()
        }
        found.append(
            clauses.when_not_matched_by_source_update(emptied, condition=_has_older(row, events))
        )
    return found


def rows_left(base: DataFrame, events: Events, generated: Mapping[str, str]) -> DataFrame:
    """Keep the rows that the truncates leave, before the other changes of the events.

    `generated` has the SQL of columns that the table generates, by name.
    """
    if events.truncated is None:
        return base

    left = base.where(~_is_older(column, events))
    if not events.shape.is_partial:
        return left
    left = left.withColumn(CHANGED, _has_older(column, events))
    return regenerated(left.withColumns(_values_left(column, events)), generated)


def regenerated(rows: DataFrame, generated: Mapping[str, str]) -> DataFrame:
    """Generate columns of the changed rows again, and drop the column that says which these are.

    The others keep what the table generated, maybe in another time zone.
    """
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    values = {
        name: f"CASE WHEN {CHANGED} THEN CAST({sql} AS {types[name]}) ELSE {quoted(name)} END"
        for name, sql in generated.items()
    }
    return rows.withColumns({name: F.expr(sql) for name, sql in values.items()}).drop(CHANGED)


def _emptied_at(events: Events) -> Column:
    assert events.truncated is not None
    return last_at(events.truncated)


def _is_older(row: NamedColumn, events: Events) -> Column:
    """Return whether a whole row is older than the truncate; a row without a sequence is."""
    assert events.truncated is not None
    is_older = F.coalesce(row(SEQUENCE) <= _emptied_at(events), F.lit(True))
    fields, held = events.shape.log_fields, row(SEQUENCE)["at"]
    return unless_emptied_in_other_log(is_older, fields, events.truncated, held)


def _has_older(row: NamedColumn, events: Events) -> Column:
    """Return whether a newer row has values older than the truncate."""
    sequences = row(COLUMN_SEQUENCES)
    return F.exists(F.map_values(sequences), lambda each: each <= _emptied_at(events))


def _values_left(row: NamedColumn, events: Events) -> dict[str, Column]:
    """Return the columns of a newer row, with values older than the truncate removed."""
    emptied_at, sequences = _emptied_at(events), row(COLUMN_SEQUENCES)
    left = {}
    for c in events.shape.columns:
        is_older = F.lit(False)
        for each in stored_names(events.shape, c):
            has_older = F.map_contains_key(sequences, each) & (sequences[each] <= emptied_at)
            is_older = is_older | F.coalesce(has_older, F.lit(False))
        left[c] = F.when(~is_older, row(c))
    left[COLUMN_SEQUENCES] = F.transform_values(
        sequences, lambda _, each: F.when(each > emptied_at, each)
    )
    return left
