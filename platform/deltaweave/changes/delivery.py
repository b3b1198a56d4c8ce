"""A batch as a caller hands it over: its idempotency pair, and its events that cannot be applied.

A batch may come again. Its unusable events are put into a table of their own (`rescue`), with what
is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave import clauses
from deltaweave._retries import again_after_a_conflict
from deltaweave.changes.events import WRONG, Events
from deltaweave.changes.lineage import OfOneLine, holds_pair, newest_in_line
from deltaweave.changes.side_table import encryption_of, noted_now
from deltaweave.delta.commit import reset_session_pair, session_pair, without_session_pair
from deltaweave.delta.jvm import json_text, suppress_cleanup_errors, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.errors import SourceError, StatementError
from deltaweave.table import Table

RESCUED_SCHEMA = "id STRING, rescued_at TIMESTAMP, reason STRING, message STRING, event STRING"
"""The columns of the table of unusable events: `message` says where the event came from, `event` is
JSON of the source's row or the text of the message, and `id` is a digest of both."""


@dataclass(frozen=True)
class Terms:
    """What a merge that applies a batch commits, and under which conditions.

    Attributes:
        idempotency: The batch's application id and version; None if the lease adds them.
        line: The lease.
    """

    idempotency: tuple[str, int] | None
    line: OfOneLine


@contextmanager
def pair_of_batch(table: Table, given: tuple[str, int] | None) -> Iterator[tuple[str, int] | None]:
    """Yield the pair of a batch: a given one or the session's, which no other write then takes.

    A batch is written by several commits, to the table and to tables beside it.

    Args:
        table: The table to which the batch is applied.
        given: The pair that the caller gives, or None.

    Raises:
        StatementError: Only one half of the session's pair is set.
    """
    pair = given or session_pair(table.spark, table=table.path_or_name)
    with without_session_pair():
        yield pair
    if pair is not None and given is None:
        with suppress_cleanup_errors("the session's idempotency pair"):
            reset_session_pair(table.spark)


@dataclass(frozen=True)
class Delivery:
    """What is the same in all attempts to apply a batch.

    Attributes:
        pair: The batch's application id and version, or None.
        began: The version of the table before the first attempt.
        noted: When its events are noted beside the table, in µs since 1970. The commit that applies
            them names it (`lineage`), whichever attempt had noted them.
    """

    pair: tuple[str, int] | None
    began: int
    noted: int = field(default_factory=noted_now)

    @classmethod
    def of(cls, table: Table, pair: tuple[str, int] | None) -> Delivery:
        """Note a batch that is handed over now."""
        return cls(pair, table.version())

    def terms(self, newest: TableSnapshot, line: OfOneLine) -> Terms:
        """Return the pair and the lease with which a merge applies the batch as a whole.

        RESTORE takes the rows of a batch and leaves its pair, by which all but its deletes would
        count as applied. Then the batch is applied again, and its commit names the pair again. So
        it is where the log does not show it, because a batch that is applied twice changes nothing.

        What was noted is judged by its time where no commit names it. So a commit names it even if
        it changes nothing, unless the table is as it was then.

        Args:
            newest: The version of the table for which its events were noted.
            line: The lease of that version.
        """
        if newest.version > self.began:
            line = replace(line, are_committed_alone=True)
        held = None if self.pair is None else newest.last_applied(self.pair[0])
        if self.pair is None or held is None or held < self.pair[1]:
            return Terms(self.pair, line)
        found = newest_in_line(newest, self.pair[0])
        if found.version is not None and found.version >= self.pair[1]:
            return Terms(self.pair, line)
        return Terms(None, line.with_pair(self.pair, held))


def rescued_table(table: Table, rescued: str | bool) -> Table | None:
    """Return the table that takes the unusable events of a table; None if none does.

    Args:
        table: The table.
        rescued: The path or name of that table; True for the table's with `_rescued` appended;
            False for none.

    Raises:
        StatementError: It is the table itself.
    """
    if isinstance(rescued, str):
        if rescued.rstrip("/") == table.path_or_name.rstrip("/"):
            raise StatementError(
                "rescued is the table itself.",
                table=table.path_or_name,
                operation="applying changes",
                hint="Give another path or name, or True.",
            )
        return Table(table.spark, rescued)
    return table.named_with("_rescued") if rescued else None


def rescue(
    events: Events,
    table: Table,
    into: Table | None,
    *,
    holder: Table,
    pair: tuple[str, int] | None,
) -> None:
    """Put the unusable events of a batch into their table, which is created if it is missing.

    An event that is there already is not put there again, so a batch may be repeated.

    Args:
        events: The batch.
        table: The table to which its other events are applied.
        into: The table of unusable events, or None if there is none.
        holder: The table that holds the batch's idempotency pair once it is applied. Then its
            events were put aside, and may have been corrected since. A RESTORE takes the batch
            back, and what was put aside of it comes again.
        pair: The pair, or None.

    Raises:
        StatementError: The table is encrypted, and the other one is not.
        DeltaweaveError: Nothing was put there.
    """
    if into is None or events.unusable is None:
        return
    if pair is not None and holder.exists() and holds_pair(holder.snapshot(), pair):
        return
    _put(events.unusable, into, encryption_of(table, into))


def num_rescued(table: Table, rescued: str | bool) -> int | None:
    """Return how many unusable events of a table wait in theirs; None if it has no such table.

    Raises:
        SourceError: They cannot be read.
    """
    kept = rescued_table(table, rescued)
    if kept is None:
        return None
    with translated(kept.path_or_name, operation="counting events", otherwise=SourceError):
        return kept.read().count() if kept.exists() else 0


@without_session_pair()
@again_after_a_conflict
def _put(unusable: DataFrame, into: Table, properties: Mapping[str, str]) -> None:
    into.create_if_missing(RESCUED_SCHEMA, properties=dict(properties))
    wrong = F.col(WRONG)
    said = json_text(F.struct(wrong["message"].alias("at"), wrong["event"].alias("event")))
    rows = unusable.select(
        F.sha2(said, 256).alias("id"),
        F.current_timestamp().alias("rescued_at"),
        wrong["reason"].alias("reason"),
        wrong["message"].alias("message"),
        wrong["event"].alias("event"),
    )
    merge = into.merge(rows.dropDuplicates(["id"]), on="t.id = s.id")
    merge.add(clauses.when_not_matched_insert_all()).execute()
