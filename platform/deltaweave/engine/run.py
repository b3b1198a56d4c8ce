"""A merge, phase by phase.

1. Resolve: Delta's analyzer says what the statement means (`delta.statement`).
2. Materialize the source: it is read once, counted and measured (`source`).
3. Find touched files: a backend prunes files (`prune`) and gives the pairs of matching rows and
   their clauses (`pairs`).
4. Write all changes: touched files are rewritten, or their changed rows are marked (`strategies`).
5. Commit: one transaction removes and adds files and records metrics. If it loses to another
   commit, its output is committed again, or the merge runs again on the newer version (`commit`).

`CommitLoop` opens the transaction and runs the phases 2 to 5; `write_changes` does 3 and 4.

What fails after the commit does not fail the merge: the result lists it as a warning.
"""

from __future__ import annotations

from dataclasses import replace

from deltaweave.delta.commit import (
    AfterCommit,
    reset_session_transaction_id,
    session_transaction_id,
)
from deltaweave.delta.jvm import own_session
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.attempts import warnings_noted
from deltaweave.engine.backends import DeclinedError, write_by_spark, write_locally
from deltaweave.engine.commit import CommitLoop
from deltaweave.engine.merge_run import ANY_VERSION, MergeRun, MergeSettings, Preconditions
from deltaweave.engine.report import MergeResult
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import choose_strategy


def run(merge: ResolvedMerge, preconditions: Preconditions = ANY_VERSION) -> MergeResult:
    """Run a resolved merge and commit it.

    Without a transaction id in its preconditions, a merge takes the one that the session sets for
    its writes, if any.

    Raises:
        CommitStateUnknownError: The commit failed, and whether it landed is unknown.
        DeltaweaveError: Another subclass that says what happened; nothing was committed.
    """
    of_session = None
    if preconditions.idempotency is None:
        of_session = session_transaction_id(merge.spark, table=merge.table)
        preconditions = replace(preconditions, idempotency=of_session)
    with warnings_noted() as fallbacks, own_session(merge.spark) as own:
        statement = merge.in_session(own)
        settings = MergeSettings.read(statement.spark)
        result = CommitLoop(write_changes, preconditions, settings).run(statement)
    afterwards = AfterCommit(merge.table, result.version, [*fallbacks, *result.warnings])
    if of_session is not None:
        with afterwards.step("resetting the session's transaction id"):
            reset_session_transaction_id(merge.spark)
    return replace(result, warnings=tuple(afterwards.warnings))


def write_changes(run: MergeRun) -> Staged:
    """Find what changes, and write it by the strategy that fits; Spark does what is declined."""
    strategy = choose_strategy(run).strategy
    try:
        return write_locally(run, strategy)
    except DeclinedError as declined:
        known = declined.known  # the candidate files, if they were found by then
    return write_by_spark(run, strategy, known)
