"""A merge, phase by phase.

1. Resolve: Delta's analyzer says what the statement means (delta.analyzer).
2. Materialize the source: read once, counted, measured (source).
3. Find touched files: the pairs of matching rows, and the clause that takes each (touched_files).
4. Write all changes: new rows, and touched files rewritten or their changed rows marked (write).
5. Commit: files removed and added in one transaction, with metrics for the history (metrics).

What follows the commit cannot fail the merge: it is told in the result's warnings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.after_commit import AfterCommit
from deltaweave.delta.analysis_checks import check_since_analysis
from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.committing import Committed
from deltaweave.delta.failures import condition_and_state, delta_error, translated
from deltaweave.delta.features import refuse_unsupported
from deltaweave.delta.idempotency import is_applied, reset_session_pair, session_pair
from deltaweave.delta.snapshot import latest
from deltaweave.delta.transaction import Transaction, transaction_on
from deltaweave.engine.key_index import index_new_files, key_index
from deltaweave.engine.metrics import merge_metrics
from deltaweave.engine.outcome import MergeMetrics, MergeResult, TouchedFiles
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import check_same_source, prepared_source
from deltaweave.engine.unaffected_rows import num_unaffected
from deltaweave.engine.write import Changes, write_changes
from deltaweave.errors import CommitConflictError, SourceLostError

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = "spark.databricks.delta.merge.materializeSource.maxAttempts"


def run(
    merge: ResolvedMerge,
    idempotency: tuple[str, int] | None = None,
    applied_before: int | None = None,
    computed_from: int | None = None,
) -> MergeResult:
    """Run a resolved merge and commit it.

    Args:
        merge: The statement, resolved in this session.
        idempotency: An (application id, version) pair put into the same commit. If the table
            already holds that version or a later one of that id, nothing is done. Without it, the
            pair that the session sets for its writes, if any.
        applied_before: The version of that id that the table must hold meanwhile, -1 for none.
        computed_from: The version of the target that the merge must read.

    Raises:
        CommitStateUnknownError: The commit failed, and it cannot be told whether it landed.
        DeltaweaveError: Another subclass that says what happened; nothing was committed.
    """
    pair = idempotency or session_pair(merge.spark, table=merge.table)
    result = _with_retries(merge, pair, applied_before, computed_from)
    if idempotency is not None or pair is None:
        return result
    afterwards = AfterCommit(merge.table, result.version, list(result.warnings))
    with afterwards.step("resetting the session's idempotency pair"):
        reset_session_pair(merge.spark)
    return replace(result, warnings=tuple(afterwards.warnings))


def _with_retries(
    merge: ResolvedMerge,
    idempotency: tuple[str, int] | None,
    applied_before: int | None,
    computed_from: int | None,
) -> MergeResult:
    """Run attempts until one does not lose its materialized source (document row S5)."""
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
                result = _attempt(merge, idempotency, applied_before, computed_from, number)
    except SourceLostError as lost:
        error = delta_error(jvm_.jvm(merge.spark), "sourceMaterializationFailedRepeatedlyInMerge")
        error_class, sql_state = condition_and_state(error)
        raise SourceLostError(
            f"{error.getMessage()} Attempts: {max_attempts}.",
            table=merge.table,
            version=lost.version,
            hint=lost.hint,
            error_class=error_class,
            sql_state=sql_state,
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
    idempotency: tuple[str, int] | None,
    applied_before: int | None,
    computed_from: int | None,
    attempt: int,
) -> MergeResult:
    """One run from a clean state: a new transaction, the source materialized anew."""
    started = time.perf_counter()
    phases = Phases(merge.spark)
    # Spark refuses some expressions only when a plan over them is made.
    with translated(merge.table), transaction_on(merge) as transaction, ExitStack() as stack:
        refuse_unsupported(transaction.snapshot, table=merge.table)
        if idempotency is not None and is_applied(
            idempotency,
            transaction.last_applied(idempotency[0]),
            applied_before,
            table=merge.table,
            version=transaction.version,
        ):
            logger.info("%s: %s was applied before", merge.table, idempotency)
            return MergeResult(None, MergeMetrics(), TouchedFiles(), "already-applied")
        check_since_analysis(transaction)
        if computed_from not in (None, transaction.version):
            raise CommitConflictError(
                f"its source was computed from version {computed_from}.",
                table=merge.table,
                version=transaction.version,
                hint="Compute it again from the newest version.",
            )
        transaction.evolve_schema()
        with phases.running(
            "materializeSource", "MERGE operation - materialize source", "materializeSourceTimeMs"
        ):
            source = stack.enter_context(prepared_source(merge, attempt))
        changes = write_changes(transaction, source, phases)
        check_same_source(merge, source)
        phases.times_ms["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
        metrics = merge_metrics(transaction, source, changes, phases)
        touched_files = _touched_files(changes)
        unaffected = num_unaffected(merge, source, changes.matched_source, metrics)
        committing = time.perf_counter()
        committed = _commit(transaction, changes, metrics, idempotency)
        commit_time_ms = round((time.perf_counter() - committing) * 1000)
    if committed.version is None:
        return MergeResult(
            None,
            metrics,
            TouchedFiles(),
            "none",
            attempt,
            source.reason,
            num_source_rows_unaffected=unaffected,
        )
    statistics: dict[str, int | str] = {
        **metrics,
        "materializeSourceReason": source.reason,
        "materializeSourceAttempts": attempt,
    }
    return MergeResult(
        committed.version,
        metrics,
        touched_files,
        changes.strategy,
        attempt,
        source.reason,
        commit_time_ms,
        _after_commit(transaction, changes, committed, statistics),
        unaffected,
    )


def _after_commit(
    transaction: Transaction,
    changes: Changes,
    committed: Committed,
    statistics: Mapping[str, int | str],
) -> tuple[str, ...]:
    """What Delta does after a merge's commit, and the key index; the warnings."""
    merge = transaction.merge
    afterwards = AfterCommit(merge.table, committed.version, list(committed.warnings))
    with afterwards.step("recording Delta's event"):
        transaction.record_event(statistics)
    with afterwards.step("refreshing cached queries"):
        transaction.recache()
    with afterwards.step("keeping the key index up"):
        if key_index(transaction.table) is not None:
            none = changes.touched.none()
            written = none if changes.written is None else changes.written.files
            index_new_files(latest(merge.spark, transaction.log), written, merge.table)
    return tuple(afterwards.warnings)


def _commit(
    transaction: Transaction,
    changes: Changes,
    metrics: MergeMetrics,
    idempotency: tuple[str, int] | None,
) -> Committed:
    """Commit, unless nothing changed and there is no idempotency pair to keep."""
    has_changes = len(changes.touched) or metrics.num_target_files_added
    if not has_changes and idempotency is None and not transaction.changes_metadata:
        logger.info("%s: nothing changed, nothing committed", transaction.merge.table)
        return Committed(None)
    return transaction.commit(
        removed=changes.removed,
        marked=changes.marked.actions if changes.marked is not None else None,
        written=changes.written,
        metrics=metrics,
        idempotency=idempotency,
    )


def _touched_files(changes: Changes) -> TouchedFiles:
    """Every touched file leaves the log; those that stay come back with a deletion vector."""
    removed = changes.touched.paths
    gone = set(changes.removed.paths)
    marked = tuple(path for path in removed if path not in gone)
    written = changes.written.files.paths if changes.written is not None else ()
    return TouchedFiles(removed, written + marked, changes.touched.size_in_bytes)
