"""Change events in one shape, whatever the source: key, operation, sequence, values.

Events of a key are ordered by their sequences. With equal sequences, deletes follow upserts, and
upserts are ordered by a digest of their values. So any two events have one order, however often
they arrive and in whatever batches, and later steps only take maxima.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from deltaweave.changes.conversions import (
    as_constant,
    collectable,
    hashed,
    holds_type,
    nullable,
    spelled,
)
from deltaweave.changes.table_columns import TableColumns
from deltaweave.delta.jvm import grouped, json_text, suppress_cleanup_errors, translated
from deltaweave.delta.scan import from_cache
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import column, quoted

logger = logging.getLogger(__name__)

PREFIX = "_cdc_"
"""Prefix of the columns that belong to change data capture, here and in tables."""

OPERATION = "_cdc_operation"
SEQUENCE = "_cdc_sequence"
EVENT_VALUES = "_cdc_values"
PRESENT = "_cdc_present"
INSERTED = "_cdc_inserted"

COLUMN_SEQUENCES = f"{PREFIX}column_sequences"
"""Column of a table: the sequences of columns whose value is from another event than the row."""

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

_LAST = 2**63 - 1
_WITHOUT_ORDER = (MapType, VariantType, ArrayType)
NO_COLUMN = "_cdc_no_column"

WRONG = "_cdc_wrong"
"""Column of events: why an event is unusable, its message and itself; null if it is usable."""

_MOST_NAMED = 10

ABSENT = "_cdc_absent"
"""Column of events: the columns that the event's message does not have (array of strings)."""

_ABSENT_FIELD, _CUT_FIELD = "absent", "cut"


@dataclass(frozen=True, kw_only=True)
class EventShape:
    """The way in which a source's rows are read as events.

    Attributes:
        keys: Columns that identify a row of the table.
        sequence_by: Orders the events of a key.
        deletes: Condition of events that delete, or None if none do.
        truncates: Condition of events that empty the table, or None.
        columns: The other columns of the source that are columns of the table.
        present: Column with the names of the columns that an event sets, an array of strings. None,
            or null in a row, if it sets all.
        ignore_nulls: Whether an upsert leaves columns alone that are null in it.
        inserts: Condition of upserts whose key is known to be new, or None.
        message: Column with the event's message (`Parts`), or None.
        log_fields: The fields of sequences by which logs are told apart, see `epochs`.
        table: The table's columns, where events are stored; None if it has the names of the events.
    """

    keys: tuple[str, ...]
    sequence_by: Column
    deletes: Column | None
    truncates: Column | None
    columns: tuple[str, ...]
    present: str | None = None
    ignore_nulls: bool = False
    inserts: Column | None = None
    message: str | None = None
    log_fields: tuple[str, ...] = ()
    table: TableColumns | None = None

    @property
    def is_partial(self) -> bool:
        """Whether upserts may leave columns out."""
        return self.ignore_nulls or self.present is not None

    def stored(self, name: str) -> str:
        """Return the name of a column in the side tables."""
        return name if self.table is None else self.table.name(name)

    def stored_names(self, name: str) -> set[str]:
        """Return the names, in lower case, that a column may have in the side tables."""
        return {each.lower() for each in ([name] if self.table is None else self.table.names(name))}

    def has_other_keys(self, stored: StructType) -> bool:
        """Return whether a side table has a key column that holds no key."""
        keys = set().union(*map(self.stored_names, self.keys))
        names = [name.lower() for name in stored.names if not name.startswith(PREFIX)]
        return not keys.issuperset(names)


@dataclass(frozen=True)
class Events:
    """A batch of events, and its totals.

    Attributes:
        rows: The keys by their names; `_cdc_operation` (string); `_cdc_sequence` (struct of `at`,
            of the sequence's type, and `tie`, bigint); `_cdc_values` (struct of the other columns,
            or of a null if there are none); `_cdc_present` (array of the names of columns that it
            sets), if upserts may leave columns out; `_cdc_inserted` (boolean), if events mark
            inserts.
        count: How many there are.
        deletes: How many of them delete.
        truncated: The sequence (`at`) of the last event that empties the table, a constant; or
            None.
        unusable: Events that cannot be applied and are none of `rows`, with `_cdc_wrong`; None if
            there are none.
        num_unusable: How many there are.
        warnings: What may be wrong with the batch, a sentence each.
        kept: What executors keep.
    """

    rows: DataFrame
    shape: EventShape
    count: int = 0
    deletes: int = 0
    truncated: Column | None = None
    unusable: DataFrame | None = None
    num_unusable: int = 0
    warnings: tuple[str, ...] = ()
    kept: DataFrame | None = None

    def release(self) -> None:
        """Remove the events from the executors' memory."""
        if self.kept is not None:
            with suppress_cleanup_errors("the events"):
                self.kept.unpersist()

    def naming_columns(self) -> Events:
        """Return the events as those of a table whose events may leave columns out.

        Whole events set all columns that they have.
        """
        if self.shape.is_partial:
            return self
        shape = replace(self.shape, present=PRESENT)
        return replace(
            self, rows=self.rows.withColumn(PRESENT, _set_columns(None, shape)), shape=shape
        )

    @property
    def key_rows(self) -> DataFrame:
        """The keys alone, one for each event."""
        return self.rows.select(*map(quoted, self.shape.keys))

    @property
    def sequence_type(self) -> StructType:
        """The type of `_cdc_sequence`, as tables hold it."""
        sequence = nullable(self.rows.schema[SEQUENCE].dataType)
        assert isinstance(sequence, StructType)
        return sequence


