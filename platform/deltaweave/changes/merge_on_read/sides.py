"""The base and the changeset of a merge-on-read table, and the view of both at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave.changes.current import (
    OWN_COLUMNS,
    alive,
    as_in_table,
    newest_of_keys,
    rows_left,
)
from deltaweave.changes.epochs import log_fields
from deltaweave.changes.events import (
    COLUMN_SEQUENCES,
    PREFIX,
    PRESENT,
    SEQUENCE,
    Events,
    EventShape,
)
from deltaweave.changes.merge_on_read.changeset import Batches, Changeset
from deltaweave.changes.merge_on_read.merged_view import MergedView
from deltaweave.changes.merge_on_read.watermark import (
    are_newer,
    at_one_moment,
    check_keys_are_as_pending,
    fit_into_a_broadcast,
    merged_batch,
    settle_watermark,
)
from deltaweave.changes.options import MergeOnReadOptions, condition_of_keys
from deltaweave.changes.side_tables import Tombstones, check_are_of, completed, encryption_of
from deltaweave.changes.table_columns import TableColumns, generated, is_computed, numbered
from deltaweave.delta.commit import TransactionId, retried_after_conflict
from deltaweave.delta.jvm import column_named, selected, translated
from deltaweave.delta.log import TableSnapshot, always_strict
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import quoted
from deltaweave.table import Table

# One task combines this many rows in less time than Spark takes for another stage.
_ROWS_OF_A_TASK = 100_000


@dataclass(frozen=True)
class KnownDeletes:
    """The deletes that a base remembers, at a moment.

    Attributes:
        tombstones: What remembers them.
        version: The version of the tombstones; -1 if there are none.
    """

    tombstones: Tombstones
    version: int

    @classmethod
    def newest_of(cls, base: Table) -> KnownDeletes:
        """Read what the base remembers now."""
        tombstones = Tombstones.of(base)
        return cls(tombstones, tombstones.version())

    def are(self, other: KnownDeletes) -> bool:
        """Return whether these are the same remembered deletes, of the same version."""
        locations = {each.tombstones.kept_in.path_or_name for each in (self, other)}
        return len(locations) == 1 and self.version == other.version


@dataclass(frozen=True)
class Sides:
    """The two tables, and how their rows are read.

    Attributes:
        changes: The table of the changeset.
        options: The options of the events and of the table.
    """

    base: Table
    changes: Table
    options: MergeOnReadOptions

    def columns(self, base: TableSnapshot | None = None) -> TableColumns:
        """Return the columns of a version of the base, by default the newest.

        Raises:
            StatementError: The base numbers its rows.
        """
        base = base or self.base.snapshot()
        if names := numbered(base.schema):
            raise StatementError(
                f"{', '.join(names)} is an identity column, and pending rows have no numbers.",
                table=self.base.path_or_name,
                operation="merge on read",
                hint="Apply the events with apply_changes, or make a base without it.",
            )
        return TableColumns.of(base, OWN_COLUMNS)

    def shape(self, base: TableSnapshot | None = None) -> EventShape:
        """Return how the changeset's rows are read: with the base's columns, as it spells them.

        Raises:
            StatementError: The base lacks keys, or what it needs for such events.
        """
        base = base or self.base.snapshot()
        schema = base.schema
        sequence = schema[SEQUENCE].dataType if SEQUENCE in schema.names else None
        keys = self.options.spelled_as(schema.names).keys
        # Some batches may have events that leave columns out, beside others with whole events.
        is_partial = COLUMN_SEQUENCES in schema.names and not self.options.ignore_null_updates
        user_columns = [name for name in schema.names if not name.startswith(PREFIX)]
        shape = EventShape(
            keys=tuple(keys),
            sequence_by=F.col(SEQUENCE),
            deletes=None,
            truncates=None,
            columns=tuple(
                name for name in user_columns if name not in keys and not is_computed(schema[name])
            ),
            present=self.options.present_columns or (PRESENT if is_partial else None),
            ignore_nulls=self.options.ignore_null_updates,
            log_fields=(
                log_fields(sequence["at"].dataType) if isinstance(sequence, StructType) else ()
            ),
            table=self.columns(base),
        )
        self._check_has(
            keys, user_columns, f"Give keys= from its columns: {', '.join(user_columns)}."
        )
        self._check_has(
            OWN_COLUMNS if shape.is_partial else OWN_COLUMNS[:1],
            schema.names,
            "Append events as they are described here: the error gives the statement that adds it.",
        )
        return shape

    def _check_has(self, needed: Sequence[str], names: Sequence[str], hint: str) -> None:
        lacking = [name for name in needed if name not in names]
        if lacking:
            raise StatementError(
                f"the table has no column {', '.join(lacking)}.",
                table=self.base.path_or_name,
                operation="reading",
                hint=hint,
            )

    @retried_after_conflict
    def settle(self) -> None:
        """Record which batches and deletes a RESTORE of the base left, while the log shows it."""
        settle_watermark(self.base, self.changes, self.shape)
        Tombstones.of(self.base).settle()

    def check_keys(self, shape: EventShape) -> None:
        """Fail as `check_keys_are_as_pending` does, for events with the base's columns."""
        check_keys_are_as_pending(self.base, self.changes, self.shape, shape)

    @retried_after_conflict
    def append(self, events: Events, applied: TransactionId | None) -> int | None:
        """Append a batch for the base as it is; return its number, or None if it came before."""
        base = self.base.snapshot()
        name = self.base.path_or_name
        with translated(name, operation="applying changes", otherwise=SourceError):
            whole = completed(as_in_table(events, base), self.columns(base))
        self.check_keys(whole.shape)
        changeset = Changeset(self.changes, whole.shape)
        changeset.create_if_missing(whole, encryption_of(self.base, self.changes))
        self.settle()  # before readers see the events

        def check() -> None:
            """Check the base again: files of another base may have other names for the columns."""
            check_are_of(self.base.snapshot(), whole)

        return changeset.append(whole, applied, merged_batch(self.base, self.changes), check)

    def current_view(self, where: str | Column | None, *, asks_order: bool) -> MergedView:
        """Build the view of both sides at one moment.

        Args:
            where: Condition of key columns for both sides, or None.
            asks_order: Whether to find out if all changes are newer than the base.
        """
        while True:
            # Deletes that are the same before and after the listing of batches are those at its
            # time. Later deletes are those of later batches.
            deletes = KnownDeletes.newest_of(self.base)
            moment = at_one_moment(self.base, self.changes, self.shape)
            if KnownDeletes.newest_of(self.base).are(deletes):
                break
        base, shape, batches = moment.base.read_whole(), moment.changeset.shape, moment.batches
        rows, truncated = batches.rows, moment.changeset.truncated(batches)
        if where is not None:
            condition = condition_of_keys(where, rows, shape.keys, self.base)
            base, rows = base.where(condition), declared_as(base, rows).where(condition)
        count = batches.files.num_records
        if count is not None and count <= _ROWS_OF_A_TASK:
            rows = rows.coalesce(1)  # finds the newest event of each key without a shuffle
        events = Events(rows, shape, truncated=truncated)
        return self.view(moment.base, base, batches, events, deletes, asks_order=asks_order)

    def rows_when_read(self) -> DataFrame:
        """Return rows that are read from both sides when they are used, whatever the settings then.

        Batches that the base has now are left out, because it may lose rows of them later.

        Raises:
            StatementError: An event empties the table, or did so and is remembered.
        """
        moment = at_one_moment(self.base, self.changes, self.shape)
        if moment.batches.cloned is not None:
            self.settle()  # takes over the deletes that the source remembers
        tombstones, shape = Tombstones.of(self.base), moment.changeset.shape
        events = Events(moment.changeset.events(moment.batches.after), shape)
        tombstones.create_if_missing(events)
        emptied = moment.changeset.truncated(moment.batches)
        if emptied is not None or tombstones.have_emptied():
            raise self.no_view()
        newest = tombstones.with_current_deletes(newest_of_keys(events), events)
        view = MergedView(
            self.base.read(),
            alive(newest, events),
            shape,
            broadcasts=False,
            generated=_generated(moment.base, shape),
        )
        return always_strict(visible(view.rows("left_join_anti_join"), view.base))

    def no_view(self) -> StatementError:
        """Build the error for a view by name of a table that events empty."""
        return StatementError(
            "a view by name cannot know of events that empty the table.",
            table=self.base.path_or_name,
            operation="making a view",
            hint="Use read().",
        )

    def view(
        self,
        snapshot: TableSnapshot,
        base: DataFrame,
        batches: Batches,
        events: Events,
        deletes: KnownDeletes,
        *,
        asks_order: bool,
    ) -> MergedView:
        """Build the view of some rows of a version of the base, and the events of some batches.

        Args:
            snapshot: The version of the base.
            base: The rows of that version, or some of them.
            batches: The batches.
            events: The events of the batches, or some of them.
            deletes: The remembered deletes.
            asks_order: Whether to find out if all changes are newer than the base.
        """
        newest = newest_of_keys(events)
        known = deletes.tombstones.with_deletes(
            newest, events, deletes.version, snapshot, batches.cloned
        )
        asks_order = asks_order and not events.shape.is_partial
        computed = _generated(snapshot, events.shape)
        return MergedView(
            rows_left(base, events, computed),
            alive(known, events),
            events.shape,
            broadcasts=fit_into_a_broadcast(batches, self.options.broadcast_limit_bytes),
            are_newer=asks_order and are_newer(batches, snapshot, events.sequence_type),
            is_emptied=events.truncated is not None,
            may_be_merged=batches.may_be_merged,
            generated=computed,
        )


def _generated(base: TableSnapshot, shape: EventShape) -> dict[str, str]:
    return {name: sql for name, sql in generated(base.schema).items() if name not in shape.keys}


def visible(rows: DataFrame, base: DataFrame) -> DataFrame:
    """Return the rows with the user's columns, in the base's order and as it declares them."""
    names = [name for name in base.columns if not name.startswith(PREFIX)]
    chosen = selected(rows, [column_named(rows.sparkSession, quoted(name)) for name in names])
    return declared_as(base, chosen)


def declared_as(base: DataFrame, rows: DataFrame) -> DataFrame:
    """Give columns of the rows the metadata that they have in the base.

    Computed columns lose it. By it, Spark compares a column of CHAR with a text as if that had
    blanks up to the column's length.
    """
    wanted = {field.name: field.metadata for field in base.schema}
    columns = []
    for field in rows.schema:
        value = column_named(rows.sparkSession, quoted(field.name))
        if (metadata := wanted.get(field.name, field.metadata)) != field.metadata:
            value = value.alias(field.name, metadata=metadata)
        columns.append(value)
    return selected(rows, columns)
