"""A table of histories (slowly changing dimension of type 2): a row for each version of a key.

A version is valid from `__START_AT`, the sequence of the event that began it, until `__END_AT`, the
sequence of the next version or of a delete; null while it is the newest. An upsert that changes no
tracked column begins no version. It updates the columns that are not tracked.

A late event may split a version, end it earlier or fall into a gap. So the histories of the keys in
a batch are recomputed from all known events: the versions in the table, each with the event that
began it and, if no version follows, the delete that ended it; the remembered events, which the
versions do not show; and the batch. It makes no difference from which of these an event comes, and
so neither does its time of arrival.

A version's row counts as the event that began it, and its tie decides, if it has exactly the values
of that event. It may have values of other events, later ones where columns are not tracked or
earlier ones where events leave columns out. Then, if an upsert of its sequence is remembered, all
are that count there, and the row is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    StructField,
    StructType,
    TimestampType,
)

from deltaweave import clauses
from deltaweave.changes.conversions import comparable_field, holds_type, nullable
from deltaweave.changes.delivery import CommitTerms, EventBatch
from deltaweave.changes.epochs import unless_earlier_are_of_other_log
from deltaweave.changes.events import (
    DELETE,
    EVENT_VALUES,
    OPERATION,
    PREFIX,
    PRESENT,
    SEQUENCE,
    UPSERT,
    Events,
    digest,
    mentions,
    values_of,
    values_type,
)
from deltaweave.changes.side_tables import (
    EVENTS,
    NOTED,
    Noting,
    SideTable,
    check_are_of,
    check_has_keys,
    fitted,
    may_hold_noted_before,
    noted_at,
    noted_before,
    to_events,
    to_stored,
    with_values_of,
)
from deltaweave.delta.jvm import grouped, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.delta.scan import cached
from deltaweave.engine.clauses import is_comparable
from deltaweave.engine.report import MergeResult
from deltaweave.errors import CommitConflictError, SourceError
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table

START, END = "__START_AT", "__END_AT"

_IN_TABLE = f"{PREFIX}in_table"
_IS_BORDER = f"{PREFIX}is_border"
_IS_KEPT = f"{PREFIX}is_kept"
_IS_SHARED = f"{PREFIX}is_shared"
_SET = f"{PREFIX}set"
_BEGAN = f"{PREFIX}began"
_IS_REMOVED = f"{PREFIX}gone"
_OF_ALL = f"{PREFIX}of_all"
"""Column of remembered events: true for one of a job that adds all of its events."""
_IS_UPSERT = f"({OPERATION} = '{UPSERT}')"


@dataclass(frozen=True)
class Round:
    """What one merge into a table of histories is computed from.

    Attributes:
        terms: The terms of the merge, with the version of the table.
        noted: When the batch's events are noted, in µs since 1970.
        side_version: The version of the remembered events; -1 for none.
        others: The events that the table may lack: those of the batch, or none if it was applied.
        is_new: Whether these are those of the batch.
        are_events: Whether a version's row has exactly the values of its first event. A version of
            the remembered events shows whether other jobs tracked fewer columns.
    """

    terms: CommitTerms
    noted: int
    side_version: int
    others: DataFrame
    is_new: bool
    are_events: bool


@dataclass(frozen=True)
class Histories:
    """A table of histories, and what is needed to recompute its versions.

    Attributes:
        tracked: The columns whose change begins a version.
        remembered: Events that the table's versions do not show: if a version's row may have values
            of a later event than its first, all events of later batches.
        keep_for: How long they are kept.
    """

    table: Table
    events: Events
    tracked: tuple[str, ...]
    remembered: Remembered
    keep_for: timedelta

    @property
    def _keys(self) -> str:
        """The key columns, as SQL."""
        return ", ".join(map(quoted, self.events.shape.keys))

    def apply(self, batch: EventBatch) -> MergeResult:
        """Apply the batch, as it was handed over, to the histories of its keys.

        Raises:
            CommitConflictError: Another batch was applied meanwhile; this one can be applied again.
        """
        result, is_alone = self._merged(batch, has_events=True)
        while not is_alone:
            # By now, the table or its side table has the batch, or another one with its id.
            later, is_alone = self._merged(EventBatch.of(self.table, None), has_events=False)
            result = result.then(later)
        return result

    def _merged(self, batch: EventBatch, *, has_events: bool) -> tuple[MergeResult, bool]:
        """Merge what is known of the keys.

        Args:
            batch: The batch.
            has_events: Whether its events may be unknown to the table and its side table.

        Returns:
            The merge's result, and whether nothing that other runs did is missing in it.
        """
        while True:
            this = self._round(batch, has_events=has_events)
            with cached(self._known(this), "what is known of the keys") as known:
                noting = self._noting(this, known)
                if noting is None:
                    continue  # another batch may have created the side table, with events
                result = self.merge_changes(known, this.terms, noting)
            # Events that other runs remembered in between may concern versions that were just
            # written. A run that committed this batch before may have died before this check.
            side_version, read = self.remembered.version(), this.terms.newest.version
            is_alone = side_version == noting.seen_by(result.version, self.table, read)
            return result, is_alone and not result.was_applied_before

    def _round(self, batch: EventBatch, *, has_events: bool) -> Round:
        """Look up the versions of the table and of the remembered events."""
        newest = self.remembered.settle()
        check_are_of(newest, self.events)
        terms, side_version = batch.commit_terms(newest), self.remembered.version()
        is_new, shape = has_events and not terms.is_applied, self.events.shape
        tracks_all = not shape.is_partial and set(self.tracked) == set(shape.columns)
        return Round(
            terms,
            batch.noted,
            side_version,
            self.events.rows if is_new else self.events.rows.limit(0),
            is_new,
            are_events=tracks_all and not self.remembered.are_all(side_version),
        )

    def _noting(self, this: Round, known: DataFrame) -> Noting | None:
        """Return which of the known events the merge remembers; None if it lacked a table for them.

        Then the table is created.
        """
        unshown, are_all = self._unshown(this, known), not this.are_events
        adds = self._adds(this, known, unshown)
        unshown = unshown.select(*map(column, self.events.rows.columns))
        rows = this.others.unionByName(unshown) if are_all else unshown
        if this.side_version < 0:
            if adds:
                self.remembered.create(rows, self.events, are_all=are_all)
            return None if adds else Noting(this.noted, this.side_version)
        if not (adds or self._may_forget(this.side_version)):
            return Noting(this.noted, this.side_version)
        add = partial(self.remembered.add, rows, self.events, this.noted, self.keep_for)
        return Noting(this.noted, this.side_version, partial(add, are_all=are_all))

    def _may_forget(self, side_version: int) -> bool:
        """Return whether a remembered event may be old enough to be removed, by the log alone."""
        held = self.remembered.kept_in.snapshot(side_version)
        return may_hold_noted_before(held, self.keep_for)

    def _versions(self, newest: TableSnapshot) -> DataFrame:
        """Read the versions of the batch's keys: keys, start, end, and the values as a struct."""
        rows = newest.read_whole()
        keys, values = self.events.shape.keys, values_of(rows, self.events.shape.columns)
        versions = rows.join(self.events.key_rows, list(keys), "left_semi")
        return versions.select(*map(column, keys), START, END, values.alias(EVENT_VALUES))

    def _known(self, this: Round) -> DataFrame:
        """Return all known events of the batch's keys, one for each key and sequence.

        The plan names the versions, so rows that executors lose are recomputed unchanged.

        Returns:
            Columns as in `Events.rows`; `_cdc_is_border` (boolean): whether the event begins a
            version or ends one without beginning another; `_cdc_state`: the values after it;
            `_cdc_is_kept` (boolean): whether it is remembered, null if a version shows it;
            `_cdc_is_shared` (boolean): whether it is an upsert, and one of its key and sequence is
            remembered or will be, because all of the batch are; `_cdc_began` (array): the starts of
            versions in the table with its sequence, at most one.
        """
        versions = self._versions(this.terms.newest)
        table_type = versions.schema[EVENT_VALUES].dataType  # events are compared with versions
        others = with_values_of(this.others, table_type).withColumn(_IS_KEPT, F.lit(False))
        remembered = self.remembered.of_keys(self.events, this.side_version)
        if remembered is not None:
            kept = with_values_of(remembered, table_type).withColumn(_IS_KEPT, F.lit(True))
            others = others.unionByName(kept)
        known = self._events_of_versions(versions)
        known = known.unionByName(others.withColumn(_IN_TABLE, F.lit(False)), True)
        # One shuffle serves this and all later steps, because all of them work by key.
        known = known.repartition(*map(column, self.events.shape.keys))
        tie = digest(known, self.events.shape)
        tie = F.when(F.col(OPERATION) == UPSERT, tie).otherwise(F.col(SEQUENCE)["tie"])
        sequence = F.struct(F.expr(f"{SEQUENCE}.at"), tie.alias("tie"))
        known = known.withColumn(SEQUENCE, sequence)
        known = self._that_count(known, this.are_events)
        order = f"{_IS_UPSERT}, {SEQUENCE}.tie DESC, {_IS_KEPT} DESC"
        if self._fills_columns:
            known = known.withColumn(_SET, self._set_together())
            # A version's row is remembered if it does not show all of its event any more.
            order = f"{_IS_UPSERT}, {_IN_TABLE} AND {_IS_UPSERT} DESC, {order}"
        rank = F.expr(f"row_number() OVER ({self._at} ORDER BY {order})")
        known = known.withColumn("_cdc_rank", rank).where("_cdc_rank = 1")
        return self._with_borders(known.drop("_cdc_rank")).drop(_IN_TABLE, _SET)

    @property
    def _fills_columns(self) -> bool:
        """Whether upserts may leave columns out, which then have the values of earlier ones."""
        return self.events.shape.is_partial and bool(self.events.shape.columns)

    @property
    def _at(self) -> str:
        """The window of a key's events with one sequence, as SQL."""
        return f"PARTITION BY {self._keys}, {SEQUENCE}.at"

    def _that_count(self, known: DataFrame, are_events: bool) -> DataFrame:
        """Drop rows of versions that do not count, and add `_cdc_began` and `_cdc_is_shared`."""
        is_noted = _IS_KEPT if are_events else f"NOT {_IN_TABLE}"
        known = known.withColumns(
            {
                _BEGAN: F.expr(f"collect_list({_BEGAN}) OVER ({self._at})"),
                _IS_SHARED: F.expr(_IS_UPSERT) & self._any_upsert(is_noted),
                "_cdc_is_replaced": self._any_upsert(_IS_KEPT),
            }
        )
        # If a version begins at the end of another, no delete ended the earlier one.
        # A row that is exactly its event's competes with those of its sequence that are remembered.
        counts = "true" if are_events else "NOT _cdc_is_replaced"
        known = known.where(f"NOT {_IN_TABLE} OR if({_IS_UPSERT}, {counts}, size({_BEGAN}) = 0)")
        return known.drop("_cdc_is_replaced")

    def _any_upsert(self, condition: str) -> Column:
        """Return whether a condition holds for an upsert of the same key and sequence."""
        holds = f"coalesce({_IS_UPSERT} AND {condition}, false)"
        return F.expr(f"bool_or({holds}) OVER ({self._at})")

    def _set_together(self) -> Column:
        """Return what the upserts of a key with one sequence set, by column.

        A struct that has, for each column, a struct of its value, or null if none of them sets it.
        Of those that set a column, the one with the greatest tie counts.
        """
        shape = self.events.shape
        same = Window.partitionBy(*map(column, shape.keys), F.col(SEQUENCE)["at"])
        winners = []
        for c in shape.columns:
            sets = (F.col(OPERATION) == UPSERT) & mentions(c, shape)
            value = F.struct(F.col(EVENT_VALUES)[c].alias("value"))
            winner = F.max_by(value, F.when(sets, F.col(SEQUENCE)["tie"])).over(same)
            winners.append(winner.alias(c))
        return F.struct(*winners)

    def _events_of_versions(self, versions: DataFrame) -> DataFrame:
        """Derive events from versions: the upsert that began each, the delete that ended it.

        Columns as in `_known`, but `_cdc_began` is the version's start, null for deletes.
        """

        def event(operation: str, at: str, values: str, began: str) -> str:
            return (
                f"named_struct('{OPERATION}', '{operation}', "
                f"'{SEQUENCE}', named_struct('at', {at}, 'tie', 0L), "
                f"'{EVENT_VALUES}', {values}, '{_BEGAN}', {began})"
            )

        began = event(UPSERT, START, EVENT_VALUES, START)
        ended = event(DELETE, END, f"if(true, NULL, {EVENT_VALUES})", f"if(true, NULL, {START})")
        events = versions.selectExpr(
            *map(quoted, self.events.shape.keys),
            f"inline(if({END} IS NULL, array({began}), array({began}, {ended})))",
            f"true AS {_IN_TABLE}",
        ).withColumn(SEQUENCE, F.col(SEQUENCE).cast(self.events.sequence_type))
        if not self.events.shape.is_partial:
            return events
        names = F.array(*map(F.lit, self.events.shape.columns))  # a version has all columns
        return events.withColumn(PRESENT, names.cast("array<string>"))

    def _with_borders(self, known: DataFrame) -> DataFrame:
        in_order = f"PARTITION BY {self._keys} ORDER BY {SEQUENCE}.at"
        shape = self.events.shape
        if self._fills_columns:
            # Columns that an upsert does not set keep their values since the last delete.
            lives = F.expr(f"sum(if({_IS_UPSERT}, 0, 1)) OVER ({in_order})")
            known = known.withColumn("_cdc_life", lives)
            until_now = (
                Window.partitionBy(*map(column, shape.keys), "_cdc_life")
                .orderBy(F.col(SEQUENCE)["at"])
                .rowsBetween(Window.unboundedPreceding, 0)
            )
            is_upsert = F.col(OPERATION) == UPSERT
            filled = []
            for c in shape.columns:
                assigned = F.when(is_upsert, F.col(_SET)[c])
                filled.append(F.last(assigned, ignorenulls=True).over(until_now)["value"].alias(c))
            known = known.withColumn("_cdc_state", F.struct(*filled)).drop("_cdc_life")
        else:
            known = known.withColumn("_cdc_state", F.col(EVENT_VALUES))
        tracked = F.struct(
            *[comparable_field(known, "_cdc_state", c).alias(c) for c in self.tracked]
        )
        known = known.withColumn("_cdc_tracked", F.when(F.expr(_IS_UPSERT), tracked))
        differs = f"NOT (_cdc_tracked <=> lag(_cdc_tracked) OVER ({in_order}))"
        differs = unless_earlier_are_of_other_log(differs, shape, in_order)
        return known.withColumn(_IS_BORDER, F.expr(differs)).drop("_cdc_tracked")

    def _unshown(self, this: Round, known: DataFrame) -> DataFrame:
        """Return the known events that the versions will not show, besides those of the batch.

        Where versions may have values of later events, others are kept already. An event that only
        a version has shown is lost where it begins none any more, where another one with its
        sequence is remembered, or where its version gets values of later ones.
        """
        if this.are_events:
            return known.where(f"NOT {_IS_BORDER} OR {_IS_SHARED}")
        in_order = f"PARTITION BY {self._keys} ORDER BY {SEQUENCE}.at"
        next_begins = F.expr(f"lead({_IS_BORDER}, 1, true) OVER ({in_order})")
        unkept = known.withColumn("_cdc_is_last", next_begins).where(f"{_IS_KEPT} IS NULL")
        is_shown = f"{_IS_BORDER} AND _cdc_is_last AND NOT {_IS_SHARED}"
        return unkept.where(f"NOT ({is_shown})").drop("_cdc_is_last")

    def _adds(self, this: Round, known: DataFrame, unshown: DataFrame) -> bool:
        """Return whether one of these events is still to be remembered, as far as is known."""
        name = self.table.path_or_name  # the first query that evaluates all values of the batch
        with translated(name, operation="applying changes", otherwise=SourceError):
            if not this.are_events:
                # Fail before an event of another log is remembered.
                if self.events.shape.log_fields:
                    known.agg(F.count_if(_IS_BORDER)).first()
                if this.is_new and self.events.count > 0:
                    return True
            # `_cdc_is_kept` is null for events that the table shows.
            new = unshown.where(f"NOT coalesce({_IS_KEPT}, false)")
            return bool(new.select(F.lit(1)).take(1))

    def _histories(self, known: DataFrame) -> DataFrame:
        """Build the versions that the events make: keys, start, end, and the values as a struct."""
        in_order = f"ORDER BY {SEQUENCE}.at"
        number = F.expr(f"sum(int({_IS_BORDER})) OVER (PARTITION BY {self._keys} {in_order})")
        # The last event of a version has the values of the columns that are not tracked.
        last = (
            f"last(_cdc_state) OVER (PARTITION BY {self._keys}, _cdc_version {in_order} "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        )
        end = f"lead({SEQUENCE}.at) OVER (PARTITION BY {self._keys} {in_order})"
        borders = known.withColumn("_cdc_version", number).withColumn("_cdc_last", F.expr(last))
        ends = borders.where(_IS_BORDER).withColumn("_cdc_end", F.expr(end))
        return ends.where(_IS_UPSERT).selectExpr(
            *map(quoted, self.events.shape.keys),
            f"{SEQUENCE}.at AS {START}",
            f"_cdc_end AS {END}",
            f"_cdc_last AS {EVENT_VALUES}",
        )

    def _removed(self, known: DataFrame) -> DataFrame:
        """Return the keys and starts of versions in the table that the events no longer make."""
        begins = f"if({_IS_BORDER} AND {_IS_UPSERT}, {SEQUENCE}.at, NULL) AS _cdc_begins"
        keys = map(quoted, self.events.shape.keys)
        starts = known.selectExpr(*keys, f"explode({_BEGAN}) AS {START}", begins)
        return starts.where(f"_cdc_begins IS NULL OR _cdc_begins != {START}").drop("_cdc_begins")

    def merge_changes(self, known: DataFrame, terms: CommitTerms, noting: Noting) -> MergeResult:
        """Merge the versions that the known events make into the table."""
        shape, lease = self.events.shape, terms.lease(noting.noted)
        versions = [*shape.keys, START]
        after = self._histories(known).withColumn(_IS_REMOVED, F.lit(False))
        removed = self._removed(known).withColumn(_IS_REMOVED, F.lit(True))
        source = after.unionByName(removed, allowMissingColumns=True)
        same = [f"t.{quoted(name)} = s.{quoted(name)}" for name in versions]
        values: dict[str, str | Column] = {
            quoted(c): column("s", EVENT_VALUES, c) for c in shape.columns
        }
        values[END] = column("s", END)
        keys: dict[str, str | Column] = {quoted(name): column("s", name) for name in versions}
        differs = _differs_if_zeros_do(source)
        merge = self.table.merge(source, on=" AND ".join(same), idempotency=terms.idempotency).add(
            clauses.when_matched_delete(condition=column("s", _IS_REMOVED)),
            clauses.when_matched_update(values, condition=differs),
            clauses.when_not_matched_insert(
                {**keys, **values}, condition=~column("s", _IS_REMOVED)
            ),
        )
        result = merge.execute(
            skip_unchanged_updates=differs is None,
            computed_from=lease.since,
            lease=noting.on(lease),
        )
        return lease.checked(result, self.table)


