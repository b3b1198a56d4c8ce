"""The preconditions of a merge: what must still hold of the table when it commits."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deltaweave.delta.commit import Lease, Transaction, TransactionId, is_applied
from deltaweave.errors import CommitConflictError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preconditions:
    """What the caller wants to hold; `deltaweave.merge` describes the options.

    Attributes:
        idempotency: The transaction id that the commit adds, or None.
        applied_before: The version of that id that the table must still hold at the commit, -1 for
            none; None for any.
        computed_from: The version of the target that the merge must read; None for the newest.
        lease: The version that the table must still hold of an application id, or None.
    """

    idempotency: TransactionId | None = None
    applied_before: int | None = None
    computed_from: int | None = None
    lease: Lease | None = None

    @property
    def transaction_ids(self) -> dict[str, int]:
        """The versions that the commit adds, by their application ids."""
        pair = {} if self.idempotency is None else dict([self.idempotency])
        return pair if self.lease is None else {**pair, **self.lease.marks}

    @property
    def must_commit(self) -> bool:
        """Whether there is something to commit even if the merge changes nothing."""
        of_lease = self.lease is not None and self.lease.marks and self.lease.are_committed_alone
        return self.idempotency is not None or bool(of_lease)

    @property
    def application_ids(self) -> list[str]:
        """The application ids whose versions in the table must not change until the commit."""
        ids = [] if self.idempotency is None else [self.idempotency.application_id]
        lease = None if self.lease is None else self.lease.application_id
        return ids if lease is None else [*ids, lease]

    def is_applied(self, transaction: Transaction) -> bool:
        """Return whether the table holds the idempotency pair, or a later version of its id.

        Raises:
            CommitConflictError: It holds neither the pair nor the version `applied_before`.
        """
        if self.idempotency is None:
            return False
        application, applied = self.idempotency
        table, pair = transaction.merge.table, (application, applied)
        held = transaction.last_applied(application)
        version = transaction.version
        if not is_applied(pair, held, self.applied_before, table=table, version=version):
            return False
        logger.info("%s: %s was applied before", table, pair)
        return True

    def check_lease(self, transaction: Transaction) -> None:
        """Fail where another run has taken the lease.

        Raises:
            CommitConflictError: The table holds another version of its application id.
        """
        if self.lease is not None and self.lease.application_id is not None:
            held = transaction.last_applied(self.lease.application_id)
            self.lease.check(held, table=transaction.merge.table, version=transaction.version)

    def check_version(self, transaction: Transaction) -> None:
        """Fail where the source was computed from another version of the target.

        Raises:
            CommitConflictError: The transaction reads another version.
        """
        if self.computed_from not in (None, transaction.version):
            raise CommitConflictError(
                f"its source was computed from version {self.computed_from}.",
                table=transaction.merge.table,
                version=transaction.version,
                hint="Compute it again from the newest version.",
            )
