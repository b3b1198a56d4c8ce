"""Change events in one shape, whatever the source: key, operation, sequence, values.

The order of two events of a key is that of their sequences and, where these are equal, deletes
after upserts and upserts by a digest of what they say. So any two events have one order, however
often they come and in whatever batches, and each step downstream takes maxima alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    MapType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from deltaweave.delta.failures import translated
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import column, quoted

PREFIX = "_cdc_"
"""Beginning of the names of columns that belong to change data capture, here and in tables."""

OPERATION = "_cdc_operation"
SEQUENCE = "_cdc_sequence"
VALUES = "_cdc_values"
PRESENT = "_cdc_present"
INSERTED = "_cdc_inserted"

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

_LAST = 2**63 - 1
_NO_COLUMN = "_cdc_no_column"
_SHOWN = 10

_NARROW = (ByteType, ShortType, IntegerType)
_EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_MICROSECOND = "INTERVAL '0.000001' SECOND"


@dataclass(frozen=True, kw_only=True)
class EventShape:
    """How a source's rows are read as events.

    Attributes:
        keys: Columns that identify a row of the table.
        sequence_by: Gives an event's place in the order of its key's events.
        deletes: Condition of events that delete, or None where none do.
        truncates: Condition of events that empty the table, or None.
        columns: The other columns of the table, those of the source that it takes.
        present: Column with the names of the columns that an event speaks of, an array of strings;
            None, or null in a row, where it speaks of all.
        ignore_nulls: Whether an upsert does not speak of columns that are null in it.
        inserts: Condition of upserts of which it is known that their key is new, or None.
    """

    keys: tuple[str, ...]
    sequence_by: Column
    deletes: Column | None
    truncates: Column | None
    columns: tuple[str, ...]
    present: str | None = None
    ignore_nulls: bool = False
    inserts: Column | None = None

    @property
    def is_partial(self) -> bool:
        """Whether upserts may leave columns out."""
        return self.ignore_nulls or self.present is not None


@dataclass(frozen=True)
class Events:
    """A batch of events, and what is known of it as a whole.

    Attributes:
        rows: The keys by their names; `_cdc_operation` (string); `_cdc_sequence` (struct of `at`,
            of the sequence's type, and `tie`, bigint); `_cdc_values` (struct of the other columns,
            or of a null where there are none);
            `_cdc_present` (array of strings, null for all), where upserts may leave columns out;
            `_cdc_inserted` (boolean), where events tell inserts.
        shape: How they were read.
        count: How many there are.
        deletes: How many of them delete.
        truncated: The sequence (`at`) of the last that empties the table, a constant; or None.
    """

    rows: DataFrame
    shape: EventShape
    count: int = 0
    deletes: int = 0
    truncated: Column | None = None

    @property
    def sequence_type(self) -> StructType:
        """The type of `_cdc_sequence`, as tables hold it."""
        sequence = nullable(self.rows.schema[SEQUENCE].dataType)
        assert isinstance(sequence, StructType)
        return sequence


def read_events(source: DataFrame, shape: EventShape, *, table: str) -> Events:
    """The source's rows as events, kept in the executors' memory until `rows.unpersist()`.

    Raises:
        StatementError: A column or condition cannot be resolved, or its type has no order.
        SourceError: An event has no sequence, or a null in its key; 10 of them are named.
    """
    with translated(table, operation="reading changes", otherwise=SourceError):
        rows = _shaped(source, shape, table)
        rows = rows.persist()
        try:
            return _known(rows, shape, table)
        except BaseException:
            rows.unpersist()
            raise


def counted(rows: DataFrame, shape: EventShape) -> Events:
    """Events that were read before, counted in one job."""
    at_type = _at_type(rows)
    found = rows.agg(*_totals(at_type)).first()
    assert found is not None
    truncated = constant(found["truncated"], at_type)
    return Events(rows, shape, found["count"], found["deletes"], truncated)


def speaks_of(name: str, shape: EventShape) -> Column:
    """Whether an event says what the column of this name is."""
    speaks = F.lit(True)
    if shape.present is not None:
        named = F.array_contains(PRESENT, name)
        speaks = F.col(PRESENT).isNull() | named
    if shape.ignore_nulls:
        # A null that an event names as present is meant.
        is_given = F.col(VALUES)[name].isNotNull()
        speaks = speaks & is_given if shape.present is None else speaks & (is_given | named)
    return speaks


def collectable(value: Column, data_type: DataType) -> Column:
    """A value as it can be collected, for `constant`, without a loss.

    Python has times of its own local zone, where an hour in autumn comes twice, and none after the
    year 9999. So times and dates are collected as numbers.
    """
    if isinstance(data_type, StructType):
        fields = [
            collectable(value[each.name], each.dataType).alias(each.name) for each in data_type
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(data_type, TimestampType):
        return F.unix_micros(value)
    if isinstance(data_type, TimestampNTZType):
        return value - F.expr(_EPOCH)
    return F.unix_date(value) if isinstance(data_type, DateType) else value


def constant(collected: Any, data_type: DataType) -> Column | None:
    """What was collected of `collectable`, as a constant of the value's type; None for null."""
    if collected is None:
        return None
    if isinstance(data_type, StructType):
        fields = []
        for part, field in zip(collected, data_type, strict=True):
            value = constant(part, field.dataType)
            missing = F.lit(None).cast(field.dataType)
            fields.append((missing if value is None else value).alias(field.name))
        return F.struct(*fields)
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(F.lit(collected))
    if isinstance(data_type, TimestampNTZType):
        micros = collected // timedelta(microseconds=1)
        return F.expr(_EPOCH) + F.expr(_MICROSECOND) * F.lit(micros)
    if isinstance(data_type, DateType):
        return F.date_from_unix_date(F.lit(collected))
    return F.lit(collected).cast(data_type)


