"""One run of a merge: what every phase needs to know, the session's settings, the preconditions."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace

from pyspark.sql import SparkSession

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Lease, Transaction, TransactionId, is_applied
from deltaweave.delta.jvm import do_apart, number_setting
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.report import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.errors import CommitConflictError

logger = logging.getLogger(__name__)

ON_DRIVER = "spark.deltaweave.merge.onDriver"
"""Whether small merges run on the driver, with few Spark jobs or none: `auto`, the default (if the
source is known or estimated to be small), `true` (if it turns out to be small) or `false`. With
`false`, Spark also finds all matches; else a driver with a local master looks them up for merges of
up to 4 million source rows, which Spark writes."""

REWRITE_IN_PLACE = "spark.deltaweave.merge.rewriteInPlace"
"""Whether files are rewritten in place: `auto` (if there is enough to copy), `true` or `false`."""

MAX_MARKED_FRACTION = "spark.deltaweave.merge.maxMarkedFraction"
"""A file is rewritten if more than this fraction of its rows would be marked; 1 always marks."""

MAX_COMMIT_ATTEMPTS = "spark.deltaweave.merge.maxCommitAttempts"
"""Maximum commits that a merge tries; 1 never tries again.

Where it is not set, a merge runs `limits.DEFAULT_RUNS` times at most, and tries to commit what it
wrote more often.
"""


@dataclass(frozen=True)
class MergeRun:
    """A run of a merge, once its source is prepared.

    Attributes:
        transaction: The transaction that reads the target and is to commit the changes.
        preconditions: What must still hold of the table at the commit.
        phases: The phases, timed as they run.
    """

    transaction: Transaction
    source: PreparedSource
    settings: MergeSettings
    preconditions: Preconditions
    phases: Phases

    @property
    def statement(self) -> ResolvedMerge:
        """The resolved statement."""
        return self.transaction.merge

    @property
    def table(self) -> str:
        """The target's name in messages."""
        return self.statement.table

    def on(self, transaction: Transaction) -> MergeRun:
        """Return this run with a transaction on a newer version."""
        return replace(self, transaction=transaction)


_NO_LEASE = Lease(None, -1)


@dataclass(frozen=True)
class Preconditions:
    """Conditions that must hold at the commit; see `deltaweave.merge`.

    Attributes:
        idempotency: The transaction id that the commit adds, or None.
        applied_before: The version of that id that the table must still hold at the commit, -1 for
            none; None for any.
        computed_from: The version of the target that the merge must read; None for the newest.
        lease: The version that the table must still hold of an application id, if any.
    """

    idempotency: TransactionId | None = None
    applied_before: int | None = None
    computed_from: int | None = None
    lease: Lease = _NO_LEASE

    @classmethod
    def of(
        cls,
        idempotency: tuple[str, int] | None,
        applied_before: int | None,
        computed_from: int | None,
        lease: Lease | None,
    ) -> Preconditions:
        """Return the preconditions that the arguments of `deltaweave.merge` ask for."""
        transaction_id = TransactionId(*idempotency) if idempotency else None
        return cls(transaction_id, applied_before, computed_from, lease or _NO_LEASE)

    @property
    def given(self) -> list[str]:
        """The names of the preconditions that the caller gave."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not each.default]

    @property
    def transaction_ids(self) -> dict[str, int]:
        """The versions that the commit adds, by their application ids."""
        own = {} if self.idempotency is None else dict([self.idempotency])
        return {**own, **self.lease.marks}

    @property
    def must_commit(self) -> bool:
        """Whether there is something to commit even if the merge changes nothing."""
        of_lease = bool(self.lease.marks) and self.lease.are_committed_alone
        return self.idempotency is not None or of_lease

    @property
    def application_ids(self) -> list[str]:
        """The application ids whose versions in the table must not change until the commit."""
        ids = [] if self.idempotency is None else [self.idempotency.application_id]
        return ids if self.lease.application_id is None else [*ids, self.lease.application_id]

    def is_applied(self, transaction: Transaction) -> bool:
        """Return whether the table holds the transaction id, or a later version of it.

        Fail where it holds neither the id nor the version `applied_before`.
        """
        if self.idempotency is None:
            return False
        table, version = transaction.merge.table, transaction.version
        held = transaction.last_applied(self.idempotency.application_id)
        if not is_applied(
            self.idempotency, held, self.applied_before, table=table, version=version
        ):
            return False
        logger.info("%s: %s was applied before", table, tuple(self.idempotency))
        return True

    def check_lease(self, transaction: Transaction) -> None:
        """Fail where another run has taken the lease."""
        if self.lease.application_id is not None:
            held = transaction.last_applied(self.lease.application_id)
            self.lease.check(held, table=transaction.merge.table, version=transaction.version)

    def before_commit(self, spark: SparkSession) -> None:
        """Do what the lease does before the commit."""
        if self.lease.before_commit is not None:
            do_apart(spark, self.lease.before_commit)

    def check_version(self, transaction: Transaction) -> None:
        """Fail where the source was computed from another version of the target."""
        if self.computed_from not in (None, transaction.version):
            raise CommitConflictError(
                f"its source was computed from version {self.computed_from}.",
                table=transaction.merge.table,
                version=transaction.version,
                hint="Compute it again from the newest version.",
            )


ANY_VERSION = Preconditions()
"""No precondition."""


@dataclass(frozen=True)
class Switch:
    """The value of a setting that is `auto`, `true` or `false`; any other text means `false`."""

    setting: str
    text: str

    @property
    def is_auto(self) -> bool:
        """Whether the engine decides by what it costs."""
        return self.text == "auto"

    @property
    def is_forced(self) -> bool:
        """Whether costs do not count."""
        return self.text == "true"

    @property
    def verdict(self) -> Verdict:
        """Whether the setting allows what it is for."""
        is_allowed = self.is_auto or self.is_forced
        return YES if is_allowed else no(f"{self.setting} is {self.text}")


@dataclass(frozen=True)
class MergeSettings:
    """The settings of one merge.

    Attributes:
        local: Whether the local backend may work (`ON_DRIVER`).
        in_place: Whether files may be copied in place (`REWRITE_IN_PLACE`).
        max_marked_fraction: The value of `MAX_MARKED_FRACTION`, or its default.
        max_commits: Maximum calls of Delta's commit.
        max_runs: Maximum runs of the merge.
    """

    local: Switch
    in_place: Switch
    max_marked_fraction: float
    max_commits: int
    max_runs: int

    @classmethod
    def read(cls, spark: SparkSession) -> MergeSettings:
        """Read the settings of a session."""
        commits = int(number_setting(spark, MAX_COMMIT_ATTEMPTS, otherwise=-1, is_whole=True))
        default = limits.DEFAULT_MAX_MARKED_FRACTION
        return cls(
            local=Switch(ON_DRIVER, (spark.conf.get(ON_DRIVER, "auto") or "auto").lower()),
            in_place=Switch(
                REWRITE_IN_PLACE,
                (spark.conf.get(REWRITE_IN_PLACE, "auto") or "auto").strip().lower(),
            ),
            max_marked_fraction=number_setting(spark, MAX_MARKED_FRACTION, otherwise=default),
            max_commits=limits.DEFAULT_COMMIT_ATTEMPTS if commits < 0 else commits,
            max_runs=limits.DEFAULT_RUNS if commits < 0 else commits,
        )
