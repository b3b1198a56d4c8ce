"""A table of histories (slowly changing dimension of type 2): a row for each version of a key.

A version is valid from `__START_AT`, the sequence of the event that began it, until `__END_AT`, the
sequence of the next version or of a delete; null while it is the newest. An upsert that changes no
tracked column begins no version. It updates the columns that are not tracked.

A late event may split a version, end it earlier or fall into a gap. So the histories of the keys in
a batch are recomputed from all known events: the versions in the table, each with the event that
began it and, if no version follows, the delete that ended it; the remembered events, which the
versions do not show; and the batch. It makes no difference from which of these an event comes, and
so neither does its time of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from deltaweave import clauses
from deltaweave.changes.events import (
    DELETE,
    OPERATION,
    PREFIX,
    SEQUENCE,
    UPSERT,
    VALUES,
    Events,
    comparable,
    digest,
    speaks_of,
    values_of,
)
from deltaweave.changes.history.remembered_events import Remembered
from deltaweave.delta.jvm import letting_go
from deltaweave.engine.report import MergeResult
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table

START, END = "__START_AT", "__END_AT"

_IN_TABLE = f"{PREFIX}in_table"
_IS_BORDER = f"{PREFIX}is_border"
_GONE = f"{PREFIX}gone"


@dataclass(frozen=True)
class Histories:
    """A table of histories, and what is needed to recompute its versions.

    Attributes:
        table: The table.
        events: The batch.
        tracked: The columns whose change begins a version.
        remembered: Events that the table's versions do not show.
    """

    table: Table
    events: Events
    tracked: tuple[str, ...]
    remembered: Remembered

    @property
    def versions_are_events(self) -> bool:
        """Whether a version's row has exactly the values of its first event."""
        shape = self.events.shape
        return not shape.is_partial and set(self.tracked) == set(shape.columns)

    def apply(self, idempotency: tuple[str, int] | None) -> MergeResult:
        """Apply the batch to the histories of its keys.

        Raises:
            CommitConflictError: Another batch was applied meanwhile; this one can be applied again.
        """
        result, others = None, self.events.rows
        while True:
            read, beside = self.table.version(), self.remembered.version()
            before = self._versions(read)
            known = self._known(before, beside, others).persist()
            try:
                to_remember = self._to_remember(known)
                if beside < 0 and not to_remember.isEmpty():
                    self.remembered.create(to_remember)
                    continue  # another batch may have created it, with events
                added = None if beside < 0 else self.remembered.add(to_remember, self.events)
                merged = self._merge(before, self._histories(known), idempotency, read)
            finally:
                with letting_go("what is known of the keys"):
                    known.unpersist()
            result = merged if result is None else result.then(merged)
            # Events that others remembered meanwhile may concern versions that were just written. A
            # run that applied the pair before may have died before it looked.
            is_alone = self.remembered.version() == (beside if added is None else beside + 1)
            if is_alone and not merged.was_applied_before:
                return result
            # The events of the batch are in the versions now, or remembered.
            idempotency, others = None, self.events.rows.limit(0)

    def _versions(self, version: int) -> DataFrame:
        """The versions of the batch's keys: keys, start, end, and the values as a struct."""
        keys = [quoted(key) for key in self.events.shape.keys]
        touched = self.events.rows.select(*keys).distinct()
        values = values_of(self.events.shape.columns)
        return (
            self.table.read(version)
            .join(touched, list(self.events.shape.keys), "left_semi")
            .select(*keys, START, END, values.alias(VALUES))
        )

    def _known(self, versions: DataFrame, beside: int, others: DataFrame) -> DataFrame:
        """All known events of the batch's keys, one for each key and sequence.

        Args:
            versions: The versions of these keys.
            beside: The version of the remembered events.
            others: Events that the versions may not show, with the columns of `Events.rows`.

        Returns:
            Columns as of `Events.rows`; `_cdc_is_border` (boolean): whether the event begins a
            version or ends one without beginning another; `_cdc_state`: the values after it.
        """
        remembered = self.remembered.of_keys(self.events, beside)
        if remembered is not None:
            others = others.unionByName(remembered)
        # In the table's types, so that versions and events can be compared.
        others = others.withColumn(VALUES, F.col(VALUES).cast(versions.schema[VALUES].dataType))
        tie = F.when(F.col(OPERATION) == UPSERT, digest(others, self.events.shape))
        others = others.withColumn(
            SEQUENCE,
            F.struct(
                F.col(SEQUENCE)["at"].alias("at"),
                F.coalesce(tie, F.col(SEQUENCE)["tie"]).alias("tie"),
            ),
        )
        known = self._of_versions(versions).unionByName(
            others.withColumn(_IN_TABLE, F.lit(False)), allowMissingColumns=True
        )
        at = F.col(SEQUENCE)["at"]
        keys = [column(key) for key in self.events.shape.keys]
        # A version with values of later events does not show its first event.
        witness = [] if self.versions_are_events else [F.col(_IN_TABLE).asc()]
        best = Window.partitionBy(*keys, at).orderBy(
            (F.col(OPERATION) == DELETE).desc(), *witness, F.col(SEQUENCE)["tie"].desc()
        )
        known = known.withColumn("_cdc_rank", F.row_number().over(best)).where("_cdc_rank = 1")
        return self._with_borders(known.drop("_cdc_rank"), keys, at).drop(_IN_TABLE)

    def _of_versions(self, versions: DataFrame) -> DataFrame:
        """The events that versions show: the upsert that began each, the delete that ended it."""
        keys = [column(key) for key in self.events.shape.keys]
        next_start = F.lead(START).over(Window.partitionBy(*keys).orderBy(START))
        is_ended = F.col(END).isNotNull() & ~F.col(END).eqNullSafe(F.col("_cdc_next"))
        sequences = self.events.sequence_type
        began = versions.select(
            *keys,
            F.lit(UPSERT).alias(OPERATION),
            F.struct(F.col(START).alias("at"), digest(versions, self.events.shape).alias("tie"))
            .cast(sequences)
            .alias(SEQUENCE),
            VALUES,
            F.lit(True).alias(_IN_TABLE),
        )
        ended = (
            versions.withColumn("_cdc_next", next_start)
            .where(is_ended)
            .select(
                *keys,
                F.lit(DELETE).alias(OPERATION),
                F.struct(F.col(END).alias("at"), F.lit(0).alias("tie"))
                .cast(sequences)
                .alias(SEQUENCE),
                F.lit(None).cast(versions.schema[VALUES].dataType).alias(VALUES),
                F.lit(True).alias(_IN_TABLE),
            )
        )
        return began.unionByName(ended)

    def _with_borders(self, known: DataFrame, keys: Sequence[Column], at: Column) -> DataFrame:
        in_order = Window.partitionBy(*keys).orderBy(at)
        is_delete = F.col(OPERATION) == DELETE
        shape = self.events.shape
        if shape.is_partial:
            # Columns that an upsert does not set keep their values since the last delete.
            lives = F.sum(is_delete.cast("int")).over(in_order)
            known = known.withColumn("_cdc_life", lives)
            until_now = (
                Window.partitionBy(*keys, "_cdc_life")
                .orderBy(at)
                .rowsBetween(Window.unboundedPreceding, 0)
            )
            filled = []
            for c in shape.columns:
                speaks = F.col(_IN_TABLE) | speaks_of(c, shape)  # a version has all columns
                said = F.when(~is_delete & speaks, F.struct(F.col(VALUES)[c].alias("value")))
                filled.append(F.last(said, ignorenulls=True).over(until_now)["value"].alias(c))
            known = known.withColumn("_cdc_state", F.struct(*filled)).drop("_cdc_life")
        else:
            known = known.withColumn("_cdc_state", F.col(VALUES))
        tracked = F.struct(*[comparable(known, "_cdc_state", c).alias(c) for c in self.tracked])
        known = known.withColumn("_cdc_tracked", F.when(~is_delete, tracked))
        before = F.lag("_cdc_tracked").over(in_order)
        differs = ~F.col("_cdc_tracked").eqNullSafe(before)
        return known.withColumn(_IS_BORDER, differs).drop("_cdc_tracked")

    def _to_remember(self, known: DataFrame) -> DataFrame:
        """The events that the table's versions will not show."""
        if not self.versions_are_events:
            return self.events.rows
        return known.where(~F.col(_IS_BORDER)).select(*map(column, self.events.rows.columns))

    def _histories(self, known: DataFrame) -> DataFrame:
        """The versions that the events make: keys, start, end, and the values as a struct."""
        keys = [column(key) for key in self.events.shape.keys]
        at = F.col(SEQUENCE)["at"]
        in_order = Window.partitionBy(*keys).orderBy(at)
        number = F.sum(F.col(_IS_BORDER).cast("int")).over(in_order)
        numbered = known.withColumn("_cdc_version", number)
        # The last event of a version has the values of the columns that are not tracked.
        last = F.last("_cdc_state").over(
            Window.partitionBy(*keys, "_cdc_version")
            .orderBy(at)
            .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        )
        borders = numbered.withColumn("_cdc_last", last).where(_IS_BORDER)
        ends = borders.withColumn("_cdc_end", F.lead(at).over(in_order))
        return ends.where(F.col(OPERATION) == UPSERT).select(
            *keys,
            at.alias(START),
            F.col("_cdc_end").alias(END),
            F.col("_cdc_last").alias(VALUES),
        )

    def _merge(
        self,
        before: DataFrame,
        after: DataFrame,
        idempotency: tuple[str, int] | None,
        read: int,
    ) -> MergeResult:
        shape = self.events.shape
        versions = [*shape.keys, START]
        gone = before.join(after, versions, "left_anti").withColumn(_GONE, F.lit(True))
        source = after.withColumn(_GONE, F.lit(False)).unionByName(gone)
        same = [f"t.{quoted(name)} = s.{quoted(name)}" for name in versions]
        values: dict[str, str | Column] = {quoted(c): column("s", VALUES, c) for c in shape.columns}
        values[END] = column("s", END)
        keys: dict[str, str | Column] = {quoted(name): column("s", name) for name in versions}
        merge = self.table.merge(source, on=" AND ".join(same), idempotency=idempotency)
        merge = merge.add(
            clauses.when_matched_delete(condition=column("s", _GONE)),
            clauses.when_matched_update(values),
            clauses.when_not_matched_insert({**keys, **values}, condition=~column("s", _GONE)),
        )
        return merge.execute(skip_unchanged_updates=True, computed_from=read)


def history_columns(events: Events) -> list[StructField]:
    """The columns that a table of histories has in addition to the events' columns."""
    at = events.sequence_type["at"].dataType
    return [StructField(START, at), StructField(END, at)]
