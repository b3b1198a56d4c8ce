"""Decides whether a merge whose commit lost to another one runs again.

It is run again only if that is known to give what running the same statement later would give: the
table is still the one that the statement was resolved against, and neither the source nor a
subquery holds rows of the version that lost (`delta.scan.dependence`).
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass

from deltaweave.delta.commit import Transaction, is_same_table
from deltaweave.delta.jvm import number_setting, said_by
from deltaweave.delta.log import latest
from deltaweave.delta.scan import clauses_dependence, source_dependence
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.source import PreparedSource, prepared_source
from deltaweave.engine.terms import Terms
from deltaweave.errors import CommitConflictError
from deltaweave.verdict import YES, Verdict

logger = logging.getLogger(__name__)

MAX_COMMIT_ATTEMPTS = "spark.deltaweave.merge.maxCommitAttempts"
"""How often a merge tries to commit before it gives up; 1 never does it again.

Where it is not set, a merge is done `limits.DEFAULT_RUNS` times at most, and what it wrote then is
committed again more often.
"""


@dataclass
class CommitAttempts:
    """How often a merge has tried to commit, and whether it may run again.

    Attributes:
        limit: Maximum calls of Delta's commit.
        max_runs: Maximum runs of the merge.
        made: Calls of Delta's commit.
        runs: Runs whose commit lost.
        files_redone: Touched files of the runs whose commit lost and that were repeated.
        may_redo: Whether the last commit lost and the merge may run again.
        refusal: Why it may not, for a reason other than the number of attempts.
    """

    limit: int
    max_runs: int
    made: int = 0
    runs: int = 0
    files_redone: int = 0
    may_redo: bool = False
    refusal: str = ""

    @property
    def may_commit(self) -> bool:
        """Whether the same output may be committed again, if it is still right."""
        return self.made < self.limit

    def lost(self, transaction: Transaction, terms: Terms, num_touched: int) -> None:
        """Note that the last commit lost, and decide whether the merge may run again."""
        self.runs += 1
        is_left = self.may_commit and self.runs < self.max_runs
        self.refusal = _may_redo(transaction, terms).reason if is_left else ""
        self.may_redo = is_left and not self.refusal
        if self.may_redo:
            self.files_redone += num_touched


def commit_attempts(merge: ResolvedMerge) -> CommitAttempts:
    """Start counting attempts; the session sets the limit."""
    allowed = int(number_setting(merge.spark, MAX_COMMIT_ATTEMPTS, otherwise=-1, is_whole=True))
    if allowed < 0:
        return CommitAttempts(limits.DEFAULT_COMMIT_ATTEMPTS, limits.DEFAULT_RUNS)
    return CommitAttempts(allowed, allowed)


def _may_redo(lost: Transaction, terms: Terms) -> Verdict:
    merge = lost.merge
    if terms.computed_from is not None:
        return Verdict(f"its source was computed from version {terms.computed_from} of the table")
    try:
        if not is_same_table(lost.table, latest(merge.spark, lost.log)):
            return Verdict("the table's schema, properties or protocol changed")
        source = source_dependence(merge)
        if source.is_unknown:
            return Verdict(
                f"its source may hold rows of the table's older version: it reads {source.because}"
            )
        of_clauses = clauses_dependence(merge)
        if of_clauses.is_unknown:
            return Verdict(
                f"a subquery may hold rows of the table's older version: it reads "
                f"{of_clauses.because}"
            )
    except Exception as error:
        logger.warning("%s: cannot tell whether to merge again: %s", merge.table, said_by(error))
        return Verdict(f"it is unknown what it reads ({said_by(error)})")
    return YES


def not_redone(lost: CommitConflictError, refusal: str) -> CommitConflictError:
    """Return the error of a merge whose commit lost and that must not be run again."""
    return CommitConflictError(
        f"{lost.problem.rstrip()} The merge was not run again by itself: {refusal}.",
        table=lost.table,
        version=lost.version,
        hint="Compute the source again and run the statement again: it then reads the winning "
        "commit. Write the source to a table first, or collect it into rows: a merge can then "
        "run again by itself.",
        error_class=lost.error_class,
        sql_state=lost.sql_state,
    )


class KeptSource:
    """Keeps the prepared source from one run of a merge for the next.

    A source that depends on the target is prepared again, since it must read the version that the
    next run reads. A source that may give other rows each time is prepared again, too.
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
        """Return the source; prepare it the first time (see `prepared_source`)."""
        if self._kept is None:
            self._kept = self._stack.enter_context(prepared_source(merge, attempt))
        return self._kept

    def drop_unless_same(self, merge: ResolvedMerge) -> None:
        """Release the source unless a later run of the merge would read the same rows."""
        if self._kept is None:
            return
        try:
            is_same = self._kept.gives_same_rows and source_dependence(merge).is_none
        except Exception as error:  # it must not hide that the commit lost
            logger.warning("%s: cannot tell what the source reads: %s", merge.table, said_by(error))
            is_same = False
        if not is_same:
            self.drop()