def _differs_if_zeros_do(source: DataFrame) -> str | None:
    """Return the condition that a version changes, if 0.0 and -0.0 may be all that differs.

    Merges skip updates of equal values, and these are equal. Their texts differ, at every depth.
    """
    fields = values_type(source.schema)
    numbers = [field.name for field in fields if holds_type(field.dataType, _is_floating)]
    if not numbers or not is_comparable(fields):  # merges skip nothing then
        return None
    held = {name: f"t.{quoted(name)}" for name in fields.names}
    after = {name: f"s.{EVENT_VALUES}.{quoted(name)}" for name in fields.names}
    same = [f"t.{END} <=> s.{END}", *[f"{held[name]} <=> {after[name]}" for name in fields.names]]
    same += [f"string({held[name]}) <=> string({after[name]})" for name in numbers]
    return f"NOT ({' AND '.join(same)})"


def _is_floating(data_type: DataType) -> bool:
    return isinstance(data_type, FloatType | DoubleType)


def history_columns(events: Events) -> list[StructField]:
    """Return the columns that a table of histories has in addition to the events' columns."""
    return [StructField(name, events.sequence_type["at"].dataType) for name in (START, END)]


@dataclass(frozen=True)
class Remembered(SideTable):
    """The remembered events of a table."""

    DIRECTORY = EVENTS

    def are_partial(self) -> bool:
        """Return whether some of them may leave columns out."""
        return self.kept_in.exists() and PRESENT in self.kept_in.snapshot().schema.names

    def of_keys(self, events: Events, version: int) -> DataFrame | None:
        """Read the remembered events of a batch's keys at a version: columns as `Events.rows`.

        Raises:
            CommitConflictError: Others have remembered events that leave columns out, which these
                do not. Apply them again.
        """
        if version < 0:
            return None
        held = self.kept_in.snapshot(version)
        if PRESENT in held.schema.names and not events.shape.is_partial:
            raise CommitConflictError(
                "events that leave columns out were remembered meanwhile.",
                table=self.table.path_or_name,
                hint="Apply the events again.",
            )
        check_has_keys(held, events.shape)
        kept = to_events(held.read_whole(), events.shape)
        kept = kept.join(events.key_rows, list(events.shape.keys), "left_semi")
        return kept.select(*map(column, events.rows.columns))

    def are_all(self, version: int) -> bool:
        """Return whether, at a version, all events of some job were added, and not some alone."""
        return version >= 0 and _OF_ALL in self.kept_in.snapshot(version).schema.names

    def create(self, rows: DataFrame, events: Events, *, are_all: bool) -> None:
        """Create the table of remembered events, with the types of these, if it does not exist."""
        rows = _marked(to_stored(rows, events.shape), are_all)
        fields = [StructField(each.name, nullable(each.dataType)) for each in rows.schema]
        schema = StructType([*fields, StructField(NOTED, TimestampType())])
        self.create_with(schema)

    def add(
        self, rows: DataFrame, events: Events, noted: int, keep_for: timedelta, *, are_all: bool
    ) -> int | None:
        """Add events to their table, and remove old ones.

        Args:
            rows: The events to remember, with the columns of `Events.rows`.
            events: The batch whose keys they have.
            noted: When they are noted, in µs since 1970; the commit that applies them names it.
            keep_for: Those that were noted longer ago are removed.
            are_all: Whether they are all of the batch, and not only those that no version shows.

        Returns:
            The committed version; None if nothing is added or removed.
        """
        keys = [events.shape.stored(key) for key in events.shape.keys]
        same = [*keys, OPERATION, SEQUENCE, *({PRESENT} & {*rows.columns})]
        if are_all:  # two may have the same key and sequence
            rows = rows.dropDuplicates([*events.shape.keys, *same[len(keys) :]])
        rows = fitted(_marked(to_stored(rows, events.shape), are_all), self.kept_in)
        rows = rows.withColumn(NOTED, noted_at(noted))
        # Column by column, because Delta expands * to names without quoting them.
        every: dict[str, str | Column] = {quoted(c): column("s", c) for c in rows.columns}
        held, long_ago = self.kept_in.snapshot(), noted_before(keep_for)
        rests = are_all and may_hold_noted_before(held, keep_for)
        if rests:
            needed = _still_needed(held.read_whole(), rows, keys, same, long_ago)
            rows = rows.withColumn(_IS_KEPT, F.lit(False)).unionByName(needed, True)
        merge = self.kept_in.merge(rows, on=" AND ".join(map(_is_same, same))).add(
            clauses.when_not_matched_insert(
                every, condition=~column("s", _IS_KEPT) if rests else None
            ),
            clauses.when_not_matched_by_source_delete(condition=f"t.{long_ago}"),
        )
        return merge.execute(computed_from=held.version if rests else None).version