def read_events(
    source: DataFrame, shape: EventShape, *, table: str, rescues: bool = False
) -> Events:
    """Read the source's rows as events, kept in the executors' memory until `release()`."""
    with translated(table, operation="reading changes", otherwise=SourceError):
        kept = _shaped(source, shape, table, rescues).persist()
        try:
            return _usable(kept, shape, table, rescues)
        except BaseException:
            kept.unpersist()
            raise


def count_events(rows: DataFrame, shape: EventShape) -> Events:
    """Count events that were read before, in one job."""
    at_type = sequence_at_type(rows.schema)
    found = rows.agg(*_totals(at_type)).first()
    assert found is not None
    truncated = as_constant(found["truncated"], at_type)
    return Events(rows, shape, found["count"], found["deletes"], truncated)


def last_truncate(rows: DataFrame) -> Column | None:
    """Return the sequence (`at`) of the last event that empties the table, a constant; or None."""
    at_type = sequence_at_type(rows.schema)
    last = collectable(F.max(SEQUENCE)["at"], at_type)
    found = rows.where(F.col(OPERATION) == TRUNCATE).agg(last).first()
    return None if found is None else as_constant(found[0], at_type)


def mentions(name: str, shape: EventShape) -> Column:
    """Return whether an event that may leave columns out sets the column of this name."""
    # Stored whole events name no columns, nor do those of earlier releases that ignore nulls.
    by_value = F.col(EVENT_VALUES)[name].isNotNull() if shape.ignore_nulls else F.lit(True)
    return F.when(F.col(PRESENT).isNull(), by_value).otherwise(F.array_contains(PRESENT, name))


def last_at(at: Column) -> Column:
    """Return the last sequence with this `at`, which is that of a delete."""
    return F.struct(at.alias("at"), F.lit(_LAST).alias("tie"))


def _shaped(source: DataFrame, shape: EventShape, table: str, keeps_wrong: bool) -> DataFrame:
    false = F.lit(False)
    deletes = F.coalesce(shape.deletes, false) if shape.deletes is not None else false
    truncates = F.coalesce(shape.truncates, false) if shape.truncates is not None else false
    operation = F.when(truncates, TRUNCATE).when(deletes, DELETE).otherwise(UPSERT)
    values = values_of(source, shape.columns)
    named = None if shape.present is None else spelled(source.columns, column(shape.present))
    present = [_set_columns(named, shape).alias(PRESENT)] if shape.is_partial else []
    if shape.inserts is not None:
        present.append(F.coalesce(shape.inserts, false).alias(INSERTED))
    at = shape.sequence_by
    at_type = source.select(at.alias("at")).schema["at"].dataType
    if holds_type(at_type, lambda part: isinstance(part, _WITHOUT_ORDER)):
        raise StatementError(
            f"values of the type {at_type.simpleString()} have no order.",
            table=table,
            operation="reading changes",
            hint="Give sequence_by a number, a time, a string, or a struct of these.",
        )
    parts = Parts(
        keys=shape.keys,
        needs_key=operation != TRUNCATE,
        has_sequence=~_is_null(at, at_type),
        present=named,
        message=shape.message,
    )
    rows = source.select(
        *map(column, shape.keys),
        operation.alias(OPERATION),
        at.alias("_cdc_at"),
        values.alias(EVENT_VALUES),
        *present,
        *absent_of(source, shape.message),
        wrong_of(source, parts, keeps_events=keeps_wrong).alias(WRONG),
    )
    tie = F.when(F.col(OPERATION) == UPSERT, digest(rows, shape)).otherwise(_LAST)
    sequence = F.struct(F.col("_cdc_at").alias("at"), tie.cast("bigint").alias("tie"))
    return rows.withColumn(SEQUENCE, sequence).drop("_cdc_at")


