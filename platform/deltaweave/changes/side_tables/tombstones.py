"""Remembers deletes, so that late events do not undo them.

A table of current rows holds nothing about a deleted key. As long as older events may arrive, the
delete is kept in a small Delta table in the table's directory, which VACUUM skips.

The delete is written right before the table's commit. A crash between the two leaves a delete that
the table has not applied. The next batch with events of that key applies it, e.g. the same batch
again. After a RESTORE, only the deletes count that the restored version has (`side_table`).

Deletes are only appended, so concurrent batches do not conflict here. The newest delete of a key
counts. From time to time old deletes are removed and the files are compacted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from deltaweave.changes.conversions import as_constant, collectable, nullable
from deltaweave.changes.events import (
    DELETE,
    OPERATION,
    PREFIX,
    SEQUENCE,
    TRUNCATE,
    Events,
    last_at,
)
from deltaweave.changes.side_tables.side_table import (
    NOTED,
    TAKEN_OVER,
    TOMBSTONES,
    Noting,
    SideTable,
    check_has_keys,
    fitted,
    noted_at,
    noted_before,
    rows_of_clone,
    settled,
)
from deltaweave.changes.side_tables.stored_events import to_events, to_stored
from deltaweave.delta.commit import alone_on_local_disk
from deltaweave.delta.jvm import grouped
from deltaweave.delta.log import Commit, TableSnapshot
from deltaweave.errors import (
    CommitConflictError,
    LockFileError,
    SettingError,
    TableLockedError,
)
from deltaweave.identifiers import column, quoted

logger = logging.getLogger(__name__)

DELETED = f"{PREFIX}deleted"
"""Column of changes: the sequence of the key's newest delete."""

EMPTIED = "deltaweave/emptied"
"""The application id, in tables of events, whose version grows with each event that empties the
table."""

TIDIED_EVERY = 32  # batches with deletes
_OF_ALL = f"{PREFIX}of_all_keys"
_REMEMBERED = f"{PREFIX}remembered"


