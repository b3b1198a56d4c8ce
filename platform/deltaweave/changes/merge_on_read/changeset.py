"""The changeset of a merge-on-read table: an append-only Delta table of numbered batches.

A batch holds the events of one micro-batch of a stream, or of one call. Batches are numbered from
1. Each is a partition, so merged batches are deleted by the log alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from deltaweave.changes.conversions import nullable
from deltaweave.changes.events import (
    EVENT_VALUES,
    PREFIX,
    Events,
    EventShape,
    last_truncate,
    values_of,
    values_type,
)
from deltaweave.changes.options import needed_properties
from deltaweave.changes.restores import cloned_by, id_to_commit, newest_in_line, source_of
from deltaweave.changes.side_tables import (
    EMPTIED,
    fitted,
    stored_schema,
    to_events,
    to_stored,
    untaken,
)
from deltaweave.delta.commit import TransactionId
from deltaweave.delta.jvm import collected
from deltaweave.delta.log import Commit, FileList, TableSnapshot, num_physical_rows_column
from deltaweave.errors import DeltaweaveError
from deltaweave.table import Table

logger = logging.getLogger(__name__)

_CREATE_AGAIN = "Or rematerialize, and then delete that directory: the next batch creates it again."

BATCH = f"{PREFIX}batch"
INGESTED = f"{PREFIX}ingested_at"

NUMBERED = "deltaweave/batches"
"""The application id whose version counts the batches of a changeset."""

FIRST = "deltaweave/first_batch"
"""Prefix of application ids, each before a base's id; the version is the base's first batch."""

PURGED = "deltaweave/purged_batch"
"""The application id whose version, in a changeset, is the newest batch that was purged."""


@dataclass(frozen=True)
class Pending:
    """The part of a changeset that is not in the base yet.

    Attributes:
        batches: The number of batches.
        rows: The number of events.
        size_in_bytes: Size of their files.
        oldest: When the oldest batch was appended, or None; not when upkeep rewrote its files.
    """

    batches: int
    rows: int
    size_in_bytes: int
    oldest: datetime | None

    @property
    def age(self) -> timedelta:
        """How long ago the oldest batch was appended."""
        return datetime.now(timezone.utc) - self.oldest if self.oldest else timedelta(0)


@dataclass(frozen=True)
class Batches:
    """Some of a changeset's batches.

    Attributes:
        after: The number of the batch before them.
        table: The version of the changeset that has them.
        newest: The number of the newest batch that the changeset has; 0 for none. `NUMBERED` may
            count later ones, which a RESTORE took back and another may bring back.
        purged: The number of the newest purged batch; 0 if none was purged.
        files: The files of the batches.
        rows: The events of the batches: columns as `Events.rows`.
        may_be_merged: Whether the base may have some of them, because its watermark is unknown.
        cloned: The commit by which the base was cloned, if its own commits name no batch.
    """

    after: int
    table: TableSnapshot
    newest: int
    purged: int
    files: FileList
    rows: DataFrame
    may_be_merged: bool = False
    cloned: Commit | None = None

    def may_be_of_another_base(self, base_id: str) -> bool:
        """Return whether some may be of an earlier base, or of an earlier release."""
        last = self.last_of_another_base(base_id)
        return any(number <= last for number in _numbers_of(self.files, self.table))

    def last_of_another_base(self, base_id: str) -> int:
        """Return the last batch that may belong to an earlier base; 0 if none may."""
        first = first_batch_of_newest_base(self.table, base_id)
        return self.newest if first is None else first - 1

    def are_of_another_base(self, base_id: str) -> bool:
        """Return whether some are of an earlier base, if `may_be_of_another_base`."""
        return not self.table.applied_versions(f"{FIRST}/").keys() <= {f"{FIRST}/{base_id}"}

    @property
    def were_appended_here(self) -> bool:
        """Whether the changeset has the application ids of all of these; a clone lacks them."""
        first = min(_firsts(self.table).values(), default=self.newest + 1)
        return all(number >= first for number in _numbers_of(self.files, self.table))


def first_batch(changeset: TableSnapshot, base_id: str) -> int | None:
    """Return the first batch that was appended to a changeset for a base; None if none was."""
    return _firsts(changeset).get(f"{FIRST}/{base_id}")


def _firsts(changeset: TableSnapshot) -> dict[str, int]:
    """Return the first batch of each base, by its application id; empty before the first append."""
    return changeset.applied_versions(f"{FIRST}/") if _has_numbered(changeset) else {}


def began_after(changeset: TableSnapshot, at_ms: int) -> bool:
    """Return whether a changeset has batches, all of which came after a time in ms since 1970."""
    return (changeset.created_at_ms or 0) > at_ms and _newest_batch(changeset) > 0


def may_hold_of_another_base(changeset: TableSnapshot, base_id: str) -> bool:
    """Return whether batches may be of an earlier base, or of an earlier release."""
    first = first_batch_of_newest_base(changeset, base_id)
    return any(first is None or number < first for number in _numbers_in(changeset))


def first_batch_of_newest_base(changeset: TableSnapshot, base_id: str) -> int | None:
    """Return a base's first batch; None if the newest batches may be of another base.

    An earlier base may be back: RESTORE takes its id over, too.
    """
    firsts = _firsts(changeset)
    first = firsts.get(f"{FIRST}/{base_id}")
    return first if first == max(firsts.values(), default=None) else None


def _numbers_of(files: FileList, changeset: TableSnapshot) -> list[int]:
    """Return the number of the batch of each file."""
    name = changeset.physical_names[BATCH]
    return [int(json.loads(each)[name]) for each in files.rows["partition"].to_pylist()]


def _numbers_in(changeset: TableSnapshot) -> list[int]:
    return _numbers_of(changeset.file_list(), changeset)


def _has_numbered(changeset: TableSnapshot) -> bool:
    """Return whether a batch was appended to a changeset itself.

    A clone has the batches of its source, and none of its application ids.
    """
    return newest_in_line(changeset, NUMBERED).version is not None


def _newest_batch(changeset: TableSnapshot) -> int:
    """Return the number of a changeset's newest batch; 0 if there was none."""
    newest = changeset.last_applied(NUMBERED) or 0
    if _has_numbered(changeset):
        return newest
    return max(newest, _purged_from_source(changeset), *_numbers_in(changeset))


