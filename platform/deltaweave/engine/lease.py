"""The lease of a merge: what must still hold of the table when the merge commits."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deltaweave.delta.commit import Transaction, is_applied
from deltaweave.errors import CommitConflictError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """What the caller wants to hold; `deltaweave.merge` describes the options.

    Attributes:
        idempotency: An (application id, version) pair for the same commit, or None.
        applied_before: The version of that id that the table must still hold at the commit, -1 for
            none; None for any.
        computed_from: The version of the target that the merge must read; None for the newest.
    """

    idempotency: tuple[str, int] | None
    applied_before: int | None
    computed_from: int | None

    def is_applied(self, transaction: Transaction) -> bool:
        """Whether the table holds the idempotency pair, or a later version of its id.

        Raises:
            CommitConflictError: It holds neither the pair nor the version `applied_before`.
        """
        if self.idempotency is None:
            return False
        table, pair = transaction.merge.table, self.idempotency
        held = transaction.last_applied(pair[0])
        version = transaction.version
        if not is_applied(pair, held, self.applied_before, table=table, version=version):
            return False
        logger.info("%s: %s was applied before", table, pair)
        return True

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