def _set_columns(named: Column | None, shape: EventShape) -> Column:
    """Return the names of the columns that an event sets, to be stored with it.

    An event that names none sets all present columns, and none that are added later.
    """
    names = [
        F.when(column(c).isNotNull(), F.lit(c)) if shape.ignore_nulls else F.lit(c)
        for c in shape.columns
    ]
    every = F.array_compact(F.array(*names).cast("array<string>"))
    return every if named is None else F.coalesce(named, every)


def values_of(rows: DataFrame, columns: Sequence[str]) -> Column:
    """Put columns of the rows into one struct, in which every value may be null.

    Without columns, it has a dummy field, because Parquet needs one.
    """
    fields = [column(name).alias(name) for name in columns]
    values = F.struct(*(fields or [F.lit(None).cast("boolean").alias(NO_COLUMN)]))
    [field] = rows.select(values.alias(EVENT_VALUES)).schema
    return values.cast(nullable(field.dataType))


def digest(rows: DataFrame, shape: EventShape) -> Column:
    """Hash what upserts set; the hash orders those with the same sequence.

    A value is hashed with its column's name, and a null is not hashed. So the digest depends on
    which columns are null and not on the order of columns. A column that is added later, and is
    null in earlier events, changes no digest. Neither does it matter whether an event names the
    columns that it sets: those with equal digests set no column to different values but null.
    """
    fields = values_type(rows.schema)
    types = {name: fields[name].dataType for name in shape.columns}
    hashes = []
    for name in sorted(types, key=lambda name: (name.lower(), name)):
        value = F.col(EVENT_VALUES)[name]
        if PRESENT in rows.columns:
            value = F.when(mentions(name, shape), value)
        hashes += hashed(value, types[name], quoted(name.lower()))
    return F.xxhash64(*hashes) if hashes else F.lit(0)


def _usable(kept: DataFrame, shape: EventShape, table: str, rescues: bool) -> Events:
    cached, at_type = from_cache(kept), sequence_at_type(kept.schema)
    found = cached.agg(*_totals(at_type), F.count(WRONG).alias("unusable")).first()
    assert found is not None
    num_unusable = found["unusable"]
    rows, unusable = cached.drop(WRONG), None
    if num_unusable:
        unusable = cached.where(F.col(WRONG).isNotNull())
        if not rescues:
            at = F.col(SEQUENCE)["at"]
            raise refused(unusable, shape.keys, at, (num_unusable, found["count"]), table)
        rows = cached.where(F.col(WRONG).isNull()).drop(WRONG)
        found = rows.agg(*_totals(at_type)).first()
        assert found is not None
    warnings = warnings_of(rows, F.col(OPERATION) == UPSERT, table)
    return Events(
        rows.drop(ABSENT),
        shape,
        found["count"],
        found["deletes"],
        as_constant(found["truncated"], at_type),
        unusable,
        num_unusable,
        warnings,
        kept,
    )


def sequence_at_type(schema: StructType) -> DataType:
    """Return the type of the sequences (`at`) of rows with this schema."""
    sequence = schema[SEQUENCE].dataType
    assert isinstance(sequence, StructType)
    return sequence["at"].dataType


def values_type(schema: StructType) -> StructType:
    """Return the type of the values of events with this schema."""
    values = schema[EVENT_VALUES].dataType
    assert isinstance(values, StructType)
    return values


def _totals(at_type: DataType) -> list[Column]:
    """Return the number of events, the number of deletes, and the last truncate."""
    at, operation = F.col(SEQUENCE)["at"], F.col(OPERATION)
    last_truncate = F.max(F.when(operation == TRUNCATE, at))
    return [
        F.count("*").alias("count"),
        F.count_if(operation == DELETE).alias("deletes"),
        collectable(last_truncate, at_type).alias("truncated"),
    ]


