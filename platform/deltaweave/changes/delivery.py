"""A batch from a caller: its transaction id, and its events that cannot be applied.

A batch may come again. `rescue` puts its unusable events into a table of their own, with what is
wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave import clauses
from deltaweave.changes.events import WRONG, Events
from deltaweave.changes.restores import LineageLease, id_to_commit, lineage_lease
from deltaweave.changes.side_tables import encryption_of, fitted, noted_at_present
from deltaweave.delta.commit import (
    TransactionId,
    reset_session_transaction_id,
    retried_after_conflict,
    session_transaction_id,
    without_session_transaction_id,
)
from deltaweave.delta.jvm import json_text, suppress_cleanup_errors, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.errors import SourceError, StatementError
from deltaweave.table import Table

RESCUED_SCHEMA = (
    "id STRING, rescued_at TIMESTAMP, reason STRING, message STRING, event STRING, target STRING"
)
"""The columns of the table of unusable events: `message` says where the event came from, `event` is
JSON of the source's row or the text of the message, and `id` is a digest of both. `target` is the
location of the table to which the event belongs; null in rows of earlier releases."""


@dataclass(frozen=True)
class CommitTerms:
    """The terms on which merges apply a batch to a table.

    Attributes:
        newest: The version of the table.
        began: The version of the table before the first attempt.
        transaction_id: The application id and version that the merge commits, or None.
        is_applied: Whether the table has a batch with this id. Then none of these events count:
            they may be another batch, such as one of a new stream.
    """

    newest: TableSnapshot
    began: int
    transaction_id: TransactionId | None
    is_applied: bool

    @property
    def idempotency(self) -> TransactionId | None:
        """The transaction id by which the merge finds that the batch is applied."""
        return None if self._passes_for_applied else self.transaction_id

    @property
    def _passes_for_applied(self) -> bool:
        """Whether the table still holds the batch's id although its commit was taken back."""
        own, newest = self.transaction_id, self.newest
        held = None if own is None else newest.last_applied(own.application_id)
        return own is not None and held is not None and held >= own.version and not self.is_applied

    def lease(self, noted: int | None) -> LineageLease:
        """Return the lease of a merge, whose commit names the batch and what was noted of it.

        Noted events that no commit names count by their time alone (`Lineage.holds`). So the merge
        commits even if it changes nothing, unless the table is as before the first attempt.
        """
        lease = lineage_lease(self.newest, noted)
        if self.newest.version > self.began:
            lease = replace(lease, are_committed_alone=True)
        if not self._passes_for_applied:
            return lease
        assert self.transaction_id is not None
        held = self.newest.last_applied(self.transaction_id.application_id)
        assert held is not None
        return lease.with_transaction_id(self.transaction_id, held)


@contextmanager
def id_of_batch(table: Table, given: tuple[str, int] | None) -> Iterator[TransactionId | None]:
    """Yield a batch's transaction id, given or the session's, and keep it from other writes.

    A batch is written by several commits, to the table and to tables beside it.

    Raises:
        StatementError: Only one half of the session's id is set.
    """
    transaction_id = (
        TransactionId(*given)
        if given
        else session_transaction_id(table.spark, table=table.path_or_name)
    )
    with without_session_transaction_id():
        yield transaction_id
    if transaction_id is not None and given is None:
        with suppress_cleanup_errors("the session's transaction id"):
            reset_session_transaction_id(table.spark)


@dataclass(frozen=True)
class EventBatch:
    """One batch of events, the same in every attempt to apply it.

    Attributes:
        transaction_id: The batch's application id and version, or None.
        began: The version of the table before the first attempt.
        noted: When its events are noted beside the table, in µs since 1970, in every attempt. The
            commit that applies them names it (`restores.lineage`).
    """

    transaction_id: TransactionId | None
    began: int
    noted: int = field(default_factory=noted_at_present)

    @classmethod
    def of(cls, table: Table, transaction_id: TransactionId | None) -> EventBatch:
        """Start a delivery of this batch."""
        return cls(transaction_id, table.version())

    def commit_terms(self, newest: TableSnapshot) -> CommitTerms:
        """Return the terms on which a merge applies the whole batch, or nothing of it.

        RESTORE undoes the rows of a batch and leaves its id, by which the batch would count as
        applied. Such a batch is applied again, and its commit names it again (`id_to_commit`).
        """
        own = self.transaction_id
        wanted = None if own is None else id_to_commit(newest, own)
        return CommitTerms(
            newest, self.began, wanted or own, is_applied=own is not None and not wanted
        )


