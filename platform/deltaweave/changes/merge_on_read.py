"""Merge on read: a base table and the changes to it, read as one and merged now and then.

Changes come faster than a table can be rewritten: they are appended to a changeset, and readers see
base and changeset together. Now and then the changeset is merged into the base, in one commit with
the number of the newest batch that went in. A reader takes a version of the base, and the batches
after the number in it: whatever is merged, purged or killed meanwhile, it sees each change once.

Batches that are in the base are deleted only when they have been there for a while, for readers
that took the version before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.changes import current_rows
from deltaweave.changes.arguments import (
    check_columns,
    condition_of_keys,
    event_shape,
    needed_properties,
    schema_of,
)
from deltaweave.changes.base_and_batches import (
    at_one_moment,
    fit_into_a_broadcast,
    merged_batch,
    merged_mark,
    retire_earlier_mark,
)
from deltaweave.changes.changeset import Batches, Changeset, Pending
from deltaweave.changes.events import PREFIX, SEQUENCE, Events, EventShape, counted, read_events
from deltaweave.changes.in_order import are_newer
from deltaweave.changes.merged_view import METHODS, MergedView, ViewMethod
from deltaweave.changes.rematerialization import (
    Rematerialized,
    Strategy,
    best_strategy,
    check_strategy,
    write_anew,
)
from deltaweave.changes.tombstones import Tombstones
from deltaweave.changes.truncates import rows_left
from deltaweave.choices import check_choice
from deltaweave.delta.failures import letting_go
from deltaweave.delta.snapshot import TableSnapshot
from deltaweave.errors import StatementError
from deltaweave.identifiers import quoted
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

# Which a task folds in less time than Spark takes for another stage.
_ROWS_OF_A_TASK = 100_000


class MergeOnReadTable:
    """A base table and the changes to it.

    Args:
        spark: A Delta-enabled session.
        base: Path or name of the base, a table of current rows as `apply_changes` keeps them; made
            with the first batch where there is none.
        changes: Path of the changeset; by default that of the base with `_changes` at its end.
        keys: As in `apply_changes`, like those that follow.
        sequence_by: Orders the events of a key.
        apply_as_deletes: Condition of events that delete.
        apply_as_truncates: Condition of events that empty the table.
        inserts: Condition of events that insert; they are read without a look into the base. The
            events promise that the first one of a key inserts, that no other does, and that it is
            not appended again once it is merged. Where they break it, views by
            `left_join_inserts` lack the row, or have it twice, until the next rematerialization,
            which does not rely on it. Keys with a remembered delete (`late_by`) are looked for in
            the base, whatever their events say.
        ignore_null_updates: Whether nulls leave columns as they are.
        present_columns: Column with the names of the columns that an event speaks of.
        column_list: Columns of events that are columns of the table.
        except_column_list: Those that are not.
        partition_by: Partition columns of a base that is made; a key's partition must not change,
            unless the base is rematerialized by merge or as a whole.
        late_by: How long deletes are remembered for events that come late.
        keep_merged_for: How long batches are kept once they are in the base: longer than a reader
            takes from choosing a version of the base to reading the changes.
        broadcast_limit_bytes: Changes up to this measured size are sent to every task.
    """

    def __init__(
        self,
        spark: SparkSession,
        base: str,
        *,
        changes: str | None = None,
        keys: Sequence[str],
        sequence_by: str | Column,
        apply_as_deletes: str | Column | None = None,
        apply_as_truncates: str | Column | None = None,
        inserts: str | Column | None = None,
        ignore_null_updates: bool = False,
        present_columns: str | None = None,
        column_list: Sequence[str] | None = None,
        except_column_list: Sequence[str] | None = None,
        partition_by: Sequence[str] = (),
        late_by: timedelta = timedelta(days=7),
        keep_merged_for: timedelta = timedelta(hours=1),
        broadcast_limit_bytes: int = 2**30,
    ) -> None:
        self.spark = spark
        self.base = Table(spark, base)
        self.changes = Table(spark, changes) if changes else self.base.named_with("_changes")
        self._keys = tuple(keys)
        self._arguments: dict[str, Any] = {
            "keys": self._keys,
            "sequence_by": sequence_by,
            "apply_as_deletes": apply_as_deletes,
            "apply_as_truncates": apply_as_truncates,
            "inserts": inserts,
            "ignore_null_updates": ignore_null_updates,
            "present_columns": present_columns,
            "column_list": column_list,
            "except_column_list": except_column_list,
        }
        self._partition_by = tuple(partition_by)
        self._late_by = late_by
        self._keep_merged_for = keep_merged_for
        self._broadcast_limit_bytes = broadcast_limit_bytes

    def append(self, source: DataFrame, *, applied: tuple[str, int] | None = None) -> int | None:
        """Append a batch of events; both tables are made where they are missing.

        Args:
            source: The events.
            applied: Application id and version of the batch: one that was appended before is not
                again.

        Returns:
            The batch's number, or None where it was appended before, or is empty.

        Raises:
            StatementError: The events' columns do not fit.
            SourceError: An event lacks its key or sequence.
        """
        shape = event_shape(self.base, source, **self._arguments)
        events = read_events(source, shape, table=self.changes.path_or_name)
        try:
            if not events.count:
                return None
            schema = schema_of(events, current_rows.further_columns(events))
            properties = {"delta.enableDeletionVectors": "true", **needed_properties(schema)}
            changeset = Changeset(self.changes, shape)
            if not self.base.exists():
                changeset.create_if_missing(events)  # first: a base is not read without it
                self.base.create_if_missing(schema, self._partition_by, properties)
            check_columns(self.base, schema)
            return changeset.append(events, applied, self.merged_batch())
        finally:
            with letting_go("the events"):
                events.rows.unpersist()

    def ingest(
        self, stream: DataFrame, *, name: str, checkpoint: str, every: str | None = None
    ) -> StreamingQuery:
        """Append what a stream brings, each of its batches exactly once.

        A batch is known by its number and the checkpoint's id, which Spark makes with the
        checkpoint: with a new one, the stream is another, whose batches are all appended.

        Args:
            stream: A streaming DataFrame, of Kafka, files or a Delta table.
            name: The stream's name; no other that runs in this session has it.
            checkpoint: Where Spark keeps how far the stream was read.
            every: How often, e.g. `10 seconds`; by default all that there is now, and no more.

        Returns:
            The query, which runs.
        """

        def append(batch: DataFrame, number: int) -> None:
            # Not of the query that start() returns: the first batch may come before it does.
            [of_checkpoint] = [q.id for q in stream.sparkSession.streams.active if q.name == name]
            self.append(batch, applied=(f"deltaweave/stream/{of_checkpoint}", number))

        writer = stream.writeStream.queryName(name).option("checkpointLocation", checkpoint)
        trigger = (
            writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        )
        return trigger.foreachBatch(append).start()

    def read(
        self, method: ViewMethod | Literal["auto"] = "auto", *, where: str | Column | None = None
    ) -> DataFrame:
        """The rows as of now: the base with all changes since.

        Both are read at the versions that they have now, also if the DataFrame is used later.

        Args:
            method: How base and changes are joined (`merged_view`); `auto` takes the anti join
                where all changes are newer than the base, else the join that knows inserts where
                `inserts` is given, else the one that reads the keys twice where the changes can
                be broadcast, else the full outer join.
            where: Condition of key columns, for both sides. Others belong on the result: a change
                may be what makes a row satisfy them, or not.

        Raises:
            StatementError: The method is not known, or does not fit the events; or the condition
                names other columns than keys.
            SourceError: The base lacks batches that were purged.
        """
        table = self.base.path_or_name
        check_choice("method", method, ("auto", *METHODS), table=table, operation="reading")
        view, events = self._view(where, asks_order=method in ("auto", "anti_join"))
        if method == "auto":
            tells_inserts = self._arguments["inserts"] is not None
            method = view.best if tells_inserts else view.best_for_all
        if method == "left_join_inserts" and events.truncated is not None:
            method = "left_join_anti_join"  # a key that was in the base may be there no more
        return self._visible(view.rows(method))

    def read_optimized(self) -> DataFrame:
        """The base alone, as the last rematerialization left it: behind by what is `pending`."""
        return self._visible(self.base.snapshot().read_whole())

    def create_view(self, name: str) -> None:
        """Make a temporary view of the rows, which always shows the newest.

        It reads both tables as they are when it is queried, whatever was merged and purged
        meanwhile: changes that are in the base change nothing.

        Args:
            name: What SQL calls it in this session.

        Raises:
            StatementError: The table takes events that empty it: when is not known beforehand.
        """
        if self._arguments["apply_as_truncates"] is not None:
            raise StatementError(
                "a view by name cannot know of events that empty the table.",
                table=self.base.path_or_name,
                operation="making a view",
                hint="Use read(), or leave apply_as_truncates out.",
            )
        shape = self._shape()
        tombstones = Tombstones.of(self.base, self._keys)
        events = Events(Changeset(self.changes, shape).events(), shape)
        tombstones.create_if_missing(events)
        newest = tombstones.with_deletes_of_now(current_rows.newest_of_keys(events))
        changes = current_rows.alive(newest, events)
        view = MergedView(self.base.read(), changes, shape, broadcasts=False)
        self._visible(view.rows("left_join_anti_join")).createOrReplaceTempView(name)

    def merged_batch(self) -> int:
        """The newest batch that is in the base; 0 for none."""
        return merged_batch(self.base)

    def newest_batch(self) -> int:
        """The newest batch that was appended; 0 for none."""
        return Changeset(self.changes, self._shape()).newest() if self.base.exists() else 0

    def pending(self) -> Pending:
        """What is not in the base yet."""
        merged = self.merged_batch() if self.base.exists() else 0
        return Changeset(self.changes, self._shape()).pending(merged)

    def rematerialize(self, strategy: Strategy = "auto") -> Rematerialized | None:
        """Bring all batches that there are now into the base, in one commit with their number.

        Args:
            strategy: `merge` changes the rows that change; `overwrite` writes the base anew;
                `replace_where` those of its partitions in which a row changes; `auto` chooses by
                the share of rows that change, and of the files that they are in.

        Returns:
            What it did; None where nothing is pending, or another one did it meanwhile.

        Raises:
            StatementError: The strategy is not known.
            SourceError: The base lacks batches that were purged.
            CommitConflictError: Another writer changed the base meanwhile. Nothing was committed,
                and this can be repeated.
            DeltaweaveError: Anything else; the base is as it was.
        """
        check_strategy(strategy, self.base)
        shape = self._shape()
        changeset = Changeset(self.changes, shape)
        if not self.changes.exists():
            return None
        snapshot, batches = at_one_moment(self.base, changeset)
        until = batches.newest
        if until <= batches.after:
            return None
        events = counted(batches.rows, shape)
        chosen = best_strategy(self.base, events.count) if strategy == "auto" else strategy
        if chosen == "replace_where" and events.truncated is not None:
            chosen = "overwrite"  # all partitions change
        tombstones = Tombstones.of(self.base, self._keys)
        tombstones.remember(events, self._late_by)
        if chosen == "merge":
            pair = (merged_mark(snapshot.id), until)
            done = current_rows.apply_to_current_rows(self.base, events, tombstones, pair)
            written = done.version
        else:
            known = tombstones.version()
            view = self._merged(snapshot, snapshot.read_whole(), batches, events, asks_order=True)
            written = write_anew(self.base, view, snapshot, until, chosen)
            if written is not None and tombstones.version() != known:
                # Deletes that others remembered meanwhile may be of rows that were written just
                # now, and changed nothing in the base when these were not there yet.
                current_rows.apply_to_current_rows(self.base, events, tombstones, None)
        if written is None:
            return None
        retire_earlier_mark(self.base)
        logger.info("%s: batches up to %d are in, by %s", self.base, until, chosen)
        return Rematerialized(written, until, chosen)

    def purge(self) -> int:
        """Delete the batches that have been in the base for `keep_merged_for`, by the log alone.

        Returns:
            The newest batch that there is no more; 0 for none.
        """
        before = datetime.now(timezone.utc) - self._keep_merged_for
        version = self.base.version_at(before)
        merged = merged_batch(self.base, version) if version is not None else 0
        if not merged:
            return 0
        Changeset(self.changes, self._shape()).purge(merged)
        return merged

    def _shape(self) -> EventShape:
        """How the changeset's rows are read: their columns are those of the base."""
        columns = [
            name
            for name in self.base.read().columns
            if name not in self._keys and not name.startswith(PREFIX)
        ]
        return EventShape(
            keys=self._keys,
            sequence_by=F.col(SEQUENCE),
            deletes=None,
            truncates=None,
            columns=tuple(columns),
            present=self._arguments["present_columns"],
            ignore_nulls=self._arguments["ignore_null_updates"],
        )

    def _view(self, where: str | Column | None, *, asks_order: bool) -> tuple[MergedView, Events]:
        """Base and changes at one moment, and the events that these are of."""
        shape = self._shape()
        changeset = Changeset(self.changes, shape)
        snapshot, batches = at_one_moment(self.base, changeset)
        base = snapshot.read_whole()
        rows, truncated = batches.rows, changeset.truncated(batches)
        if where is not None:
            condition = condition_of_keys(where, rows, self._keys, self.base)
            base, rows = base.where(condition), rows.where(condition)
        count = batches.files.num_records
        if count is not None and count <= _ROWS_OF_A_TASK:
            rows = rows.coalesce(1)  # the newest of each key are then found without a shuffle
        events = Events(rows, shape, truncated=truncated)
        return self._merged(snapshot, base, batches, events, asks_order=asks_order), events

    def _merged(
        self,
        snapshot: TableSnapshot,
        base: DataFrame,
        batches: Batches,
        events: Events,
        *,
        asks_order: bool,
    ) -> MergedView:
        """The view of a version's rows, or some of them, and the events of some batches."""
        tombstones = Tombstones.of(self.base, self._keys)
        newest = current_rows.newest_of_keys(events)
        known = tombstones.with_deletes(newest, events, tombstones.version())
        changes = current_rows.alive(known, events)
        asks_order = asks_order and not events.shape.is_partial
        sequence = events.sequence_type
        is_newer = asks_order and are_newer(batches, snapshot, sequence)
        left, fits = (
            rows_left(base, events),
            fit_into_a_broadcast(batches, self._broadcast_limit_bytes),
        )
        return MergedView(left, changes, events.shape, fits, is_newer)

    def _visible(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns that are the user's, in the base's order."""
        names = [name for name in self.base.read().columns if not name.startswith(PREFIX)]
        return rows.select(*map(quoted, names))
