"""Run a merge, and rerun it after lost commits where that is safe.

A merge whose commit lost recommits the same files if the winning commits did not invalidate them
(`rebase`). Otherwise it reruns, but only if a rerun gives what running the statement later would
give: the statement was resolved against the same table, and neither the source nor a subquery holds
rows of the version that lost (`delta.scan.dependence`).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import (
    AfterCommit,
    Committed,
    TableLock,
    check_since_analysis,
    is_same_table,
    transaction_on,
)
from deltaweave.delta.jvm import (
    delta_message,
    raise_hidden_interrupts,
    reported_by,
    suppress_cleanup_errors,
    translated,
)
from deltaweave.delta.log import TableLog
from deltaweave.delta.scan import clauses_dependence, source_dependence
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine.attempts import was_cancelled
from deltaweave.engine.commit.rebase import rebase
from deltaweave.engine.merge_run import MergeRun, MergeSettings, Preconditions
from deltaweave.engine.prune import index_new_files, stored_index
from deltaweave.engine.report import (
    MergeMetrics,
    MergeResult,
    Phases,
    StrategyName,
    TouchedFiles,
    notify,
)
from deltaweave.engine.source import PreparedSource, check_same_source, prepared_source
from deltaweave.engine.staged import Staged, merge_metrics, num_unaffected
from deltaweave.errors import CommitConflictError, SourceLostError, TableReplacedError

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = "spark.databricks.delta.merge.materializeSource.maxAttempts"


class _MayRerunError(CommitConflictError):
    """Raised where a run's commit lost and the merge may run again."""


@dataclass(frozen=True)
class MergeCommit:
    """The commit of a merge.

    Attributes:
        staged: What it committed.
        first: What the merge first tried to commit.
        metrics: The metrics that it committed.
        unaffected: The source rows that changed no row; None if they are not known.
        committed: What became of it.
        time_ms: How long it took, in ms.
    """

    staged: Staged
    first: Staged
    metrics: MergeMetrics
    unaffected: int | None
    committed: Committed = field(default_factory=lambda: Committed(None))
    time_ms: int = 0


