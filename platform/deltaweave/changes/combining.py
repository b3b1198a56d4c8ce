"""What a row of a table and the changes of its key make together, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from deltaweave.changes.events import PREFIX, SEQUENCE, VALUES, EventShape

COLUMN_SEQUENCES = f"{PREFIX}column_sequences"
"""Column of a table: of columns whose value is of another event than the row, its sequence."""

UPSERTED = f"{PREFIX}upserted"
DELETED = f"{PREFIX}deleted"
SPOKEN_OF = f"{PREFIX}spoken_of"
"""Columns of changes: the sequence of the newest upsert, of the newest delete, of each column."""

Named = Callable[[str], Column]


@dataclass(frozen=True)
class Combined:
    """The row that there is after the changes.

    Attributes:
        is_there: Whether there is one.
        values: Its columns that are no keys, by name.
        differs: Whether it is another than before, where it is there.
    """

    is_there: Column
    values: Mapping[str, Column]
    differs: Column


def combined(shape: EventShape, row: Named, change: Named, in_table: Column) -> Combined:
    """A row of the table with the changes of its key; either may be missing.

    Args:
        shape: How the events were read.
        row: A column of the table's row; its sequence is null where it was there before any event.
        change: A column of the changes, of which upserts older than the delete are gone.
        in_table: Whether there is a row.
    """
    held, upserted, deleted = row(SEQUENCE), change(UPSERTED), change(DELETED)
    outlives = in_table & F.coalesce(held > deleted, deleted.isNull())
    is_there = upserted.isNotNull() | outlives
    newer = upserted.isNotNull() & F.coalesce(upserted > held, F.lit(True))
    if not shape.is_partial:
        values = {c: F.when(newer, change(VALUES)[c]).otherwise(row(c)) for c in shape.columns}
        return Combined(
            is_there, {**values, SEQUENCE: F.when(newer, upserted).otherwise(held)}, newer
        )
    sequence = F.greatest(upserted, F.when(outlives, held))
    others = row(COLUMN_SEQUENCES)
    values, of_columns, differs = {}, {}, [newer]
    for c in shape.columns:
        spoken = change(SPOKEN_OF)[c]
        held_of = F.when(F.map_contains_key(others, c), others[c]).otherwise(held)
        kept = in_table & F.coalesce(held_of > deleted, deleted.isNull())
        wins = spoken.isNotNull() & (~kept | F.coalesce(spoken > held_of, F.lit(True)))
        values[c] = F.when(wins, change(VALUES)[c]).when(kept, row(c))
        of_columns[c] = F.when(wins, spoken).when(kept, held_of)
        differs += [wins, ~kept & held_of.isNotNull()]
    values[SEQUENCE] = sequence
    values[COLUMN_SEQUENCES] = _other_than(sequence, of_columns)
    return Combined(is_there, values, reduce(or_, differs))


def new_row(shape: EventShape, change: Named) -> dict[str, Column]:
    """The columns that are no keys of a row that changes make where there was none, by name."""
    upserted = change(UPSERTED)
    if not shape.is_partial:
        return {**{c: change(VALUES)[c] for c in shape.columns}, SEQUENCE: upserted}
    spoken = {c: change(SPOKEN_OF)[c] for c in shape.columns}
    values = {c: F.when(spoken[c].isNotNull(), change(VALUES)[c]) for c in shape.columns}
    return {**values, SEQUENCE: upserted, COLUMN_SEQUENCES: _other_than(upserted, spoken)}


def _other_than(sequence: Column, of_columns: Mapping[str, Column]) -> Column:
    """The columns' sequences by name, without those that are the row's; null where all are."""
    # Not as a filter of a map: Delta resolves no columns of a merge inside lambda functions.
    entries = [
        F.when(~of.eqNullSafe(sequence), F.struct(F.lit(c).alias("key"), of.alias("value")))
        for c, of in of_columns.items()
    ]
    others = F.map_from_entries(F.array_compact(F.array(*entries)))
    return F.when(F.size(others) > 0, others)
