"""A merge, phase by phase.

1. Resolve: Delta's analyzer says what the statement means (delta.analyzer).
2. Materialize the source: read once, counted, measured (source).
3. Find touched files: the pairs of matching rows, and the clause that takes each (touched_files).
4. Write all changes: new rows, and touched files rewritten or their changed rows marked (write).
5. Commit: files removed and added in one transaction, with metrics for the history (metrics).
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_attempt

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.features import refuse_unsupported
from deltaweave.delta.transaction import Transaction, transaction_on
from deltaweave.engine.metrics import merge_metrics
from deltaweave.engine.outcome import MergeMetrics, MergeResult, TouchedFiles
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import prepared_source
from deltaweave.engine.write import Changes, write_changes
from deltaweave.errors import SourceLostError

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = "spark.databricks.delta.merge.materializeSource.maxAttempts"


def run(merge: ResolvedMerge, idempotency: tuple[str, int] | None = None) -> MergeResult:
    """Run a resolved merge and commit it.

    Args:
        merge: The statement, resolved in this session.
        idempotency: An (application id, version) pair put into the same commit. If the table
            already holds that version or a later one of that id, nothing is done.

    Raises:
        DeltaweaveError: A subclass that says what happened; nothing was committed.
    """
    attempts = Retrying(
        retry=retry_if_exception_type(SourceLostError),
        stop=stop_after_attempt(int(merge.spark.conf.get(_MAX_ATTEMPTS, "4") or 4)),
        before_sleep=before_sleep_log(logger, logging.WARNING),
        reraise=True,
    )
    for attempt in attempts:
        with attempt:
            result = _attempt(merge, idempotency, attempt.retry_state.attempt_number)
    return result


def _attempt(
    merge: ResolvedMerge, idempotency: tuple[str, int] | None, attempt: int
) -> MergeResult:
    """One run from a clean state: a new transaction, the source materialized anew (row S5)."""
    started = time.perf_counter()
    phases = Phases(merge.spark)
    with transaction_on(merge) as transaction, ExitStack() as stack:
        refuse_unsupported(transaction.snapshot, table=merge.table)
        if idempotency is not None and transaction.last_applied(idempotency[0]) >= idempotency[1]:
            logger.info("%s: %s was applied before", merge.table, idempotency)
            return MergeResult(None, MergeMetrics(), TouchedFiles(), "already-applied")
        transaction.check_schema()
        transaction.evolve_schema()
        with phases.running(
            "materializeSource", "MERGE operation - materialize source", "materializeSourceTimeMs"
        ):
            source = stack.enter_context(prepared_source(merge, attempt))
        changes = write_changes(transaction, source, phases)
        phases.times_ms["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
        metrics = merge_metrics(transaction, source, changes, phases)
        version = _commit(transaction, changes, metrics, idempotency)
    if version is None:
        return MergeResult(None, metrics, TouchedFiles(), "none")
    transaction.follow_up(metrics)
    return MergeResult(version, metrics, _touched_files(changes), changes.strategy)


def _commit(
    transaction: Transaction,
    changes: Changes,
    metrics: MergeMetrics,
    idempotency: tuple[str, int] | None,
) -> int | None:
    """Commit, unless nothing changed and there is no idempotency pair to keep."""
    has_changes = len(changes.touched) or metrics.num_target_files_added
    if not has_changes and idempotency is None and not transaction.changes_metadata:
        logger.info("%s: nothing changed, nothing committed", transaction.merge.table)
        return None
    return transaction.commit(
        removed=changes.removed if changes.marked is None else None,
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
    return TouchedFiles(removed=removed, added=written + marked)