def rescued_table(table: Table, rescued: str | bool) -> Table | None:
    """Return the table that takes the unusable events of a table; None if none does.

    Args:
        table: The table.
        rescued: The path or name of that table; True for the table's with `_rescued` appended;
            False for none.

    Raises:
        StatementError: The table of unusable events is the table itself.
    """
    if isinstance(rescued, str):
        into = Table(table.spark, rescued)
        if into.path_or_name.rstrip("/") == table.path_or_name.rstrip("/"):
            raise StatementError(
                "rescued is the table itself.",
                table=table.path_or_name,
                operation="applying changes",
                hint="Give another path or name, or True.",
            )
        return into
    return table.named_with("_rescued") if rescued else None


def rescue(
    events: Events,
    table: Table,
    rescued: str | bool,
    *,
    holder: Table,
    transaction_id: TransactionId | None,
) -> None:
    """Put the unusable events of a batch into their table, which is created if it is missing.

    An event that is there already is not put there again, so a batch may be repeated.

    Args:
        events: The batch.
        table: The table to which its other events are applied.
        rescued: As in `rescued_table`.
        holder: The table whose commits name the batch's transaction id. If one does, the events
            were put aside before, and may have been corrected since. After a RESTORE that undid the
            batch, they are put aside again.
        transaction_id: The id, or None.

    Raises:
        StatementError: The table is encrypted, and the other one is not.
        DeltaweaveError: Nothing was put there.
    """
    into = rescued_table(table, rescued)
    if into is None or events.unusable is None:
        return
    if (
        transaction_id is not None
        and holder.exists()
        and id_to_commit(holder.snapshot(), transaction_id) is None
    ):
        return
    target = table.planned_location()
    same = "t.id = s.id"
    if isinstance(rescued, str):
        same += " AND (t.target IS NULL OR t.target = s.target)"
    _put(events.unusable, target, into, same, encryption_of(table, into))


def num_rescued(table: Table, rescued: str | bool) -> int | None:
    """Return how many unusable events of a table wait in theirs; None if it has no such table.

    Raises:
        SourceError: The unusable events cannot be read.
    """
    kept = rescued_table(table, rescued)
    if kept is None:
        return None
    with translated(kept.path_or_name, operation="counting events", otherwise=SourceError):
        return rescued_of(table, rescued).count() if kept.exists() else 0


def rescued_of(table: Table, rescued: str | bool) -> DataFrame:
    """Read the unusable events of a table, which may share theirs with others.

    Those beside a table are all its own, also if both were moved or renamed together.
    """
    kept = rescued_table(table, rescued)
    assert kept is not None
    rows = kept.read()
    if not isinstance(rescued, str) or "target" not in rows.columns:
        return rows
    return rows.where(F.col("target").isNull() | (F.col("target") == table.planned_location()))


@without_session_transaction_id()
@retried_after_conflict
def _put(
    unusable: DataFrame, target: str, into: Table, same: str, properties: Mapping[str, str]
) -> None:
    into.create_if_missing(RESCUED_SCHEMA, properties=dict(properties))
    wrong = F.col(WRONG)
    text = json_text(F.struct(wrong["message"].alias("at"), wrong["event"].alias("event")))
    rows = unusable.select(
        F.sha2(text, 256).alias("id"),
        F.current_timestamp().alias("rescued_at"),
        wrong["reason"].alias("reason"),
        wrong["message"].alias("message"),
        wrong["event"].alias("event"),
        F.lit(target).alias("target"),
    )
    rows = fitted(rows.dropDuplicates(["id"]), into, way_out=None)
    merge = into.merge(rows, on=same)
    merge.add(clauses.when_not_matched_insert_all()).execute()