def _is_null(at: Column, data_type: DataType) -> Column:
    """Return whether a sequence, or a part of it, is missing."""
    missing = at.isNull()
    if isinstance(data_type, StructType):
        for field in data_type:
            missing = missing | _is_null(at[field.name], field.dataType)
    return missing


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a source's rows that decide whether they are usable.

    Attributes:
        needs_key: Whether the event needs a key.
        has_sequence: Whether it has a sequence.
        present: The columns that it says it sets, or None if events do not say.
        message: Column with the event's message, a struct of `place`, `problem` and `event`
            (strings), or None.
    """

    keys: Sequence[str]
    needs_key: Column
    has_sequence: Column
    present: Column | None
    message: str | None


def wrong_of(source: DataFrame, parts: Parts, *, keeps_events: bool) -> Column:
    """Return `_cdc_wrong` of a source's rows: a struct of `reason`, `message` and `event`."""
    lacks_key = F.lit(False)
    for key in parts.keys:
        lacks_key = lacks_key | column(key).isNull()
    nulls = F.concat_ws(", ", *[F.when(column(k).isNull(), F.lit(k)) for k in parts.keys])
    null_key = F.when(parts.needs_key & lacks_key, F.concat(F.lit("a null in its key "), nulls))
    reasons = [null_key, F.when(~parts.has_sequence, F.lit("no sequence"))]
    if parts.present is not None:
        unknown = F.array_except(parts.present, F.array(*map(F.lit, source.columns)))
        named = F.concat(F.lit("the name of a missing column: "), F.array_join(unknown, ", "))
        reasons.append(F.when(F.size(unknown) > 0, named))
    reasons += _cut_key(source, parts)
    none = F.lit(None).cast("string")
    location, event = none, none
    if keeps_events:
        every = F.struct(*[column(name).alias(name) for name in source.columns])
        event = json_text(every, with_nulls=True)
    if parts.message is not None:
        message = column(parts.message)
        reasons.insert(0, message["problem"])
        location, event = message["place"], message["event"]
    reason = F.coalesce(*reasons)
    wrong = F.struct(reason.alias("reason"), location.alias("message"), event.alias("event"))
    return F.when(reason.isNotNull(), wrong)


def _cut_key(source: DataFrame, parts: Parts) -> list[Column]:
    """Return why keys that lost digits are unusable, if messages say which columns did."""
    if not _has_field(source, parts.message, _CUT_FIELD):
        return []
    cut = F.array_intersect(
        column(str(parts.message))[_CUT_FIELD], F.array(*map(F.lit, parts.keys))
    )
    reason = F.concat(F.lit("digits below the microsecond in its key "), F.array_join(cut, ", "))
    return [F.when(parts.needs_key & (F.size(cut) > 0), reason)]


def refused(
    rows: DataFrame, keys: Sequence[str], at: Column, count: tuple[int, int], table: str
) -> SourceError:
    """Return the error that names up to 10 of the unusable events.

    `count` has the number of unusable events and that of the batch.
    """
    # As text from Spark, because Python has no dates after the year 9999.
    texts = [column(key).cast("string") for key in keys]
    samples = rows.select(F.col(WRONG), at.cast("string"), *texts).take(_MOST_NAMED)
    found = []
    for wrong, sequence, *key_values in samples:
        named = ", ".join(f"{key}={value}" for key, value in zip(keys, key_values, strict=True))
        location = f" ({wrong.message})" if wrong.message else ""
        found.append(f"{named} at {sequence}{location} has {wrong.reason}")
    return SourceError(
        f"{count[0]} of {count[1]} events cannot be applied: {'; '.join(found)}.",
        table=table,
        operation="reading changes",
        hint="Correct them or filter them out, or have them put into a table of their own "
        "(rescued=).",
    )


def absent_of(source: DataFrame, message: str | None) -> list[Column]:
    """Return `_cdc_absent` of a source's rows, if their messages say it.

    `message` names the column with the message, a struct that may have the field `absent`, or is
    None.
    """
    if not _has_field(source, message, _ABSENT_FIELD):
        return []
    return [column(str(message))[_ABSENT_FIELD].alias(ABSENT)]


def _has_field(source: DataFrame, message: str | None, field: str) -> bool:
    message_type = None if message is None else source.schema[message].dataType
    return isinstance(message_type, StructType) and field in message_type.names


def warnings_of(rows: DataFrame, is_upsert: Column, table: str) -> tuple[str, ...]:
    """Return a warning that names the columns that no upsert's message has, and log it."""
    if ABSENT not in rows.columns:
        return ()
    absent = rows.where(is_upsert).select(ABSENT)
    # Most batches have a message with all columns, which ends the first job.
    if absent.where(F.coalesce(F.size(ABSENT) <= 0, F.lit(True))).take(1):
        return ()
    count = F.lit(absent.count())
    names_of_events = absent.select(F.explode(ABSENT).alias("name"))
    counts = grouped(names_of_events, ["name"], [F.count(F.lit(1)).alias("count")])
    names = sorted(row["name"] for row in counts.where(F.col("count") == count).collect())
    if not names:
        return ()
    warning = (
        f"{table}: no message of the batch has the column {', '.join(names)}, which stays as it "
        "is, or null: is the name right in schema=?"
    )
    logger.warning(warning)
    return (warning,)
