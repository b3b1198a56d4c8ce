"""Combines a row of a table with the changes of its key, as SQL expressions.

The expressions are text, because Column functions need a JVM call for each part of an expression,
and a table with many columns has many expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deltaweave.changes.epochs import NEWEST, unless_held_of_other_log
from deltaweave.changes.events import PREFIX, SEQUENCE, VALUES, EventShape
from deltaweave.identifiers import literal, quoted

COLUMN_SEQUENCES = f"{PREFIX}column_sequences"
"""Column of a table: the sequences of columns whose value is from another event than the row."""

OWN_COLUMNS = (SEQUENCE, COLUMN_SEQUENCES)
"""The columns that a table of current rows has of itself."""

UPSERTED = f"{PREFIX}upserted"
DELETED = f"{PREFIX}deleted"
SPOKEN_OF = f"{PREFIX}spoken_of"
"""Columns of changes: the sequences of the newest upsert, of the newest delete and of each
column."""

Named = Callable[[str], str]
"""Gives the SQL for a column of one side by the column's name."""


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
            c: f"CASE WHEN {newer} THEN {_value(change, c)} ELSE {row(c)} END"
            for c in shape.columns
        }
        values[SEQUENCE] = f"CASE WHEN {newer} THEN {upserted} ELSE {held} END"
        return Combined(is_there, values, newer)
    sequence = f"greatest({upserted}, CASE WHEN {outlives} THEN {held} END)"
    values, of_columns, differs = {}, {}, [newer]
    for c in shape.columns:
        spoken, held_of = f"{change(SPOKEN_OF)}.{quoted(c)}", _held_of(shape, row, c)
        kept = f"({in_table} AND coalesce({held_of} > {deleted}, {deleted} IS NULL))"
        wins = f"({spoken} IS NOT NULL AND (NOT {kept} OR coalesce({spoken} > {held_of}, true)))"
        values[c] = f"CASE WHEN {wins} THEN {_value(change, c)} WHEN {kept} THEN {row(c)} END"
        of_columns[c] = f"CASE WHEN {wins} THEN {spoken} WHEN {kept} THEN {held_of} END"
        differs += [wins, f"(NOT {kept} AND {held_of} IS NOT NULL)"]
    values[SEQUENCE] = sequence
    values[COLUMN_SEQUENCES] = _other_than(sequence, of_columns, values, shape)
    return Combined(is_there, values, f"({' OR '.join(differs)})")


def new_row(shape: EventShape, change: Named) -> dict[str, str]:
    """Return the columns, without the keys, of a new row that changes make, by name."""
    upserted = change(UPSERTED)
    if not shape.is_partial:
        return {**{c: _value(change, c) for c in shape.columns}, SEQUENCE: upserted}
    spoken = {c: f"{change(SPOKEN_OF)}.{quoted(c)}" for c in shape.columns}
    values = {
        c: f"CASE WHEN {of} IS NOT NULL THEN {_value(change, c)} END" for c, of in spoken.items()
    }
    return {
        **values,
        SEQUENCE: upserted,
        COLUMN_SEQUENCES: _other_than(upserted, spoken, values, shape),
    }


def _value(change: Named, column: str) -> str:
    return f"{change(VALUES)}.{quoted(column)}"


def stored_names(shape: EventShape, column: str) -> list[str]:
    """Return the names by which a row's sequences of columns may hold that of a column."""
    return [column] if shape.table is None else shape.table.names(column)


def _sets_no_null(shape: EventShape) -> bool:
    """Return whether no upsert sets a column to null."""
    return shape.ignore_nulls and shape.present is None


def _null_is_unset(shape: EventShape, column: str) -> bool:
    """Return whether no event set a null in a row that has no sequence of its own there."""
    is_added = shape.table is not None and column.lower() in shape.table.added
    return is_added or _sets_no_null(shape)


def _held_of(shape: EventShape, row: Named, column: str) -> str:
    """Return the sequence of a column's value in a row; null if no event set it."""
    others, cases = row(COLUMN_SEQUENCES), ""
    for each in map(literal, stored_names(shape, column)):
        cases += f"WHEN map_contains_key({others}, {each}) THEN {others}[{each}] "
    if _null_is_unset(shape, column):
        cases += f"WHEN {row(column)} IS NULL THEN NULL "
    return f"CASE {cases}ELSE {row(SEQUENCE)} END"


def _other_than(
    sequence: str, of_columns: Mapping[str, str], values: Mapping[str, str], shape: EventShape
) -> str:
    """Return the columns' sequences by stored name, except those that equal the row's.

    Null if all do. A null that an event set has its sequence here too, where it would otherwise
    count as not set.
    """
    # Not a map filter, because Delta does not resolve columns of a merge in lambda functions.
    entries = []
    for c, of in of_columns.items():
        is_other = f"NOT ({of} <=> {sequence})"
        if _null_is_unset(shape, c) and not _sets_no_null(shape):
            is_other = f"({is_other} OR ({of} IS NOT NULL AND ({values[c]}) IS NULL))"
        entry = f"named_struct('key', {literal(shape.stored(c))}, 'value', {of})"
        entries.append(f"CASE WHEN {is_other} THEN {entry} END")
    others = f"map_from_entries(array_compact(array({', '.join(entries)})))"
    return f"CASE WHEN size({others}) > 0 THEN {others} END"
