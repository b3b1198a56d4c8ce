"""Transaction ids (application id, version), by which tables know what was applied to them.

See the Delta protocol, "Transaction Identifiers". A session can set an id for its writes, which
Delta reads from the configuration for every DML statement. An id given to the merge takes
precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.delta.jvm import PAIR_VERSION, DeltaTransaction, JavaObject, Jvm, active, is_on
from deltaweave.delta.log import TableSnapshot
from deltaweave.errors import CommitConflictError, StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION_ID = "spark.databricks.delta.write.txnAppId"
VERSION = PAIR_VERSION
AUTO_RESET = "spark.databricks.delta.write.txnVersion.autoReset.enabled"


OF_A_PART = {"txnAppId": "deltaweave", "txnVersion": "0"}
"""Write options that stop Delta from using the session's transaction id: it takes this one, if it
is the first of its table. A write that is committed here leaves the id out."""


class TransactionId(NamedTuple):
    """An id by which a table knows what was applied to it (protocol, "Transaction Identifiers").

    Attributes:
        application_id: Who applies something, e.g. a loader.
        version: How far it got.
    """

    application_id: str
    version: int


_is_hidden: ContextVar[bool] = ContextVar("session_id_is_hidden", default=False)


@dataclass(frozen=True)
class Lease:
    """What a table must still hold when a merge commits, and what the commit adds to it.

    Attributes:
        application_id: An application id; None if nothing must hold.
        held: The version that the table must hold of it, -1 for none.
        marks: Application ids and versions that go into the same commit.
        are_committed_alone: Whether the marks are committed if the merge changes nothing.
        before_commit: Called when all rows of the merge are written, and none was refused, before
            they are committed, also if there is nothing to commit. If it raises, nothing is
            committed. It is called again if the merge runs again.
    """

    application_id: str | None
    held: int
    marks: Mapping[str, int] = field(default_factory=dict)
    are_committed_alone: bool = True
    before_commit: Callable[[], None] | None = None

    def check(self, held: int, *, table: str, version: int) -> None:
        """Fail where the table no longer holds the version.

        Args:
            held: The version of the lease's id in the table, read in the transaction that commits,
                so that Delta refuses the commit if another one with the same id wins.

        Raises:
            CommitConflictError: The table holds another version.
        """
        if held != self.held:
            raise CommitConflictError(
                f"another run committed version {held} of {self.application_id} meanwhile, and "
                f"this merge was prepared for version {self.held}.",
                table=table,
                version=version,
                hint="Run it again: it is then prepared for the new version.",
            )


def is_applied(
    transaction_id: TransactionId,
    held: int,
    applied_before: int | None,
    *,
    table: str,
    version: int,
) -> bool:
    """Return whether a table holds the transaction id already.

    `held` must have been read in the transaction that commits the id. Delta then refuses the
    commit if another commit with the same id wins. The id is thus a lease, held from the read to
    the commit.

    Args:
        held: The version that the table holds of the application id, -1 for none.
        applied_before: The version that the table must hold because the rows were computed from it,
            or None.

    Raises:
        CommitConflictError: The table holds neither the id nor the version that the rows were
            computed from.
    """
    application_id, wanted = transaction_id
    if held < wanted and applied_before is not None and held != applied_before:
        raise CommitConflictError(
            f"another run applied {application_id} up to version {held} meanwhile, and these rows "
            f"continue from {applied_before}.",
            table=table,
            version=version,
            hint="Run it again: it will read what is left to apply.",
        )
    return held >= wanted


def last_applied(transaction: DeltaTransaction, table: TableSnapshot, application_id: str) -> int:
    """Return the newest version that an application id committed to a table, or -1.

    It is registered as read: Delta refuses the commit if another one with the same id wins.
    """
    ids = table.listed_ids
    if ids is None:
        return int(transaction.txnVersion(application_id))
    transaction.readTxn().addOne(application_id)  # as `txnVersion` does, which takes a job
    return ids.get(application_id, -1)


def session_transaction_id(spark: SparkSession, *, table: str) -> TransactionId | None:
    """Return the transaction id in the session's settings.

    None without one, and in `without_session_transaction_id`.

    Raises:
        StatementError: Only one half of it is set, or the version is no number.
    """
    if _is_hidden.get():
        return None
    application, version = spark.conf.get(APPLICATION_ID, None), spark.conf.get(VERSION, None)
    if application is None and version is None:
        return None
    if application is None or version is None or not version.lstrip("-").isdigit():
        raise StatementError(
            f"{APPLICATION_ID} is {application!r} and {VERSION} is {version!r}.",
            table=table,
            hint="Set both, the version as a whole number, or neither.",
        )
    return TransactionId(application, int(version))


@contextmanager
def without_session_transaction_id() -> Iterator[None]:
    """Hide the session's transaction id from this thread's merges, which are a part of a write."""
    token = _is_hidden.set(True)
    try:
        yield
    finally:
        _is_hidden.reset(token)


def run_command(spark: SparkSession, command: str, *, own: SparkSession) -> None:
    """Run a command of Delta in a session of the engine, whose settings it takes.

    Names in it mean what they mean in `spark`: no copy of a session has catalogs that were set up
    in it. Without the session's id in `without_session_transaction_id`.
    """
    session = own._jsparkSession
    if _is_hidden.get():
        session = session.cloneSession()  # other threads may use the session's own settings
        for key in (APPLICATION_ID, VERSION):
            session.conf().unset(key)
    parsed = session.sessionState().sqlParser().parsePlan(command)
    with active(spark):
        resolved = Jvm.of(spark).resolved(parsed)
    Jvm.singleton(Jvm.of(spark).sql.classic, "Dataset").ofRows(session, resolved)


def reset_session_transaction_id(spark: SparkSession) -> None:
    """Unset the version after its use, if the session asks for that."""
    if is_on(spark, AUTO_RESET, otherwise=False):
        spark.conf.unset(VERSION)


def transaction_id(jvm: Jvm, application_id: str, version: int) -> JavaObject:
    """Build the action that puts a transaction id into a commit."""
    now = jvm.option(jvm.java.lang.System.currentTimeMillis())
    return jvm.delta.actions.SetTransaction(application_id, version, now)
