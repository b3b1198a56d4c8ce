"""The table of events that could not be applied to another table, with what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave import clauses
from deltaweave.changes.events import Events
from deltaweave.changes.lineage import holds_pair
from deltaweave.changes.side_table import encryption_of
from deltaweave.changes.unusable_events import WRONG
from deltaweave.delta.commit import without_session_pair
from deltaweave.delta.jvm import json_text, translated
from deltaweave.errors import SourceError, StatementError
from deltaweave.retries import again_after_a_conflict
from deltaweave.table import Table

RESCUED_SCHEMA = "id STRING, rescued_at TIMESTAMP, reason STRING, message STRING, event STRING"
"""Its columns: `message` says where the event came from, `event` is JSON of the source's row or the
text of the message, and `id` is a digest of both."""


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
    events: Events, table: Table, into: Table | None, applied: tuple[Table, tuple[str, int] | None]
) -> None:
    """Put the unusable events of a batch into their table, which is created if it is missing.

    An event that is there already is not put there again, so a batch may be repeated.

    Args:
        events: The batch.
        table: The table to which its other events are applied.
        into: The table of unusable events, or None if there is none.
        applied: The table that holds the batch's idempotency pair once it is applied, and the pair:
            then its events were put aside, and may have been corrected since. A RESTORE takes the
            batch back, and what was put aside of it comes again.

    Raises:
        StatementError: The table is encrypted, and the other one is not.
        DeltaweaveError: Nothing was put there.
    """
    if into is None or events.unusable is None:
        return
    holder, pair = applied
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
