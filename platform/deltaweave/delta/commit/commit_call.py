"""Calls Delta's commit, and finds out whether a failed or interrupted call committed.

Delta writes the version first, then its checksum and sometimes a checkpoint, and runs hooks. Errors
of these later steps look like a failed commit. The log decides: the commit succeeded if a version
has the transaction's id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from deltaweave.delta.commit.compaction import leave_out_lenient_compaction
from deltaweave.delta.commit.local_disk import TableLock
from deltaweave.delta.commit.replaced_tables import check_not_replaced
from deltaweave.delta.jvm import JavaObject, said_by, started, translated
from deltaweave.delta.log import TableSnapshot, commit_file, data_path
from deltaweave.errors import CommitStateUnknownError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Committed:
    """What became of a commit.

    Attributes:
        version: The version it made, or None where Delta found nothing to commit.
        warnings: What Delta failed to do after it wrote the version.
    """

    version: int | None
    warnings: tuple[str, ...] = ()


def committed(
    spark: SparkSession,
    log: JavaObject,
    transaction: JavaObject,
    commit: Callable[[], int | None],
    *,
    table: str,
    operation: str = "MERGE",
    held: TableLock | None = None,
    read: TableSnapshot | None = None,
) -> Committed:
    """Commit, and find out whether it succeeded, whatever happens.

    An interrupt, such as Ctrl-C or the end of a Dagster run, waits for the commit. It is then
    raised, and a log entry says what became of the commit. A second interrupt does not wait.

    Args:
        spark: The session.
        log: Delta's log of the table.
        transaction: Delta's transaction.
        commit: Calls the transaction's commit, and returns the version or None.
        table: What messages call the table.
        operation: What messages call the operation.
        held: The table's lock, if the caller may hold it: the commit's end releases it.
        read: The version that the transaction reads, if the caller knows it.

    Raises:
        CommitConflictError: Another commit changed what the transaction read.
        TableReplacedError: The table's directory was deleted, and perhaps created again.
        TableLockedError: Another commit held the table's lock for too long.
        CommitStateUnknownError: The commit failed, and the log cannot be read.
        DeltaweaveError: Anything else that kept it from being committed.
    """
    permit: SimpleQueue[bool] = SimpleQueue()
    if held is None:
        held = TableLock(spark, data_path(log), table=table, operation=operation)
    lock = held.handed_over()
    future = None
    try:
        # An interrupt ends the wait for the lock: nothing is committed yet.
        lock.take()
        read = read or TableSnapshot(spark, log, transaction.snapshot())
        check_not_replaced(read, table=table, operation=operation)
        leave_out_lenient_compaction(spark, transaction, table)
        _, future = started(spark, lambda: commit() if permit.get() else None)
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
            logger.warning("%s: interrupted in its commit: %s", table, _told(transaction, log))
        raise
    if error is None:
        return Committed(future.result())
    try:
        version = _landed_at(log, transaction)
    except Exception as unreadable:
        logger.warning("%s: the log cannot be read: %s", table, said_by(unreadable))
        raise CommitStateUnknownError(
            f"the commit failed ({said_by(error)}), and the log cannot be read "
            f"({said_by(unreadable)}).",
            table=table,
            operation=operation,
            version=_read_version(transaction),
            transaction_id=_id(transaction),
        ) from error
    if version is None:
        with translated(table, operation=operation, version=_read_version(transaction)):
            raise error
    warning = f"version {version} is committed; what Delta does then failed: {said_by(error)}"
    logger.warning("%s: %s", table, warning, exc_info=error)
    return Committed(version, (warning,))


def _landed_at(log: JavaObject, transaction: JavaObject) -> int | None:
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


def _id(transaction: JavaObject) -> str:
    return str(transaction.txnId())


def _read_version(transaction: JavaObject) -> int:
    return int(transaction.readVersion())


def _told(transaction: JavaObject, log: JavaObject) -> str:
    """Describe what became of the commit, for a log entry."""
    try:
        version = _landed_at(log, transaction)
    except Exception as error:
        return f"it is not known whether it was committed ({said_by(error)})"
    return "nothing was committed" if version is None else f"version {version} is committed"
