"""Calls Delta's commit, and finds out whether a failed or interrupted call committed.

Delta writes the version first, then its checksum and sometimes a checkpoint, and runs hooks. Errors
of these later steps look like a failed commit. The log decides: the commit succeeded if a version
has the transaction's id.

Delta's commit does not recognize a table on a disk whose directory was deleted, and perhaps created
again, meanwhile: it puts the next version of the deleted table into the new table's log. It is
recognized here. On other storage there is no lock that would keep the answer true until the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from tenacity import (
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from deltaweave.delta.commit.table_lock import TableLock, local_directory
from deltaweave.delta.commit.written_files import OwnFiles, leave_out_lenient_compaction
from deltaweave.delta.jvm import (
    DeltaLog,
    DeltaTransaction,
    raise_hidden_interrupts,
    reported_by,
    started,
    translated,
)
from deltaweave.delta.log import TableSnapshot, commit_file, commit_name, data_path
from deltaweave.errors import CommitConflictError, CommitStateUnknownError, TableReplacedError
from deltaweave.log_store import STATE_UNKNOWN, warn_of_other_drivers

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


def retried_after_conflict(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Repeat a function while another commit wins: up to 10 attempts, some 20 s of waiting.

    It reads everything again, and may be applied twice.
    """
    return retry(
        retry=retry_if_exception_type(CommitConflictError),
        stop=stop_after_attempt(10),
        wait=wait_random_exponential(max=5),
        reraise=True,
    )(function)


@dataclass
class AfterCommit:
    """The steps after a commit, whose failures are warnings.

    Attributes:
        table: What messages call the table.
        version: The version that was committed.
        warnings: What failed, a sentence each.
    """

    table: str
    version: int | None
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Run a step; an interrupt ends it, and the log has what was committed."""
        try:
            with raise_hidden_interrupts():
                yield
        except Exception as error:
            warning = f"version {self.version} is committed; {what} failed: {reported_by(error)}"
            logger.warning("%s: %s", self.table, warning, exc_info=True)
            self.warnings.append(warning)
        except BaseException:
            logger.warning("%s: interrupted after it committed %s", self.table, self.version)
            raise


def check_not_replaced(read: TableSnapshot, *, table: str, operation: str) -> None:
    """Fail if the file of the version that was read is another one now.

    Raises:
        TableReplacedError: The table was replaced.
    """
    directory = local_directory(read.data_path)
    if directory is None or read.version < 0:
        return
    versions = directory / "_delta_log"
    # By this time, Delta too knows versions apart.
    known = int(read.snapshot.logSegment().lastCommitFileModificationTimestamp())
    try:
        current_ms = (versions / commit_name(read.version)).stat().st_mtime_ns // 1_000_000
        is_replaced = current_ms != known
    except FileNotFoundError:
        # Old versions are deleted where there are newer ones.
        is_replaced = not (versions / commit_name(read.version + 1)).exists()
    if is_replaced:
        raise TableReplacedError(table=table, operation=operation, version=read.version)


@contextmanager
def replacement_shown(
    read: TableSnapshot, own_files: OwnFiles, *, table: str, operation: str
) -> Iterator[None]:
    """Raise `TableReplacedError` in place of an error before the commit, if that is the cause.

    Args:
        own_files: The block's files. An error stays if it may have come after the commit, and if
            the commit itself has looked.
    """
    try:
        yield
    except Exception as error:
        if own_files.is_committing or isinstance(error, TableReplacedError):
            raise
        try:
            check_not_replaced(read, table=table, operation=operation)
        except TableReplacedError as replaced:
            raise replaced from error
        except Exception as unknown:
            logger.debug("%s: was it replaced? It is unknown: %s", table, reported_by(unknown))
        raise


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit.

    Attributes:
        version: The version it made, or None where Delta found nothing to commit.
        warnings: What Delta failed to do after it wrote the version.
    """

    version: int | None
    warnings: tuple[str, ...] = ()