def last_at(at: Column) -> Column:
    """The last sequence of all with this `at`: that of a delete."""
    return F.struct(at.alias("at"), F.lit(_LAST).alias("tie"))


def _shaped(source: DataFrame, shape: EventShape, table: str) -> DataFrame:
    false = F.lit(False)
    deletes = F.coalesce(shape.deletes, false) if shape.deletes is not None else false
    truncates = F.coalesce(shape.truncates, false) if shape.truncates is not None else false
    operation = F.when(truncates, TRUNCATE).when(deletes, DELETE).otherwise(UPSERT)
    values = values_of(shape.columns)
    present = [] if shape.present is None else [column(shape.present).alias(PRESENT)]
    if shape.inserts is not None:
        present.append(F.coalesce(shape.inserts, false).alias(INSERTED))
    at = shape.sequence_by
    at_type = source.select(at.alias("at")).schema["at"].dataType
    if not _has_order(at_type):
        raise StatementError(
            f"values of the type {at_type.simpleString()} have no order.",
            table=table,
            operation="reading changes",
            hint="Give sequence_by a number, a time, a string, or a struct of such.",
        )
    rows = source.select(
        *map(column, shape.keys),
        operation.alias(OPERATION),
        at.alias("_cdc_at"),
        values.alias(VALUES),
        *present,
    )
    tie = F.when(F.col(OPERATION) == UPSERT, digest(rows, shape)).otherwise(_LAST)
    sequence = F.struct(F.col("_cdc_at").alias("at"), tie.cast("bigint").alias("tie"))
    return rows.withColumn(SEQUENCE, sequence).drop("_cdc_at")


def values_of(columns: Sequence[str]) -> Column:
    """Columns as one struct, which has a field also where there are none: Parquet wants one."""
    fields = [column(name).alias(name) for name in columns]
    return F.struct(*(fields or [F.lit(None).cast("boolean").alias(_NO_COLUMN)]))


def digest(rows: DataFrame, shape: EventShape) -> Column:
    """What tells upserts with the same sequence apart: a hash of what they say.

    A value is hashed with its column's name, and a null is not hashed at all: so it counts in
    which column a null is, the order of columns does not, and a column that is added later, null
    in the events that came before, changes no digest.
    """
    fields = rows.schema[VALUES].dataType
    assert isinstance(fields, StructType)
    types = {name: fields[name].dataType for name in shape.columns}
    said = []
    for name in sorted(types, key=lambda name: (name.lower(), name)):
        said += _hashed(F.col(VALUES)[name], types[name], quoted(name.lower()))
    if PRESENT in rows.columns:
        names = F.array_sort(F.array_distinct(PRESENT))
        said += _hashed(names, rows.schema[PRESENT].dataType, PRESENT)
    return F.xxhash64(*said) if said else F.lit(0)


