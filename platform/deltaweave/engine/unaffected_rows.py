"""Source rows for which a merge changes no row: counted from what its phases find out anyway.

A clause's condition may leave a source row alone, and then nothing shows whether the row was left
alone or lost. So these rows are counted apart from the rows that are written: of those that match,
by the pairs; of the others, by asking the conditions of the insert clauses, in the query that
collects the source's keys, how many rows they would take if none matched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from deltaweave.delta.analyzer import ResolvedMerge

if TYPE_CHECKING:
    from deltaweave.engine.outcome import MergeMetrics
    from deltaweave.engine.source import PreparedSource


@dataclass(frozen=True)
class MatchedRows:
    """How many source rows match.

    Attributes:
        pairs: Pairs of a target row and a source row that matches it.
        source_rows: Source rows in a pair. Where telling them apart would take a query, each pair
            counts as one.
        insertable: Those of them that an insert clause would take if they matched nothing.
    """

    pairs: int = 0
    source_rows: int = 0
    insertable: int = 0


def insertable(merge: ResolvedMerge) -> Column | None:
    """Whether an insert clause takes a source row, if it matches nothing.

    None where that need not be asked, since the insert clauses take every row or there is none, or
    cannot be: MERGE never asks their conditions of rows that match, for which they may fail, and of
    a Python function a failure cannot be passed over.
    """
    inserts = merge.of_kind("not_matched")
    if not inserts or any(clause.condition is None for clause in inserts):
        return None
    conditions = [clause.condition_unless_it_fails() for clause in inserts]
    if any(condition is None for condition in conditions):
        return None
    # A row for which one fails does match, or the merge fails: it is counted in neither place.
    taken = [F.coalesce(each, F.lit(False)) for each in conditions if each is not None]
    return reduce(Column.__or__, taken)


def num_unaffected(
    merge: ResolvedMerge,
    source: PreparedSource,
    matched: MatchedRows | None,
    metrics: MergeMetrics,
) -> int | None:
    """How many source rows change nothing, by the clauses' conditions or for lack of a clause.

    Among them are those whose row another source row deletes. Where the insert clauses have
    conditions and the source's keys were not collected, one job asks them.

    Args:
        merge: The statement.
        source: The prepared source.
        matched: The source rows that match; None where that was not found out.
        metrics: The merge's metrics.

    Returns:
        None where it is not known: of an insert-only merge, how many rows match.
    """
    if matched is None:
        return None
    changed = metrics.num_target_rows_matched_updated + metrics.num_target_rows_matched_deleted
    unmatched = source.num_rows - matched.source_rows
    inserts = merge.of_kind("not_matched")
    if not inserts:
        not_inserted = unmatched
    elif any(clause.condition is None for clause in inserts):
        not_inserted = 0
    elif source.insertable is None or not source.gives_same_rows:
        return None
    else:
        not_inserted = unmatched - (source.num_insertable - matched.insertable)
    # Below 0 only where source rows match several target rows: their pairs are too many anyway.
    return matched.pairs - changed + max(not_inserted, 0)