def committed(
    transaction: DeltaTransaction,
    commit: Callable[[], int | None],
    read: TableSnapshot,
    *,
    table: str,
    operation: str = "MERGE",
    held: TableLock | None = None,
) -> Committed:
    """Commit, and find out whether it succeeded, whatever happens.

    An interrupt, such as Ctrl-C or the end of a Dagster run, waits for the commit. It is then
    raised, and a log entry reports the commit's outcome. A second interrupt does not wait.

    Args:
        commit: Calls the transaction's commit, and returns the version or None.
        read: The version that the transaction reads.
        held: The table's lock, if the caller may hold it: the commit's end releases it.

    Raises:
        CommitConflictError: Another commit changed what the transaction read.
        TableReplacedError: The table's directory was deleted, and perhaps created again.
        TableLockedError: Another commit held the table's lock for too long.
        CommitStateUnknownError: The commit failed, and the log does not show its outcome.
        DeltaweaveError: Anything else that kept it from being committed.
    """
    permit: SimpleQueue[bool] = SimpleQueue()
    spark, log = read.spark, read.log
    if held is None:
        held = TableLock(spark, data_path(log), table=table, operation=operation)
    lock = held.handed_over()
    future = None
    try:
        # An interrupt ends the wait for the lock: nothing is committed yet.
        lock.take()
        check_not_replaced(read, table=table, operation=operation)
        leave_out_lenient_compaction(spark, transaction, table)
        warn_of_other_drivers(spark, read.data_path)
        future = started(spark, lambda: commit() if permit.get() else None).future
        # By the commit's thread: this one may be interrupted before the commit ends.
        future.add_done_callback(lambda _: lock.release())
        permit.put(True)
        error = future.exception()  # which waits for it
    except BaseException:
        permit.put(False)  # A commit that has not begun does not begin any more.
        if future is None:
            lock.release()
            raise
        future.add_done_callback(lambda _: lock.release())
        try:
            future.exception()
        finally:
            logger.warning("%s: interrupted in its commit: %s", table, _outcome(transaction, log))
        raise
    if error is None:
        return Committed(future.result())
    try:
        version = _landed_after(error, log, transaction)
    except Exception as unreadable:
        logger.warning("%s: the log does not show it: %s", table, reported_by(unreadable))
        raise CommitStateUnknownError(
            f"the commit failed ({reported_by(error)}), and the log does not show its outcome "
            f"({reported_by(unreadable)}).",
            table=table,
            operation=operation,
            version=_read_version(transaction),
            transaction_id=_id(transaction),
        ) from error
    if version is None:
        with translated(table, operation=operation, version=_read_version(transaction)):
            raise error
    warning = f"version {version} is committed; what Delta does then failed: {reported_by(error)}"
    logger.warning("%s: %s", table, warning, exc_info=error)
    return Committed(version, (warning,))


def _landed_after(error: BaseException, log: DeltaLog, transaction: DeltaTransaction) -> int | None:
    """Return the version that a failed commit wrote, or None if it wrote none.

    Raises:
        Exception: The log cannot be read, or a store that did not answer may write it yet.
    """
    version = _landed_at(log, transaction)
    if version is None and STATE_UNKNOWN in str(error):
        raise LookupError("the store did not answer, and may write the version yet")
    return version


def _landed_at(log: DeltaLog, transaction: DeltaTransaction) -> int | None:
    """Return the version that the transaction wrote, or None; read from the log without a job.

    Raises:
        Exception: The log cannot be read.
    """
    done = transaction.committed()
    if done.isDefined():
        return int(done.get().committedVersion())
    if transaction.readSnapshotTableCommitCoordinatorClientOpt().isDefined():
        raise LookupError("its commits are kept by a coordinator, not in its directory")
    configuration, version = log.newDeltaHadoopConf(), int(transaction.readVersion())
    files = log.logPath().getFileSystem(configuration)
    while True:
        version += 1
        file = commit_file(log, version)
        if not files.exists(file):
            return None
        # Delta's writers put commitInfo first.
        if _id(transaction) in log.store().read(file, configuration).head():
            return version


def _id(transaction: DeltaTransaction) -> str:
    return str(transaction.txnId())


def _read_version(transaction: DeltaTransaction) -> int:
    return int(transaction.readVersion())


def _outcome(transaction: DeltaTransaction, log: DeltaLog) -> str:
    """Describe what became of the commit, for a log entry."""
    try:
        version = _landed_at(log, transaction)
    except Exception as error:
        return f"it is not known whether it was committed ({reported_by(error)})"
    return "nothing was committed" if version is None else f"version {version} is committed"