def _is_same(name: str) -> str:
    """Return the SQL condition that a remembered event has the same part as another."""
    if name == SEQUENCE:
        return f"t.{name}.at = s.{name}.at AND t.{name}.tie = s.{name}.tie"
    return f"t.{quoted(name)} {'<=>' if name == PRESENT else '='} s.{quoted(name)}"


def _still_needed(
    held: DataFrame, new: DataFrame, keys: Sequence[str], same: Sequence[str], long_ago: str
) -> DataFrame:
    """Return the old events that versions need as long as newer ones of their keys are remembered.

    A late event may still come between these, and begin a version. Its columns have the values of
    the last old event that sets them. If later ones changed such a column and no old one sets it,
    any old event may have begun the version. All events that come after a needed one are needed,
    because a version's row does not count where an event of its sequence is remembered.

    Args:
        held: The remembered events.
        new: Those that are added.
        keys: The key columns, as both name them.
        same: The columns that identify an event.
        long_ago: The condition of old ones.
    """
    names, at = [*map(quoted, keys)], F.expr(f"{SEQUENCE}.at").alias("_cdc_at")
    sets = f"coalesce({PRESENT}, array('*'))" if PRESENT in same else "array('*')"
    # Each event has the name '' in addition to those of the columns that it sets.
    sets = f"concat(array(''), if({_IS_UPSERT}, {sets}, array())) AS _cdc_names"
    is_old = F.coalesce(F.expr(long_ago), F.lit(False)).alias("_cdc_is_old")
    events = held.select(*names, at, F.expr(sets), is_old)
    events = events.union(new.select(*names, at, F.expr(sets), F.lit(False)))
    of_names = grouped(
        events.withColumn("_cdc_name", F.explode("_cdc_names")),
        [*names, "_cdc_name"],
        [
            F.min("_cdc_at").alias("_cdc_first"),
            F.expr("min(_cdc_at) FILTER (WHERE NOT _cdc_is_old)").alias("_cdc_recent"),
            F.expr("max(_cdc_at) FILTER (WHERE _cdc_is_old)").alias("_cdc_last"),
        ],
    )
    is_changed = "_cdc_name <> '' AND _cdc_recent IS NOT NULL"
    since = (
        f"least(min(_cdc_recent), min(if({is_changed}, _cdc_last, NULL)), "
        f"if(bool_or({is_changed} AND _cdc_last IS NULL), min(_cdc_first), NULL))"
    )
    needed = grouped(of_names, names, [F.expr(since).alias("_cdc_since")])
    old = held.where(long_ago).select(*map(quoted, same), at).join(needed, list(keys))
    return old.where("_cdc_at >= _cdc_since").select(
        *map(quoted, same), F.lit(True).alias(_IS_KEPT)
    )


def _marked(rows: DataFrame, are_all: bool) -> DataFrame:
    return rows.withColumn(_OF_ALL, F.lit(True)) if are_all else rows