def _hashed(value: Column, data_type: DataType, name: str) -> list[Column]:
    """What `xxhash64` takes of a value, so that different values have different hashes.

    `xxhash64` passes over nulls, also those in structs and arrays, and sees an array of arrays as
    one. So a value that is there comes with a name, and those in arrays and maps have a hash each.
    """
    is_there = F.when(value.isNotNull(), F.lit(name))
    if isinstance(data_type, StructType):
        parts = [is_there]
        for field in data_type:
            parts += _hashed(value[field.name], field.dataType, f"{name}.{quoted(field.name)}")
        return parts
    if isinstance(data_type, ArrayType):
        of = data_type.elementType
        return [is_there, F.transform(value, lambda item: F.xxhash64(*_hashed(item, of, "")))]
    if isinstance(data_type, MapType):
        of_key, of_value = data_type.keyType, data_type.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.xxhash64(
                *_hashed(entry["key"], of_key, "key"), *_hashed(entry["value"], of_value, "value")
            ),
        )
        return [is_there, F.array_sort(entries)]  # the order of a map's entries says nothing
    if isinstance(data_type, VariantType):
        return [is_there, F.to_json(value)]
    if isinstance(data_type, (FloatType, DoubleType)):
        return [is_there, value.cast("string")]  # 0.0 and -0.0 have the same hash
    if isinstance(data_type, _NARROW):
        return [is_there, value.cast("bigint")]  # the same when the column is widened
    return [is_there, value]


def comparable(rows: DataFrame, struct: str, name: str) -> Column:
    """A field of a struct of `rows` as `=` can compare it, which maps and variants cannot be.

    These are compared by their hashes.
    """
    fields = rows.schema[struct].dataType
    assert isinstance(fields, StructType)
    value, data_type = F.col(struct)[name], fields[name].dataType
    return F.xxhash64(*_hashed(value, data_type, name)) if _holds_a_map(data_type) else value


def _holds_a_map(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_holds_a_map(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _holds_a_map(data_type.elementType)
    return isinstance(data_type, (MapType, VariantType))


def nullable(data_type: DataType) -> DataType:
    """The type with nulls allowed in it, since Delta knows no others within maps."""
    if not isinstance(data_type, StructType):
        return data_type
    return StructType([StructField(each.name, nullable(each.dataType)) for each in data_type])


def _has_order(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return all(_has_order(field.dataType) for field in data_type)
    return not isinstance(data_type, (MapType, VariantType, ArrayType))


def _known(rows: DataFrame, shape: EventShape, table: str) -> Events:
    at_type = _at_type(rows)
    operation = F.col(OPERATION)
    no_sequence = _is_null(F.col(SEQUENCE)["at"], at_type)
    no_key = F.lit(False)
    for key in shape.keys:
        no_key = no_key | column(key).isNull()
    no_key = no_key & (operation != TRUNCATE)
    found = rows.agg(
        *_totals(at_type),
        F.count_if(no_sequence).alias("no_sequence"),
        F.count_if(no_key).alias("no_key"),
    ).first()
    assert found is not None
    for count, what, which in (
        (found["no_sequence"], "no sequence", no_sequence),
        (found["no_key"], "a null in their key", no_key),
    ):
        if count:
            raise SourceError(
                f"{count} of {found['count']} events have {what}: "
                f"{_examples(rows.where(which), shape.keys)}",
                table=table,
                operation="reading changes",
                hint="Every event needs a key and a sequence: filter the others, or mend them.",
            )
    truncated = constant(found["truncated"], at_type)
    return Events(rows, shape, found["count"], found["deletes"], truncated)


def _at_type(rows: DataFrame) -> DataType:
    sequence = rows.schema[SEQUENCE].dataType
    assert isinstance(sequence, StructType)
    return sequence["at"].dataType


def _totals(at_type: DataType) -> list[Column]:
    """How many events there are and how many delete; the last that empties the table."""
    at, operation = F.col(SEQUENCE)["at"], F.col(OPERATION)
    last_truncate = F.max(F.when(operation == TRUNCATE, at))
    return [
        F.count("*").alias("count"),
        F.count_if(operation == DELETE).alias("deletes"),
        collectable(last_truncate, at_type).alias("truncated"),
    ]


def _is_null(at: Column, data_type: DataType) -> Column:
    """Whether a sequence, or a part of it, is missing."""
    missing = at.isNull()
    if isinstance(data_type, StructType):
        for field in data_type:
            missing = missing | _is_null(at[field.name], field.dataType)
    return missing


def _examples(rows: DataFrame, keys: Sequence[str]) -> str:
    """A few of the events, by key and sequence."""
    # As Spark writes them: Python has no dates after the year 9999.
    texts = [column(key).cast("string") for key in keys]
    shown = rows.select(*texts, F.col(SEQUENCE)["at"].cast("string")).take(_SHOWN)
    found = []
    for *of_key, at in shown:
        named = ", ".join(f"{key}={value}" for key, value in zip(keys, of_key, strict=True))
        found.append(f"{named} at {at}")
    return "; ".join(found)