def _purged_from_source(changeset: TableSnapshot) -> int:
    """Return the newest batch that was purged before a changeset was cloned; 0 if it was not.

    If its source cannot be read, all batches before the oldest that it has count as purged.
    """
    if _has_numbered(changeset):
        return 0  # the first append recorded it in this changeset
    oldest = min(_numbers_in(changeset), default=1)
    clone = cloned_by(changeset, -1)
    if clone is None:
        return 0 if changeset.last_applied(NUMBERED) else oldest - 1
    try:
        source = source_of(changeset, clone).version
    except DeltaweaveError as error:
        logger.warning("%s is a clone, whose source cannot be read: %s", changeset.data_path, error)
        return oldest - 1
    return _purged_from(source)


def _purged_from(changeset: TableSnapshot, after: int = 0) -> int:
    """Return the newest batch that was purged; it may be wrong if it is not above `after`."""
    purged = changeset.last_applied(PURGED) or 0
    if purged > after:  # a RESTORE may have brought them back
        found = newest_in_line(changeset, PURGED)
        purged = purged if found.unknown_since else found.version or 0
    return max(purged, _purged_from_source(changeset))


@dataclass(frozen=True)
class Changeset:
    """The events of a merge-on-read table that have not been purged.

    Attributes:
        table: The Delta table that holds them.
    """

    table: Table
    shape: EventShape

    def newest(self) -> int:
        """Return the number of the newest batch; 0 if there was none."""
        return _newest_batch(self.table.snapshot()) if self.table.exists() else 0

    def create_if_missing(
        self, events: Events, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create the table for events like these, with these properties."""
        rows = to_stored(events.rows, self.shape)
        if self.shape.table is None and needed_properties(rows.schema):
            # The base decides their names in files, once it exists.
            rows = rows.drop(*self.shape.keys, EVENT_VALUES)
        stored = stored_schema(rows, self.shape)
        fields = [StructField(each.name, nullable(each.dataType)) for each in stored]
        batch_fields = [StructField(INGESTED, TimestampType()), StructField(BATCH, LongType())]
        # First, because ages are read from bounds, which Delta keeps for the first 32 columns.
        schema = StructType([*batch_fields, *fields])
        needed = {**needed_properties(schema), **(properties or {})}
        self.table.create_if_missing(schema, [BATCH], needed)

    def append(
        self,
        events: Events,
        applied: TransactionId | None,
        merged: int = 0,
        check: Callable[[], None] | None = None,
    ) -> int | None:
        """Append a batch; return its number, or None if its transaction id was appended before.

        RESTORE takes batches back, so they are appended again when they come again.

        Args:
            events: The events.
            applied: Application id and version of the stream's batch, committed with it.
            merged: The newest batch in the base. A new or cloned changeset continues from this
                number, because the base treats batches with lower numbers as merged.
            check: As in `Table.write`.

        Raises:
            CommitConflictError: Another batch has its number. Repeat it.
            DeltaweaveError: Nothing was appended.
        """
        self.create_if_missing(events)
        stored = to_stored(events.rows, self.shape)
        stored = fitted(stored, self.table, stored_schema(stored, self.shape), _CREATE_AGAIN)
        read = self.table.snapshot()
        own = None if applied is None else id_to_commit(read, applied)
        if own is None and applied is not None:
            return None
        number = max(_newest_batch(read), merged) + 1
        ingested = F.current_timestamp()
        rows = stored.withColumns({INGESTED: ingested, BATCH: F.lit(number)})
        # The write is based on the version that gave the number. If two writers take the same
        # number, Delta refuses the later commit.
        pairs = {NUMBERED: number, **dict([own] if own else [])}
        if purged := _purged_from_source(read):
            pairs[PURGED] = purged
        if events.truncated is not None:
            pairs[EMPTIED] = number
        base = self.shape.table
        if base is not None and first_batch_of_newest_base(read, base.table_id) is None:
            pairs[f"{FIRST}/{base.table_id}"] = number
        self.table.write(rows, "append", applied=pairs, computed_from=read.version, check=check)
        return number

    def events(self, after: int) -> DataFrame:
        """Read the events after a batch at the time of reading: columns as `Events.rows`."""
        return self._as_events(self.table.read().where(F.col(BATCH) > after))

    def after(self, batch: int) -> Batches:
        """List the batches after a number that are not purged.

        The files are listed here, so queries need not list them again.
        """
        import numpy as np

        snapshot = self.table.snapshot()
        files = snapshot.file_list()
        numbers = _numbers_of(files, snapshot)
        files = files.where(np.array([number > batch for number in numbers], dtype=bool))
        return Batches(
            batch,
            snapshot,
            max(numbers, default=0),
            _purged_from(snapshot, batch),
            files,
            self._as_events(snapshot.read_files(files)),
        )

    def _as_events(self, rows: DataFrame) -> DataFrame:
        if EVENT_VALUES not in rows.columns:  # no batch was appended yet
            rows = rows.withColumn(EVENT_VALUES, values_of(rows, ()))
        return to_events(rows.drop(BATCH, INGESTED), self.shape)

    def untaken_values(self, batches: Batches) -> list[tuple[str, ...]]:
        """Return the paths, in the changeset, to values of events that no column takes."""
        found = untaken(values_type(batches.table.schema), self.shape)
        has_some = [F.max(is_there) for is_there in found.values()]
        row = batches.table.read_files(batches.files).agg(*has_some).first() if found else None
        return [] if row is None else [path for path, has in zip(found, row, strict=True) if has]

    def truncated(self, batches: Batches) -> Column | None:
        """Return the sequence (`at`) of the batches' last event that empties the table, or None.

        Returns:
            A constant; None if the log says that there is no such event.
        """
        newest = batches.table.last_applied(EMPTIED) or 0
        if newest <= batches.after and batches.were_appended_here:
            return None
        return last_truncate(batches.rows)

    def pending(self, batch: int) -> Pending:
        """Count the batches after a number, by the log alone."""
        import pyarrow.compute as pc

        if not self.table.exists():
            return Pending(0, 0, 0, None)
        snapshot = self.table.snapshot()
        number = F.col("partitionValues")[snapshot.physical_names[BATCH]].cast("bigint")
        files = snapshot.files.where(number > batch)
        # Upkeep rewrites files, but the rows keep the time at which they were appended.
        ingested = F.get_json_object("stats", f"$.minValues['{snapshot.physical_names[INGESTED]}']")
        batches = files.select(  # one job, where aggregates would take three
            number.alias("batch"),
            num_physical_rows_column().alias("rows"),
            "size",
            F.coalesce(F.unix_millis(ingested.cast(TimestampType())), "modificationTime").alias(
                "came"
            ),
        )
        found = collected(batches)
        oldest = pc.min(found["came"]).as_py()
        return Pending(
            len(found["batch"].unique()),
            pc.sum(found["rows"]).as_py() or 0,
            pc.sum(found["size"]).as_py() or 0,
            None if oldest is None else datetime.fromtimestamp(oldest / 1000, timezone.utc),
        )

    def purge(self, batch: int) -> None:
        """Delete the batches up to a number; this only removes their files from the log.

        The same commit records the number, for readers of a base that lacks these batches.
        """
        nothing = self.table.read().where("false")
        up_to = f"{BATCH} <= {batch}"
        purged = {PURGED: batch}
        self.table.write(nothing, "overwrite", replace_where=up_to, applied=purged, once=True)
