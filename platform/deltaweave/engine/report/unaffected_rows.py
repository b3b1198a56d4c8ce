"""Source rows for which a merge changes no row, counted from what its phases compute anyway.

If a clause's condition skips a source row, the written rows do not show whether it was skipped or
lost. So skipped rows are counted apart. Among matched rows, the pairs count them. Among the others,
the query that collects the source's keys counts the rows that insert clauses would take if nothing
matched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.find import MatchedRows

if TYPE_CHECKING:
    from deltaweave.engine.report.result import MergeMetrics
    from deltaweave.engine.source import PreparedSource


def num_unaffected(
    merge: ResolvedMerge,
    source: PreparedSource,
    matched: MatchedRows | None,
    metrics: MergeMetrics,
) -> int | None:
    """Count the source rows that change nothing, since no clause exists for them or takes them.

    A source row whose target row another source row deletes is among them. If the insert clauses
    have conditions and the source's keys were not collected, one job evaluates the conditions.

    Args:
        merge: The statement.
        source: The prepared source.
        matched: The source rows that match; None if they were not counted.
        metrics: The merge's metrics.

    Returns:
        None if it is not known; after an insert-only merge, since matches were not counted.
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
    # Below 0 only if source rows match several target rows, which have more pairs than rows.
    return matched.pairs - changed + max(not_inserted, 0)
