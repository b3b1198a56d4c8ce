"""Events that empty a table, and the rows that they leave.

Such an event removes all older rows, in whatever order events arrive. In a row with columns from
several events, it leaves the newer columns.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave import clauses
from deltaweave.changes.current.combining import COLUMN_SEQUENCES, stored_names
from deltaweave.changes.epochs import unless_emptied_in_other_log
from deltaweave.changes.events import SEQUENCE, Events, last_at
from deltaweave.clauses import Clause
from deltaweave.identifiers import column, quoted

EMPTIED = "deltaweave/emptied"
"""The application id whose version grows with each such event in a table of events."""

Named = Callable[[str], Column]


def clauses_for_other_keys(events: Events) -> list[Clause]:
    """Build the clauses for rows that no other event changes."""
    if events.truncated is None:
        return []

    def row(name: str) -> Column:
        return column("t", name)

    found = [clauses.when_not_matched_by_source_delete(condition=_is_older(row, events))]
    if events.shape.is_partial:
        of_several = row(COLUMN_SEQUENCES)
        has_older = F.exists(F.map_values(of_several), lambda each: each <= _emptied_at(events))
        emptied: dict[str, str | Column] = {
            quoted(name): value for name, value in _left(row, events).items()
        }
        found.append(clauses.when_not_matched_by_source_update(emptied, condition=has_older))
    return found


def rows_left(base: DataFrame, events: Events) -> DataFrame:
    """Keep the rows that the truncates leave, before the other changes of the events."""
    if events.truncated is None:
        return base

    left = base.where(~_is_older(column, events))
    return left.withColumns(_left(column, events)) if events.shape.is_partial else left


def _emptied_at(events: Events) -> Column:
    assert events.truncated is not None
    return last_at(events.truncated)


def _is_older(row: Named, events: Events) -> Column:
    """Return whether a whole row is older than the truncate; a row without a sequence is."""
    assert events.truncated is not None
    is_older = F.coalesce(row(SEQUENCE) <= _emptied_at(events), F.lit(True))
    fields, held = events.shape.log_fields, row(SEQUENCE)["at"]
    return unless_emptied_in_other_log(is_older, fields, events.truncated, held)


def _left(row: Named, events: Events) -> dict[str, Column]:
    """Return the columns of a newer row, with values older than the truncate removed."""
    emptied_at, of_several = _emptied_at(events), row(COLUMN_SEQUENCES)
    left = {}
    for c in events.shape.columns:
        is_older = F.lit(False)
        for each in stored_names(events.shape, c):
            of_column = F.map_contains_key(of_several, each) & (of_several[each] <= emptied_at)
            is_older = is_older | F.coalesce(of_column, F.lit(False))
        left[c] = F.when(~is_older, row(c))
    left[COLUMN_SEQUENCES] = F.transform_values(
        of_several, lambda _, each: F.when(each > emptied_at, each)
    )
    return left
