"""Commits a merge's output; after a lost commit, again on the newer version while that is right."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deltaweave.delta.commit import Committed, TableLock, Transaction
from deltaweave.delta.jvm import letting_go
from deltaweave.delta.log import FileList
from deltaweave.engine.follow_rivals import Followed, followed
from deltaweave.engine.phases import Phases
from deltaweave.engine.redo import CommitAttempts, not_redone
from deltaweave.engine.report import MergeMetrics, merge_metrics
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.terms import Terms
from deltaweave.engine.write import Changes
from deltaweave.errors import CommitConflictError, TableReplacedError
from deltaweave.retries import wait_after_losses

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Commit:
    """The commit of a merge.

    Attributes:
        transaction: The transaction that committed.
        changes: What it committed.
        metrics: The metrics that it committed.
        committed: What became of it.
    """

    transaction: Transaction
    changes: Changes
    metrics: MergeMetrics
    committed: Committed


def commit_changes(
    transaction: Transaction,
    source: PreparedSource,
    changes: Changes,
    metrics: MergeMetrics,
    phases: Phases,
    terms: Terms,
    attempts: CommitAttempts,
) -> Commit:
    """Commit the changes, unless nothing changed and there is no mark to keep.

    Raises:
        TableReplacedError: The table's directory was deleted, and perhaps created again.
        CommitConflictError: Other commits won; `attempts` says whether the merge may run again.
    """
    has_changes = len(changes.touched) or metrics.num_target_files_added
    if not has_changes and not terms.must_commit and not transaction.changes_metadata:
        logger.info("%s: nothing changed, nothing committed", transaction.merge.table)
        return Commit(transaction, changes, metrics, Committed(None))
    tried = Followed(transaction, changes)
    merge = transaction.merge
    with TableLock(merge.spark, transaction.data_path, table=merge.table) as lock:
        while True:
            attempts.made += 1
            try:
                done = _committed(tried, metrics, terms, lock)
                return Commit(tried.transaction, tried.changes, metrics, done)
            except TableReplacedError:
                raise
            except CommitConflictError as conflict:
                with letting_go("files that were written again"):
                    transaction.own_files.delete(written_by_one(tried.changes, changes))
                again = None
                if attempts.may_commit:
                    wait_after_losses(attempts.made)
                    again = followed(transaction, source, changes, terms, lock)
                if again is None:
                    attempts.lost(transaction, terms, len(changes.touched))
                    if attempts.refusal:
                        raise not_redone(conflict, attempts.refusal) from conflict
                    raise
            tried = again
            attempts.files_redone += tried.files_redone
            metrics = merge_metrics(transaction, source, tried.changes, phases)


def written_by_one(one: Changes, other: Changes) -> FileList:
    """Return the new files of one output that the other lacks."""
    if one.written is None:
        return one.touched.none()
    kept = set() if other.written is None else set(other.written.files.paths)
    return one.written.files.but_for(kept)


def _committed(tried: Followed, metrics: MergeMetrics, terms: Terms, lock: TableLock) -> Committed:
    changes = tried.changes
    return tried.transaction.commit(
        removed=changes.removed,
        marked=changes.marked.actions if changes.marked is not None else None,
        written=changes.written,
        metrics=metrics,
        marks=terms.marks,
        held=lock,
    )