class CommitLoop:
    """The runs of one merge, and their commits.

    Args:
        write: Finds what changes, and writes it: the phases between source and commit.
    """

    def __init__(
        self,
        write: Callable[[MergeRun], Staged],
        preconditions: Preconditions,
        settings: MergeSettings,
    ) -> None:
        self._write, self._preconditions, self._settings = write, preconditions, settings
        self._source = _KeptSource()
        self._commits = self._lost_runs = self._files_redone = 0

    def run(self, statement: ResolvedMerge) -> MergeResult:
        """Run a statement until its commit wins, as long as it may run again."""

        def log(attempt: RetryCallState) -> None:
            lost = attempt.outcome.exception() if attempt.outcome else ""
            logger.info("%s: the merge runs again, its commit lost: %s", statement.table, lost)

        attempts = Retrying(
            retry=retry_if_exception_type(_MayRerunError),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            before_sleep=log,
            reraise=True,
        )
        with self._source:
            for attempt in attempts:
                with attempt:
                    # Spark must not reuse a plan built on the losing version's files.
                    result = self._with_source(replace(statement))
        return replace(result, commit_attempts=self._commits, files_redone=self._files_redone)

    def commit(self, staged: Staged) -> MergeCommit:
        """Commit the output, unless nothing changed and there is no transaction id to keep.

        After a lost commit, it is committed again on the newer version while that is right.

        Raises:
            TableReplacedError: The table's directory was deleted, and perhaps created again.
            CommitConflictError: Other commits won; a `_MayRerunError` if the merge may run again.
        """
        self._preconditions.before_commit(staged.run.statement.spark)
        metrics = merge_metrics(staged)
        commit = MergeCommit(staged, staged, metrics, num_unaffected(staged, metrics))
        notify("MERGE operation - committing")
        started = time.perf_counter()
        must_commit = self._preconditions.must_commit or staged.run.transaction.changes_metadata
        if not staged.changes_table and not must_commit:
            logger.info("%s: nothing changed, nothing committed", staged.run.table)
            return commit
        try:
            commit = self._committed(commit)
        except CommitConflictError:
            self._source.drop_unless_same(staged.run.statement)
            raise
        return replace(commit, time_ms=round((time.perf_counter() - started) * 1000))

    def _with_source(self, statement: ResolvedMerge) -> MergeResult:
        """Run the phases until one run keeps its materialized source to the end."""
        max_attempts = int(statement.spark.conf.get(_MAX_ATTEMPTS, "4") or 4)
        attempts = Retrying(
            retry=retry_if_exception_type(SourceLostError),
            stop=stop_after_attempt(max_attempts),
            before_sleep=_log_lost_source,
            reraise=True,
        )
        try:
            for attempt in attempts:
                with attempt, raise_hidden_interrupts():
                    number = attempt.retry_state.attempt_number
                    if number > 1:
                        self._source.drop()
                    result = self._attempt(statement, number)
        except SourceLostError as lost:
            message = delta_message(statement.spark, "sourceMaterializationFailedRepeatedlyInMerge")
            raise SourceLostError(
                f"{message.text} Attempts: {max_attempts}.",
                table=statement.table,
                version=lost.version,
                hint=lost.hint,
                error_class=message.error_class,
                sql_state=message.sql_state,
            ) from lost
        return result

    def _attempt(self, merge: ResolvedMerge, number: int) -> MergeResult:
        """Run the phases once, with a new transaction, and commit what they wrote."""
        started, phases = time.perf_counter(), Phases(merge.spark)
        preconditions = self._preconditions
        # Spark refuses some expressions only when it plans a query: errors are translated.
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
                "materializeSource",
                "MERGE operation - materialize source",
                "materializeSourceTimeMs",
            ):
                source = self._source.prepared(merge, number)
            run = MergeRun(transaction, source, self._settings, preconditions, phases)
            staged = self._write(run)
            check_same_source(merge, source)
            phases.times_ms["executionTimeMs"] = round((time.perf_counter() - started) * 1000)
            commit = self.commit(staged)
        return merge_result(commit, number)

    def _committed(self, commit: MergeCommit) -> MergeCommit:
        """Commit the first output, or what follows from it after the commits that won."""
        first = commit.first
        with TableLock(
            first.run.statement.spark, first.run.transaction.data_path, table=first.run.table
        ) as lock:
            while True:
                self._commits += 1
                try:
                    return replace(commit, committed=commit.staged.commit(commit.metrics, lock))
                except TableReplacedError:
                    raise
                except CommitConflictError as conflict:
                    with suppress_cleanup_errors("files that were written again"):
                        commit.staged.discard(unless_in=first)
                    rebased = None
                    if self._commits < self._settings.max_commits:
                        wait_after_losses(self._commits)
                        rebased = rebase(first, lock)
                    if rebased is None:
                        self._check_rerun(first, conflict)
                        raise _MayRerunError(
                            conflict.problem,
                            table=conflict.table,
                            version=conflict.version,
                            hint=conflict.hint,
                        ) from conflict
                self._files_redone += rebased.files_redone
                # The metrics stay those of the version that the merge read.
                metrics = merge_metrics(replace(rebased, run=first.run))
                commit = replace(commit, staged=rebased, metrics=metrics)

    def _check_rerun(self, lost: Staged, conflict: CommitConflictError) -> None:
        """Note that a run's commit lost; raise the conflict unless the merge may run again."""
        self._lost_runs += 1
        settings = self._settings
        if self._commits >= settings.max_commits or self._lost_runs >= settings.max_runs:
            raise conflict
        verdict = _may_rerun(lost)
        if not verdict.ok:
            raise _not_rerun(conflict, verdict.reason) from conflict
        self._files_redone += len(lost.touched)


def wait_after_losses(losses: int) -> None:
    """Wait before the same output is committed again: not after two losses, then up to 2 s."""
    if losses > 2:
        time.sleep(random.uniform(0, min(2, 0.05 * 2 ** min(losses, 6))))


def _log_lost_source(attempt: RetryCallState) -> None:
    logger.warning(
        "attempt %d lost its materialized source, the merge starts again: %s",
        attempt.attempt_number,
        attempt.outcome.exception() if attempt.outcome else "",
    )