@dataclass(frozen=True)
class Tombstones(SideTable):
    """The remembered deletes of a table."""

    DIRECTORY = TOMBSTONES

    def noting(self, events: Events, keep_for: timedelta, noted: int | None) -> Noting:
        """Prepare to remember the deletes among the events, and from time to time remove old ones.

        Args:
            events: The events.
            keep_for: How long deletes are kept.
            noted: When they are noted, in µs since 1970; None if they are not. The commit that
                applies them names it (`lineage.REMEMBERED`).
        """
        if noted is None or (not events.deletes and events.truncated is None):
            return Noting(None, self.version())
        self.create_if_missing(events)
        check_has_keys(self.kept_in.snapshot(), events.shape)
        version = self.version()
        if version and version % TIDIED_EVERY == 0:
            # Keeps this batch's own, however long an attempt takes.
            self._tidy(noted_before(keep_for, noted))
        return Noting(noted, self.version(), partial(self.remember, events, noted))

    def remember(self, events: Events, noted: int) -> int | None:
        """Add the deletes among the events; return the committed version."""
        is_truncate = F.col(OPERATION) == TRUNCATE
        # The key of a truncate, if it has one, means nothing.
        keys = [F.when(~is_truncate, column(key)).alias(key) for key in events.shape.keys]
        deletes = events.rows.where(F.col(OPERATION).isin(DELETE, TRUNCATE))
        deletes = deletes.select(*keys, is_truncate.alias(_OF_ALL), SEQUENCE)
        grouping = [*map(quoted, events.shape.keys), _OF_ALL]
        newest = grouped(deletes, grouping, [F.max(SEQUENCE).alias(SEQUENCE)])
        emptied = {}
        if events.truncated is not None:
            emptied[EMPTIED] = (self.kept_in.last_applied(EMPTIED) or 0) + 1
        rows = to_stored(newest, events.shape).withColumn(NOTED, noted_at(noted))
        rows = fitted(rows, self.kept_in)
        return self.kept_in.write(rows, "append", applied=emptied).version

    def _tidy(self, long_ago: str) -> None:
        """Remove old deletes and compact the files, unless a concurrent batch does."""
        try:
            self.kept_in.delete(long_ago)
            kept_in = self.kept_in
            with alone_on_local_disk(
                kept_in.spark, kept_in.location(), table=kept_in.path_or_name, operation="OPTIMIZE"
            ):
                self.kept_in.compact()
        except (CommitConflictError, TableLockedError, LockFileError, SettingError) as error:
            # The deletes are committed. A later batch tidies up.
            logger.info("%s: expired deletes are not removed now: %s", self.kept_in, error)

    def have_emptied(self) -> bool:
        """Return whether an event is remembered that emptied the table."""
        kept = self.kept_in.snapshot() if self.version() >= 0 else None
        may_have = kept is not None and _may_empty(kept)
        return may_have and bool(self.kept_in.read().where(F.col(_OF_ALL)).take(1))

    def create_if_missing(self, events: Events) -> None:
        """Create the table of deletes, with the types of the events' keys and sequences."""
        self.create_with(_tombstone_schema(events))

    def with_current_deletes(self, changes: DataFrame, events: Events) -> DataFrame:
        """Add the last known deletes as `with_deletes` does, but evaluated when the result is used.

        Deletes that are remembered while the query is planned do not count: they may be of a batch
        that it does not read. Spark fixes the time before Delta chooses the tables' versions.
        """
        check_has_keys(self.kept_in.snapshot(), events.shape)
        rows = self.kept_in.read().where(F.col(NOTED) <= F.current_timestamp())
        joined = changes.join(_newest_of_keys(rows, events), list(events.shape.keys), "left")
        return joined.withColumn(DELETED, F.greatest(DELETED, _REMEMBERED)).drop(_REMEMBERED)

    def with_deletes(
        self,
        changes: DataFrame,
        events: Events,
        version: int,
        table: TableSnapshot | None = None,
        cloned: Commit | None = None,
    ) -> DataFrame:
        """Add to the changes, one for each key, the key's last known delete at a version.

        Args:
            changes: The keys, `_cdc_deleted` of the events alone, and other columns.
            events: The events.
            version: The version of these tombstones; -1 if there are none.
            table: The version of the table that is read, unless these were settled for it.
            cloned: The commit by which that table was cloned, if these may lack its source's.

        Returns:
            The changes, with `_cdc_deleted` over all known deletes.
        """
        known: list[Column] = [F.col(DELETED)]
        if events.truncated is not None:
            known.append(last_at(events.truncated))
        rows, may_empty = self._deletes_at(version, events, table, cloned)
        if rows is not None:
            if may_empty:
                emptied = _last_emptied(rows, events)
                known += [] if emptied is None else [last_at(emptied)]
            changes = changes.join(_newest_of_keys(rows, events), list(events.shape.keys), "left")
            known.append(F.col(_REMEMBERED))
        latest = F.greatest(*known) if len(known) > 1 else known[0]
        return changes.withColumn(DELETED, latest).drop(_REMEMBERED)

    def _deletes_at(
        self, version: int, events: Events, table: TableSnapshot | None, cloned: Commit | None
    ) -> tuple[DataFrame | None, bool]:
        """Return the deletes as of a version, and whether some may be of all keys."""
        if version < 1 and table is not None and cloned is not None:  # nothing was written yet
            return rows_of_clone(table, cloned, TOMBSTONES), True
        if version < 0:
            return None, False
        kept = self.kept_in.snapshot(version)
        check_has_keys(kept, events.shape)
        found = None if table is None else settled(kept, table, TOMBSTONES)
        if found is None:
            return kept.read_whole(), _may_empty(kept)
        return found.rows, _may_empty(kept) or found.takes_over


def _may_empty(kept: TableSnapshot) -> bool:
    """Return whether some of the remembered deletes may be of all keys, by the log alone."""
    return bool(kept.last_applied(TAKEN_OVER) or kept.last_applied(EMPTIED))


def _last_emptied(rows: DataFrame, events: Events) -> Column | None:
    """Return the sequence (`at`) of the last event among the rows that emptied the table."""
    at_type = events.sequence_type["at"].dataType
    last = F.max(F.col(SEQUENCE)["at"].cast(at_type))
    found = rows.where(F.col(_OF_ALL)).agg(collectable(last, at_type)).first()
    return None if found is None else as_constant(found[0], at_type)


def _newest_of_keys(rows: DataFrame, events: Events) -> DataFrame:
    """Return the newest remembered delete of each key."""
    rows = to_events(rows, replace(events.shape, present=None, ignore_nulls=False))
    keys = [quoted(key) for key in events.shape.keys]
    newest = F.max(SEQUENCE).alias(_REMEMBERED)
    return grouped(rows.where(~F.col(_OF_ALL)), keys, [newest])


def _tombstone_schema(events: Events) -> StructType:
    shape, rows = events.shape, events.rows.schema
    return StructType(
        [
            *[StructField(shape.stored(key), nullable(rows[key].dataType)) for key in shape.keys],
            StructField(_OF_ALL, BooleanType()),
            StructField(SEQUENCE, events.sequence_type),
            StructField(NOTED, TimestampType()),
        ]
    )
