"""Remembers events that the versions in a table of histories do not show.

They are in a side table, and are removed once no older events can come.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType

from deltaweave import clauses
from deltaweave.changes.events import OPERATION, SEQUENCE, Events
from deltaweave.changes.sequence_types import nullable
from deltaweave.changes.side_state import noted_at, settle
from deltaweave.changes.side_table import (
    EVENTS,
    NOTED,
    create_side_table,
    fitted,
    may_hold_noted_before,
    newest_version,
    noted_before,
    side_table,
)
from deltaweave.changes.stored_events import to_events, to_stored
from deltaweave.delta.log import TableSnapshot
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table


@dataclass(frozen=True)
class Remembered:
    """The remembered events of a table.

    Attributes:
        table: The table.
        kept_in: The table that holds them, created with the first one.
        keep_for: How long they are kept.
    """

    table: Table
    kept_in: Table
    keep_for: timedelta

    @classmethod
    def of(cls, table: Table, keep_for: timedelta) -> Remembered:
        """Open the remembered events of a table."""
        return cls(table, side_table(table, EVENTS), keep_for)

    def version(self) -> int:
        """Return the newest version of the remembered events; -1 if there are none."""
        return newest_version(self.kept_in)

    def of_keys(self, events: Events, version: int) -> DataFrame | None:
        """Read the remembered events of a batch's keys at a version: columns as `Events.rows`."""
        if version < 0:
            return None
        rows = self.kept_in.snapshot(version).read_whole()
        kept = to_events(rows, events.shape)
        kept = kept.join(events.key_rows, list(events.shape.keys), "left_semi")
        return kept.select(*map(column, events.rows.columns))

    def may_be_old(self, version: int) -> bool:
        """Return whether a remembered event may be old enough to be removed, by the log alone."""
        return may_hold_noted_before(self.kept_in.snapshot(version), self.keep_for)

    def create(self, rows: DataFrame, events: Events) -> None:
        """Create their table for events like these, if it does not exist."""
        rows = to_stored(rows, events.shape)
        fields = [StructField(each.name, nullable(each.dataType)) for each in rows.schema]
        schema = StructType([*fields, StructField(NOTED, TimestampType())])
        create_side_table(self.kept_in, self.table, schema)

    def settle(self) -> TableSnapshot:
        """Keep the events that the table has now; see `side_state.settle`."""
        return settle(self.kept_in, self.table, EVENTS)

    def add(self, rows: DataFrame, events: Events, noted: int, *, are_distinct: bool) -> int | None:
        """Add events to their table, and remove old ones.

        Args:
            rows: The events to remember, with the columns of `Events.rows`.
            events: The batch whose keys they have.
            noted: When they are noted, in µs since 1970; the commit that applies them names it.
            are_distinct: Whether no two of them have the same key and sequence.

        Returns:
            The committed version; None if nothing is added or removed.
        """
        if not are_distinct:
            rows = rows.dropDuplicates([*events.shape.keys, OPERATION, SEQUENCE])
        rows = fitted(to_stored(rows, events.shape), self.kept_in)
        keys = [quoted(events.shape.stored(key)) for key in events.shape.keys]
        same = [f"t.{key} = s.{key}" for key in keys]
        same += [
            f"t.{name} = s.{name}" for name in (OPERATION, f"{SEQUENCE}.at", f"{SEQUENCE}.tie")
        ]
        rows = rows.withColumn(NOTED, noted_at(noted))
        # Column by column, because Delta expands * to names without quoting them.
        every: dict[str, str | Column] = {quoted(c): column("s", c) for c in rows.columns}
        merge = self.kept_in.merge(rows, on=" AND ".join(same)).add(
            clauses.when_not_matched_insert(every),
            clauses.when_not_matched_by_source_delete(condition=f"t.{noted_before(self.keep_for)}"),
        )
        return merge.execute().version
