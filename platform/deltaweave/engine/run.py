"""A merge, phase by phase.

1. Resolve: Delta's analyzer says what the statement means (`delta.statement`).
2. Materialize the source: it is read once, counted and measured (`source`).
3. Find touched files: the scan gives the pairs of matching rows and their clauses (`find`).
4. Write all changes: touched files are rewritten, or their changed rows are marked (`write`).
5. Commit: one transaction removes and adds files and records metrics (`report`). If it loses to
   another commit, its output is committed again (`follow_rivals`), or the merge runs again
   on the newer version (`redo`).

What fails after the commit does not fail the merge: the result lists it as a warning.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from deltaweave.delta.commit import (
    AfterCommit,
    Lease,
    check_since_analysis,
    reset_session_pair,
    session_pair,
    transaction_on,
)
from deltaweave.delta.jvm import delta_message, own_session, translated
from deltaweave.delta.log import latest
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.commit_changes import Commit, commit_changes, written_by_one
from deltaweave.engine.find import index_new_files, stored_index
from deltaweave.engine.local_attempt import warnings_noted
from deltaweave.engine.phases import Phases, tell
from deltaweave.engine.redo import CommitAttempts, KeptSource, commit_attempts
from deltaweave.engine.report import (
    MergeMetrics,
    MergeResult,
    TouchedFiles,
    merge_metrics,
    num_unaffected,
)
from deltaweave.engine.source import check_same_source
from deltaweave.engine.terms import Terms
from deltaweave.engine.write import Changes, Strategy, write_changes
from deltaweave.errors import CommitConflictError, SourceLostError
from deltaweave.retries import attempts_at_a_merge

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = "spark.databricks.delta.merge.materializeSource.maxAttempts"


def run(
    merge: ResolvedMerge,
    idempotency: tuple[str, int] | None = None,
    applied_before: int | None = None,
    computed_from: int | None = None,
    lease: Lease | None = None,
) -> MergeResult:
    """Run a resolved merge and commit it.

    Args:
        merge: The statement, resolved in this session.
        idempotency: An (application id, version) pair for the same commit. If the table already
            holds that version of the id or a later one, nothing is done. By default the pair that
            the session sets for its writes, if any.
        applied_before: The version of that id that the table must still hold at the commit, -1 for
            none.
        computed_from: The version of the target that the merge must read.
        lease: What the target must still hold at the commit, and the commit adds to it.

    Raises:
        CommitStateUnknownError: The commit failed, and whether it landed is unknown.
        DeltaweaveError: Another subclass that says what happened; nothing was committed.
    """
    pair = idempotency or session_pair(merge.spark, table=merge.table)
    terms = Terms(pair, applied_before, computed_from, lease)
    with warnings_noted() as fallbacks, own_session(merge.spark) as own:
        result = _until_committed(merge.in_session(own), terms)
    result = replace(result, warnings=(*fallbacks, *result.warnings))
    if idempotency is not None or pair is None:
        return result
    afterwards = AfterCommit(merge.table, result.version, list(result.warnings))
    with afterwards.step("resetting the session's idempotency pair"):
        reset_session_pair(merge.spark)
    return replace(result, warnings=tuple(afterwards.warnings))


def _until_committed(merge: ResolvedMerge, terms: Terms) -> MergeResult:
    """Run the merge until its commit wins, as long as it may run again."""
    commits = commit_attempts(merge)

    def log(attempt: RetryCallState) -> None:
        lost = attempt.outcome.exception() if attempt.outcome else ""
        logger.info("%s: the merge runs again, its commit lost: %s", merge.table, lost)

    with KeptSource() as sources:
        for attempt in attempts_at_a_merge(lambda: commits.may_redo, log):
            with attempt:
                commits.may_redo = False
                # A copy has no plan that Spark made with the files of the version that lost.
                result = _with_source(replace(merge), terms, commits, sources)
    return replace(result, commit_attempts=commits.made, files_redone=commits.files_redone)


def _with_source(
    merge: ResolvedMerge, terms: Terms, commits: CommitAttempts, sources: KeptSource
) -> MergeResult:
    """Run attempts until one keeps its materialized source to the end."""
    max_attempts = int(merge.spark.conf.get(_MAX_ATTEMPTS, "4") or 4)
    attempts = Retrying(
        retry=retry_if_exception_type(SourceLostError),
        stop=stop_after_attempt(max_attempts),
        before_sleep=_log_retry,
        reraise=True,
    )
    try:
        for attempt in attempts:
            with attempt:
                number = attempt.retry_state.attempt_number
                if number > 1:
                    sources.drop()
                result = _attempt(merge, terms, commits, sources, number)
    except SourceLostError as lost:
        message = delta_message(merge.spark, "sourceMaterializationFailedRepeatedlyInMerge")
        raise SourceLostError(
            f"{message.text} Attempts: {max_attempts}.",
            table=merge.table,
            version=lost.version,
            hint=lost.hint,
            error_class=message.error_class,
            sql_state=message.sql_state,
        ) from lost
    return result


def _log_retry(attempt: RetryCallState) -> None:
    logger.warning(
        "attempt %d lost its materialized source, the merge starts again: %s",
        attempt.attempt_number,
        attempt.outcome.exception() if attempt.outcome else "",
    )


def _attempt(
    merge: ResolvedMerge,
    terms: Terms,
    commits: CommitAttempts,
    sources: KeptSource,
    attempt: int,
) -> MergeResult:
    """Run the phases once, with a new transaction."""
    started = time.perf_counter()
    phases = Phases(merge.spark)
    # Spark refuses some expressions only when it plans a query with them: errors are translated.
    with translated(merge.table), transaction_on(merge) as transaction:
        transaction.refuse_unsupported()
        if terms.is_applied(transaction):
            applied = Strategy.ALREADY_APPLIED.value
            return MergeResult(None, MergeMetrics(), TouchedFiles(), applied)
        terms.check_lease(transaction)
        check_since_analysis(transaction)
        terms.check_version(transaction)
        transaction.evolve_schema()
        with phases.running(
            "materializeSource", "MERGE operation - materialize source", "materializeSourceTimeMs"
        ):
            source = sources.prepared(merge, attempt)
        changes = write_changes(transaction, source, phases)
        check_same_source(merge, source)
        phases.times_ms["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
        metrics = merge_metrics(transaction, source, changes, phases)
        unaffected = num_unaffected(merge, source, changes.matched_source, metrics)
        tell("MERGE operation - committing")
        committing = time.perf_counter()
        try:
            done = commit_changes(transaction, source, changes, metrics, phases, terms, commits)
        except CommitConflictError:
            sources.drop_unless_same(merge)
            raise
        commit_time_ms = round((time.perf_counter() - committing) * 1000)
    committed = done.committed
    unchanged = MergeResult(
        None,
        done.metrics,
        TouchedFiles(),
        Strategy.NONE.value,
        attempts=attempt,
        source_materialization=source.reason,
        num_source_rows_unaffected=unaffected,
    )
    if committed.version is None:
        return unchanged
    return replace(
        unchanged,
        version=committed.version,
        touched_files=_touched_files(done.changes),
        strategy=done.changes.strategy.value,
        commit_time_ms=commit_time_ms,
        warnings=_after_commit(done, unchanged, changes),
    )


def _after_commit(done: Commit, result: MergeResult, first: Changes) -> tuple[str, ...]:
    """Do what Delta does after a merge's commit, update the key index, and return the warnings.

    Args:
        done: The commit.
        result: What the merge counted.
        first: The changes that it first tried to commit.
    """
    transaction, changes, committed = done.transaction, done.changes, done.committed
    merge = transaction.merge
    statistics: dict[str, int | str] = {
        **result.metrics,
        "materializeSourceReason": result.source_materialization,
        "materializeSourceAttempts": result.attempts,
    }
    afterwards = AfterCommit(merge.table, committed.version, list(committed.warnings))
    with afterwards.step("recording Delta's event"):
        transaction.record_event(statistics)
    with afterwards.step("refreshing cached queries"):
        transaction.recache()
    if changes is not first:
        with afterwards.step("deleting files that were written again"):
            transaction.own_files.delete(written_by_one(first, changes))
    with afterwards.step("updating the key index"):
        if stored_index(transaction.table) is not None:
            none = changes.touched.none()
            written = none if changes.written is None else changes.written.files
            index_new_files(latest(merge.spark, transaction.log), written, merge.table)
    return tuple(afterwards.warnings)


def _touched_files(changes: Changes) -> TouchedFiles:
    """Return the touched files: removed ones, and those added again with a new vector."""
    removed = changes.touched.paths
    gone = set(changes.removed.paths)
    marked = tuple(path for path in removed if path not in gone)
    written = changes.written.files.paths if changes.written is not None else ()
    return TouchedFiles(removed, written + marked, changes.touched.size_in_bytes)
