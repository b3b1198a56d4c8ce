"""Decides whether a merge whose commit lost to another one is done again.

It is if that gives what the caller would get by running the same statement later: the table is
still the one that the statement was resolved against, and the source is not known to be computed
from the version that lost.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass

from deltaweave.delta.commit import Transaction, is_same_table
from deltaweave.delta.jvm import said_by
from deltaweave.delta.log import latest
from deltaweave.delta.scan import (
    clauses_may_read_target,
    clauses_read_cached_rows,
    is_cached,
    source_may_read_target,
)
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.source import PreparedSource, prepared_source
from deltaweave.engine.terms import Terms

logger = logging.getLogger(__name__)

MAX_COMMIT_ATTEMPTS = "spark.deltaweave.merge.maxCommitAttempts"
"""How often a merge tries to commit before it gives up; 1 never does it again.

Where it is not set, a merge is done `limits.DEFAULT_RUNS` times at most, and what it wrote then is
committed again more often.
"""


@dataclass
class CommitAttempts:
    """How often a merge has tried to commit, and whether it may be done again.

    Attributes:
        limit: The most attempts.
        max_runs: The most runs.
        made: Calls of Delta's commit.
        runs: Runs whose commit lost.
        files_redone: Touched files of the runs whose commit lost and that were done again.
        may_redo: Whether the last commit lost and the merge may be done again.
    """

    limit: int
    max_runs: int
    made: int = 0
    runs: int = 0
    files_redone: int = 0
    may_redo: bool = False

    @property
    def may_commit(self) -> bool:
        """Whether the same output may be committed again, if it is still right."""
        return self.made < self.limit

    def lost(self, transaction: Transaction, terms: Terms, num_touched: int) -> None:
        """Note that the last commit lost, and decide whether the merge may be done again."""
        self.runs += 1
        is_left = self.may_commit and self.runs < self.max_runs
        self.may_redo = is_left and _may_redo(transaction, terms)
        if self.may_redo:
            self.files_redone += num_touched


def commit_attempts(merge: ResolvedMerge) -> CommitAttempts:
    """None made yet, with the limit that the session sets."""
    setting = merge.spark.conf.get(MAX_COMMIT_ATTEMPTS, None)
    if setting is None:
        return CommitAttempts(limits.DEFAULT_COMMIT_ATTEMPTS, limits.DEFAULT_RUNS)
    return CommitAttempts(int(setting), int(setting))


def _may_redo(lost: Transaction, terms: Terms) -> bool:
    merge = lost.merge
    if terms.computed_from is not None:
        return False
    try:
        if not is_same_table(lost.table, latest(merge.spark, lost.log)):
            return False
        # What was cached before the merge shows the target as it was then.
        of_source = is_cached(merge) and source_may_read_target(merge)
        of_clauses = clauses_may_read_target(merge) and clauses_read_cached_rows(merge)
        return not (of_source or of_clauses)
    except Exception as error:
        logger.warning("%s: cannot tell whether to merge again: %s", merge.table, said_by(error))
        return False


class KeptSource:
    """Keeps the prepared source from one run of a merge for the next.

    A source that reads the target is prepared anew, since it must read the version that the next
    run reads. So is one that may give other rows each time it is read.
    """

    def __init__(self) -> None:
        self._kept: PreparedSource | None = None
        self._stack = ExitStack()

    def __enter__(self) -> KeptSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Release the source, for example because executors lost its rows."""
        self._kept = None
        self._stack.close()

    def prepared(self, merge: ResolvedMerge, attempt: int) -> PreparedSource:
        """The source; see `prepared_source`."""
        if self._kept is None:
            self._kept = self._stack.enter_context(prepared_source(merge, attempt))
        return self._kept

    def drop_unless_same(self, merge: ResolvedMerge) -> None:
        """Release the source unless a later run of the merge would read the same rows."""
        if self._kept is None:
            return
        try:
            is_same = self._kept.gives_same_rows and not source_may_read_target(merge)
        except Exception as error:  # it must not hide that the commit lost
            logger.warning("%s: cannot tell what the source reads: %s", merge.table, said_by(error))
            is_same = False
        if not is_same:
            self.drop()
