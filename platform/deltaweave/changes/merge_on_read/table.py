"""Merge on read: a base table and the changes to it, read as one and merged from time to time.

If changes arrive faster than a table can be rewritten, they are appended to a changeset, and
readers see base and changeset together. From time to time, one commit merges the changeset into the
base and records the number of the newest merged batch. A reader takes a version of the base and the
batches after its number, so it sees each change once, whatever is merged, purged or killed.

Merged batches are deleted only after a while, because readers may still use the version before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Column, DataFrame

from deltaweave._validation import check_choice, options_of
from deltaweave.changes.current import current_row_columns
from deltaweave.changes.delivery import id_of_batch, rescue, rescued_table
from deltaweave.changes.events import read_events
from deltaweave.changes.merge_on_read.changeset import Changeset, Pending
from deltaweave.changes.merge_on_read.merged_view import METHODS, ViewMethod
from deltaweave.changes.merge_on_read.rematerialization import (
    REMATERIALIZATION_STRATEGIES,
    RematerializationStrategy,
    Rematerialized,
    rematerialized,
)
from deltaweave.changes.merge_on_read.sides import Sides, visible
from deltaweave.changes.merge_on_read.watermark import merged_batch
from deltaweave.changes.options import (
    MergeOnReadOptions,
    check_columns,
    check_types_are_known,
    properties_of_new,
    schema_of,
)
from deltaweave.changes.side_tables import time_before
from deltaweave.delta.commit import TransactionId, without_session_transaction_id
from deltaweave.delta.jvm import active, in_session, own_session
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class MergeOnReadTable:
    """A base table and the changes to it.

    Args:
        spark: A Delta-enabled session.
        base: Path or name of the base, a table of current rows like those of `apply_changes`. The
            first batch creates it if it does not exist.
        changes: Path of the changeset; by default the base's path with `_changes` appended. It
            belongs to this base alone, and no other changeset does: batches of a second one count
            as merged once the base has batches with their numbers, and are purged unread.
        keys: As in `apply_changes`, like all arguments that are not described here.
        inserts: Condition of events that insert; they are read without looking into the base. The
            first event of a key must insert, no other may, and it must not be appended again once
            it is merged. If events break this promise, views by `left_join_inserts` lack the row or
            have it twice until the next rematerialization, which does not rely on it. Keys with a
            remembered delete (`late_by`) are always looked up in the base.
        partition_by: Partition columns of a base that is created. A key's partition must not
            change, unless the base is rematerialized by merge or as a whole.
        late_by: How long deletes are remembered for late events.
        keep_merged_for: How long merged batches are kept. It must be longer than a reader takes
            from choosing a version of the base to reading the changes.
        broadcast_limit_bytes: Changes up to this measured size are broadcast.

    Attributes:
        warnings: What may be wrong with batches that this has appended, a sentence each.
    """

    def __init__(  # noqa: PLR0913 - the public options
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
        message_column: str | None = None,
        rescued: str | bool = False,
        partition_by: Sequence[str] = (),
        late_by: timedelta = timedelta(days=7),
        keep_merged_for: timedelta = timedelta(hours=1),
        broadcast_limit_bytes: int = 2**30,
    ) -> None:
        self.spark, self.warnings = spark, tuple[str, ...]()
        self.base = Table(spark, base)
        self.changes = Table(spark, changes) if changes else self.base.named_with("_changes")
        options = options_of(MergeOnReadOptions, locals())
        options.check(self.base)
        self._options = replace(options, keys=tuple(keys))
        self._rescues = rescued_table(self.base, rescued) is not None
        self._sides = Sides(self.base, self.changes, self._options)

    def append(self, source: DataFrame, *, applied: tuple[str, int] | None = None) -> int | None:
        """Append a batch of events; missing tables are created.

        Args:
            source: The events.
            applied: Application id and version of the batch, which is appended once; by default the
                id that the session sets for its writes, if any.

        Returns:
            The batch's number, or None if it was appended before or is empty.

        Raises:
            StatementError: The events' columns do not fit.
            SourceError: Events cannot be applied, and are not `rescued`.
        """
        with self._in_own_session() as own:
            rows = source if own is self else in_session(source, own.spark)
            try:
                with id_of_batch(own.changes, applied) as transaction_id:
                    return own._append(rows, transaction_id)
            finally:
                self.warnings = own.warnings

    @contextmanager
    def _in_own_session(self) -> Iterator[MergeOnReadTable]:
        """Give this table in the session for the engine's own queries, which it builds as SQL."""
        with active(self.spark), own_session(self.spark) as own:
            if own is self.spark:
                yield self
                return
            table = copy(self)
            table.spark = own
            table.base, table.changes = (
                Table(own, each.path_or_name) for each in (self.base, self.changes)
            )
            table._sides = Sides(table.base, table.changes, self._options)
            yield table

    def _append(self, source: DataFrame, applied: TransactionId | None) -> int | None:
        shape = self._options.shape(self.base, source)
        name, rescued = self.changes.path_or_name, self._options.rescued
        events = read_events(source, shape, table=name, rescues=self._rescues)
        self.warnings = tuple(dict.fromkeys((*self.warnings, *events.warnings)))
        try:
            if events.unusable is not None and self.base.exists():
                # Before the unusable events are put aside.
                self._sides.check_keys(replace(shape, table=self._sides.columns()))
            schema = schema_of(events, current_row_columns(events))
            if events.count:
                check_types_are_known(self.base, events, schema)
            rescue(events, self.base, rescued, holder=self.changes, transaction_id=applied)
            if not events.count:
                return None
            properties = properties_of_new(shape, schema)
            # The changeset comes first, because readers of a base need it.
            if not self.base.exists():
                Changeset(self.changes, shape).create_if_missing(events)
            self.base.create_if_missing(schema, self._options.partition_by, properties)
            check_columns(self.base, schema)
            return self._sides.append(events, applied)
        finally:
            events.release()

    def ingest(
        self, stream: DataFrame, *, name: str, checkpoint: str, every: str | None = None
    ) -> StreamingQuery:
        """Append the batches of a stream, each exactly once.

        A batch is identified by its number and the checkpoint's id, which Spark creates with the
        checkpoint. With a new checkpoint, all batches are appended, as those of a new stream.

        Args:
            stream: A streaming DataFrame, of Kafka, files or a Delta table.
            name: The stream's name, which no other running stream of this session has.
            checkpoint: The directory in which Spark keeps the stream's progress.
            every: The interval of batches, e.g. `10 seconds`. By default it reads what is there.

        Returns:
            The query, which runs.
        """

        def append(batch: DataFrame, number: int) -> None:
            # Not from the query that start() returns, because the first batch may run before that.
            [checkpoint_id] = [q.id for q in stream.sparkSession.streams.active if q.name == name]
            self.append(batch, applied=(f"deltaweave/stream/{checkpoint_id}", number))

        writer = stream.writeStream.queryName(name).option("checkpointLocation", checkpoint)
        runs = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
        return runs.foreachBatch(append).start()

    def read(
        self, method: ViewMethod | Literal["auto"] = "auto", *, where: str | Column | None = None
    ) -> DataFrame:
        """Read the rows as of now: the base with all changes since.

        Both are read at their current versions, even if the DataFrame is used later.

        Args:
            method: How base and changes are joined (`merged_view`). `auto` takes the first that is
                possible of: the anti join, if all changes are newer than the base;
                `left_join_inserts`, if `inserts` is given; `left_join_anti_join`, if the changes
                can be broadcast; and the full outer join.
            where: Condition of key columns, for both sides. Filter the result by other columns,
                because changes may change them.

        Raises:
            StatementError: The method is unknown or does not fit the events, or the condition names
                other columns than keys.
            SourceError: The base lacks batches that were purged, or pending ones lack their keys.
        """
        table = self.base.path_or_name
        check_choice("method", method, ("auto", *METHODS), table=table, operation="reading")
        with self._in_own_session() as own:
            view = own._sides.current_view(where, asks_order=method in ("auto", "anti_join"))
            if method == "auto":
                knows_inserts = self._options.inserts is not None
                method = view.best if knows_inserts else view.best_for_all
            return self._for_caller(visible(view.rows(method), view.base), own)

    def _for_caller(self, rows: DataFrame, own: MergeOnReadTable) -> DataFrame:
        """Return rows of the table in the engine's own session as those of the caller's."""
        return rows if own is self else in_session(rows, self.spark)

    def read_optimized(self) -> DataFrame:
        """Read the base alone, as the last rematerialization left it, without what is `pending`."""
        with self._in_own_session() as own:
            base = own.base.snapshot().read_whole()
            return self._for_caller(visible(base, base), own)

    def create_view(self, name: str) -> None:
        """Create a temporary view that always shows the newest rows.

        It reads both tables as they are when it is queried: the base first, and changes that are
        already in it change nothing. One exception: of batches that are merged after the view was
        made, it shows the rows that others delete from the base, until they are purged. After a
        RESTORE or replacement of the base, append or rematerialize, and make the view again. Make
        it again also when others begin to append events that leave columns out, and use `read()`
        instead when they append events that empty the table. It fails at files that it cannot read,
        whatever the session's settings are then.

        Args:
            name: What SQL calls it in this session.

        Raises:
            StatementError: The options have events that empty the table, one is pending, or one
                that was merged is remembered (`late_by`). A view cannot know of them.
            SourceError: As `read` raises it.
        """
        if self._options.apply_as_truncates is not None:
            raise self._sides.no_view()
        with self._in_own_session() as own:
            rows = self._for_caller(own._sides.rows_when_read(), own)
        rows.createOrReplaceTempView(name)

    def merged_batch(self) -> int:
        """Return the number of the newest batch in the base; 0 for none."""
        return merged_batch(self.base, self.changes)

    def newest_batch(self) -> int:
        """Return the number of the newest appended batch; 0 for none."""
        if not self.base.exists():
            return 0
        with self._in_own_session() as own:
            return Changeset(own.changes, own._sides.shape()).newest()

    def pending(self) -> Pending:
        """Count the batches, rows and bytes that are not in the base yet."""
        merged = self.merged_batch() if self.base.exists() else 0
        with self._in_own_session() as own:
            return Changeset(own.changes, own._sides.shape()).pending(merged)

    def rematerialize(self, strategy: RematerializationStrategy = "auto") -> Rematerialized | None:
        """Merge all current batches into the base, in one commit with the number of the newest.

        Args:
            strategy: `merge` merges the changes; `overwrite` rewrites the base; `replace_where`
                rewrites the partitions in which a row changes; `auto` chooses by the share of rows
                that change, or of the files that hold them. A base that generates columns is always
                merged.

        Returns:
            What it did; None if nothing is pending, or another run did it meanwhile.

        Raises:
            StatementError: The strategy is unknown.
            SourceError: The base lacks batches that were purged.
            CommitConflictError: Another writer changed the base meanwhile. Nothing was committed,
                and this can be repeated.
            DeltaweaveError: Anything else; the base is as it was.
        """
        table = self.base.path_or_name
        check_choice(
            "strategy",
            strategy,
            REMATERIALIZATION_STRATEGIES,
            table=table,
            operation="rematerializing",
        )
        with self._in_own_session() as own:
            return rematerialized(own._sides, strategy)

    @without_session_transaction_id()
    def purge(self) -> int:
        """Delete the batches that were merged at least `keep_merged_for` ago, by the log alone.

        Returns:
            The newest batch that is deleted; 0 for none.
        """
        with self._in_own_session() as own:
            return own._purge()

    def _purge(self) -> int:
        self._sides.settle()
        version = self.base.version_at(time_before(self._options.keep_merged_for))
        merged = 0 if version is None else merged_batch(self.base, self.changes, version)
        merged = min(merged, self.merged_batch())  # a RESTORE may have undone them since
        if not merged:
            return 0
        Changeset(self.changes, self._sides.shape()).purge(merged)
        return merged
