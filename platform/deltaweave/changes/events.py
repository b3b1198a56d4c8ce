"""Change events in one shape, whatever the source: key, operation, sequence, values.

The order of two events of a key is that of their sequences and, where these are equal, deletes
after upserts and upserts by a digest of what they say. So any two events have one order, however
often they come and in whatever batches, and each step downstream takes maxima alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from deltaweave.delta.failures import translated
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import quoted

PREFIX = "_cdc_"
"""Beginning of the names of columns that belong to change data capture, here and in tables."""

OPERATION = "_cdc_operation"
SEQUENCE = "_cdc_sequence"
VALUES = "_cdc_values"
PRESENT = "_cdc_present"
INSERTED = "_cdc_inserted"

UPSERT, DELETE, TRUNCATE = "upsert", "delete", "truncate"

_LAST = 2**63 - 1
_SHOWN = 10


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
            of the sequence's type, and `tie`, bigint); `_cdc_values` (struct of the other columns);
            `_cdc_present` (array of strings, null for all), where upserts may leave columns out;
            `_cdc_inserted` (boolean), where events tell inserts.
        shape: How they were read.
        count: How many there are.
        deletes: How many of them delete.
        truncated: The sequence (`at`) of the last that empties the table, or None.
    """

    rows: DataFrame
    shape: EventShape
    count: int = 0
    deletes: int = 0
    truncated: Any = None

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
    found = rows.agg(*_totals()).first()
    assert found is not None
    return Events(rows, shape, found["count"], found["deletes"], found["truncated"])


def speaks_of(column: str, shape: EventShape) -> Column:
    """Whether an event says what the column is."""
    speaks = F.lit(True)
    if shape.present is not None:
        named = F.array_contains(PRESENT, column)
        speaks = F.col(PRESENT).isNull() | named
    if shape.ignore_nulls:
        # A null that an event names as present is meant.
        is_given = F.col(VALUES)[column].isNotNull()
        speaks = speaks & is_given if shape.present is None else speaks & (is_given | named)
    return speaks


def literal(value: Any, data_type: DataType) -> Column:
    """A value that was collected, as a constant of its type."""
    if isinstance(data_type, StructType) and value is not None:
        fields = [literal(value[each.name], each.dataType).alias(each.name) for each in data_type]
        return F.struct(*fields)
    return F.lit(value).cast(data_type)


def last_at(at: Column) -> Column:
    """The last sequence of all with this `at`: that of a delete."""
    return F.struct(at.alias("at"), F.lit(_LAST).alias("tie"))


def _shaped(source: DataFrame, shape: EventShape, table: str) -> DataFrame:
    false = F.lit(False)
    deletes = F.coalesce(shape.deletes, false) if shape.deletes is not None else false
    truncates = F.coalesce(shape.truncates, false) if shape.truncates is not None else false
    operation = F.when(truncates, TRUNCATE).when(deletes, DELETE).otherwise(UPSERT)
    values = F.struct(*[F.col(quoted(name)).alias(name) for name in shape.columns])
    present = [] if shape.present is None else [F.col(quoted(shape.present)).alias(PRESENT)]
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
        *[F.col(quoted(key)) for key in shape.keys],
        operation.alias(OPERATION),
        at.alias("_cdc_at"),
        values.alias(VALUES),
        *present,
    )
    tie = F.when(F.col(OPERATION) == UPSERT, digest(rows, shape)).otherwise(_LAST)
    sequence = F.struct(F.col("_cdc_at").alias("at"), tie.cast("bigint").alias("tie"))
    return rows.withColumn(SEQUENCE, sequence).drop("_cdc_at")


def digest(rows: DataFrame, shape: EventShape) -> Column:
    """What tells upserts with the same sequence apart: a hash of what they say."""
    said = [comparable(rows, VALUES, column) for column in shape.columns]
    said += [F.col(PRESENT)] if PRESENT in rows.columns else []
    return F.xxhash64(*said) if said else F.lit(0)


def comparable(rows: DataFrame, struct: str, column: str) -> Column:
    """A field of a struct of `rows` as it can be compared and hashed, which maps cannot."""
    fields = rows.schema[struct].dataType
    assert isinstance(fields, StructType)
    value = F.col(struct)[column]
    return F.to_json(F.struct(value)) if _holds_a_map(fields[column].dataType) else value


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
    at = F.col(SEQUENCE)["at"]
    operation = F.col(OPERATION)
    no_sequence = _is_null(at, rows.schema[SEQUENCE].dataType["at"].dataType)  # type: ignore[index]
    no_key = F.lit(False)
    for key in shape.keys:
        no_key = no_key | F.col(quoted(key)).isNull()
    no_key = no_key & (operation != TRUNCATE)
    found = rows.agg(
        *_totals(),
        F.count_if(no_sequence).alias("no_sequence"),
        F.count_if(no_key).alias("no_key"),
    ).first()
    assert found is not None
    for count, what, which in (
        (found["no_sequence"], "no sequence", no_sequence),
        (found["no_key"], "a null in their key", no_key),
    ):
        if count:
            shown = rows.where(which).select(*map(quoted, shape.keys), SEQUENCE).take(_SHOWN)
            examples = "; ".join(_shown(row, shape.keys) for row in shown)
            raise SourceError(
                f"{count} of {found['count']} events have {what}: {examples}",
                table=table,
                operation="reading changes",
                hint="Every event needs a key and a sequence: filter the others, or mend them.",
            )
    return Events(rows, shape, found["count"], found["deletes"], found["truncated"])


def _totals() -> list[Column]:
    """How many events there are and how many delete; the last that empties the table."""
    at, operation = F.col(SEQUENCE)["at"], F.col(OPERATION)
    return [
        F.count("*").alias("count"),
        F.count_if(operation == DELETE).alias("deletes"),
        F.max(F.when(operation == TRUNCATE, at)).alias("truncated"),
    ]


def _is_null(at: Column, data_type: DataType) -> Column:
    """Whether a sequence, or a part of it, is missing."""
    missing = at.isNull()
    if isinstance(data_type, StructType):
        for field in data_type:
            missing = missing | _is_null(at[field.name], field.dataType)
    return missing


def _shown(row: Any, keys: Sequence[str]) -> str:
    named = ", ".join(f"{key}={row[key]!r}" for key in keys)
    return f"{named} at {row[SEQUENCE]['at']!r}"