def _may_rerun(lost: Staged) -> Verdict:
    """Return whether running the merge again gives what a later run of the statement would give."""
    merge, transaction = lost.run.statement, lost.run.transaction
    computed_from = lost.run.preconditions.computed_from
    if computed_from is not None:
        return no(f"its source was computed from version {computed_from} of the table")
    try:
        with raise_hidden_interrupts(), transaction.translated():
            newest = TableLog(merge.spark, transaction.log).latest()
            if not is_same_table(transaction.table, newest):
                return no("the table's schema, properties or protocol changed")
            return _reads_newest(merge)
    except Exception as error:
        if was_cancelled(error):
            raise
        logger.warning(
            "%s: it is unknown whether a rerun is safe: %s", merge.table, reported_by(error)
        )
        return no(f"it is unknown what it reads ({reported_by(error)})")


def _reads_newest(merge: ResolvedMerge) -> Verdict:
    """Return whether source and subqueries hold no rows of the target's older version."""
    source = source_dependence(merge)
    if source.is_unknown:
        return no(
            f"its source may hold rows of the table's older version: it reads {source.because}"
        )
    of_clauses = clauses_dependence(merge)
    if of_clauses.is_unknown:
        return no(
            f"a subquery may hold rows of the table's older version: it reads {of_clauses.because}"
        )
    return YES


def _not_rerun(lost: CommitConflictError, refusal: str) -> CommitConflictError:
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


def merge_result(commit: MergeCommit, attempt: int) -> MergeResult:
    """Do what Delta does after a merge's commit, and build the result.

    Args:
        commit: The commit; its transaction is no longer active.
        attempt: How often the run had to start because its source was lost.
    """
    run, version = commit.staged.run, commit.committed.version
    unchanged = MergeResult(
        None,
        commit.metrics,
        TouchedFiles(),
        StrategyName.NONE.value,
        attempts=attempt,
        source_materialization=run.source.reason,
        num_source_rows_unaffected=commit.unaffected,
    )
    if version is None:
        return unchanged
    return replace(
        unchanged,
        version=version,
        touched_files=_touched_files(commit.staged),
        strategy=commit.staged.strategy.value,
        commit_time_ms=commit.time_ms,
        warnings=_after_commit(commit, unchanged),
    )


def _after_commit(commit: MergeCommit, result: MergeResult) -> tuple[str, ...]:
    """Do what Delta does after a merge's commit, update the key index, and return the warnings."""
    staged, transaction = commit.staged, commit.staged.run.transaction
    table, version = staged.run.table, commit.committed.version
    assert version is not None
    statistics: dict[str, int | str] = {
        **result.metrics,
        "materializeSourceReason": result.source_materialization,
        "materializeSourceAttempts": result.attempts,
    }
    afterwards = AfterCommit(table, version, list(commit.committed.warnings))
    with afterwards.step("recording Delta's event"):
        transaction.record_event(statistics)
    with afterwards.step("refreshing cached queries"):
        transaction.recache()
    if staged is not commit.first:
        with afterwards.step("deleting files that were written again"):
            commit.first.discard(unless_in=staged)
    with afterwards.step("updating the key index"):
        if stored_index(transaction.table) is not None:
            newest = TableLog(transaction.merge.spark, transaction.log).latest()
            index_new_files(newest, staged.new_files, table)
    return tuple(afterwards.warnings)


def _touched_files(staged: Staged) -> TouchedFiles:
    """Return the touched files: removed ones, and those added again with a new vector."""
    touched, removed = staged.touched.paths, set(staged.removed.paths)
    marked = tuple(path for path in touched if path not in removed)
    added = staged.new_files.paths if staged.written is not None else ()
    return TouchedFiles(touched, added + marked, staged.touched.size_in_bytes)


class _KeptSource:
    """Keeps the prepared source from one run of a merge for the next.

    A source that depends on the target is prepared again, since it must read the version that the
    next run reads. A source that may give other rows each time is prepared again, too.
    """

    def __init__(self) -> None:
        self._kept: PreparedSource | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _KeptSource:
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
            with raise_hidden_interrupts(), translated(merge.table):
                is_same = self._kept.gives_same_rows and source_dependence(merge).is_none
        except Exception as error:  # it must not hide that the commit lost
            if was_cancelled(error):
                raise
            logger.warning(
                "%s: it is unknown what the source reads: %s", merge.table, reported_by(error)
            )
            is_same = False
        if not is_same:
            self.drop()
