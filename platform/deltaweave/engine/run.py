"""A merge, phase by phase.

1. Resolve: Delta's analyzer says what the statement means (`delta.statement`).
2. Materialize the source: it is read once, counted and measured (`source`).
3. Find touched files: a backend prunes files (`prune`) and gives the pairs of matching rows and
   their clauses (`pairs`).
4. Write all changes: touched files are rewritten, or their changed rows are marked (`strategies`).
5. Commit: one transaction removes and adds files and records metrics. If it loses to another
   commit, its output is committed again, or the merge runs again on the newer version (`commit`).

What fails after the commit does not fail the merge: the result lists it as a warning.
"""

from __future__ import annotations

import time
from dataclasses import replace

from deltaweave.delta.commit import (
    AfterCommit,
    check_since_analysis,
    reset_session_transaction_id,
    session_transaction_id,
    transaction_on,
)
from deltaweave.delta.jvm import own_session, translated
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.attempts import warnings_noted
from deltaweave.engine.backends import DeclinedError, LocalBackend, SparkBackend
from deltaweave.engine.commit import CommitLoop, merge_result
from deltaweave.engine.merge_run import ANY_VERSION, MergeRun, MergeSettings, Preconditions
from deltaweave.engine.report import MergeMetrics, MergeResult, Phases, StrategyName, TouchedFiles
from deltaweave.engine.source import check_same_source
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
        result = CommitLoop(_phases, preconditions, settings).run(statement)
    result = replace(result, warnings=(*fallbacks, *result.warnings))
    if of_session is None:
        return result
    afterwards = AfterCommit(merge.table, result.version, list(result.warnings))
    with afterwards.step("resetting the session's transaction id"):
        reset_session_transaction_id(merge.spark)
    return replace(result, warnings=tuple(afterwards.warnings))


def _phases(loop: CommitLoop, merge: ResolvedMerge, attempt: int) -> MergeResult:
    """Run the phases once, with a new transaction."""
    started, phases, preconditions = time.perf_counter(), Phases(merge.spark), loop.preconditions
    # Spark refuses some expressions only when it plans a query with them: errors are translated.
    with translated(merge.table), transaction_on(merge) as transaction:
        transaction.refuse_unsupported()
        if preconditions.is_applied(transaction):
            applied = StrategyName.ALREADY_APPLIED.value
            return MergeResult(None, MergeMetrics(), TouchedFiles(), applied)
        preconditions.check_lease(transaction)
        check_since_analysis(transaction)
        preconditions.check_version(transaction)
        transaction.evolve_schema()
        with phases.running(
            "materializeSource", "MERGE operation - materialize source", "materializeSourceTimeMs"
        ):
            source = loop.source(merge, attempt)
        staged = write_changes(MergeRun(transaction, source, loop.settings, preconditions, phases))
        check_same_source(merge, source)
        phases.times_ms["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
        commit = loop.commit(staged)
    return merge_result(commit, attempt)


def write_changes(run: MergeRun) -> Staged:
    """Find what changes, and write it by the strategy that fits; Spark does what is declined."""
    strategy = choose_strategy(run).strategy
    local, spark = LocalBackend(), SparkBackend()
    try:
        return local.write(run, strategy, local.find(run, strategy, None))
    except DeclinedError as declined:
        known = declined.known  # the candidate files, if they were found by then
    return spark.write(run, strategy, spark.find(run, strategy, known))
