"""Envelopes that a decoder made of Avro or Protobuf: structs, whose values have types.

A value that its column does not hold exactly is refused, at every depth. A value with parts is read
in two steps: `with_parts` converts it, and leaves null in place of a part that the column does not
hold; `is_lost` returns whether there is such a part. Each step reads each part once, so that the
plan grows with the types and not with the power of their depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from deltaweave.changes.conversions import by_case, is_as, once, plain, widens
from deltaweave.changes.debezium.envelopes import (
    OPERATION,
    ROW,
    SENT,
    SOURCE,
    UNREAD,
    EnvelopeRows,
    Messages,
    Placeholder,
    without_other_operations,
)
from deltaweave.changes.debezium.values import (
    SCALED,
    TEXT_TYPES,
    TIMES,
    ReadValue,
    TextValue,
    TimeUnit,
)
from deltaweave.delta.jvm import json_text
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

# For a column with parts: what was read of it, and whether a part was lost.
_READ_PARTS, _LOST = "_cdc_read_", "_cdc_lost_"

_TYPES_WITH_PARTS = (StructType, ArrayType, MapType)
_BINARY = (FloatType, DoubleType)
# What text is read as by the rules of text in JSON.
_READ_AS_TEXT = (BinaryType, NumericType, VariantType, DateType, *TIMES)


def rows_of_structs(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> EnvelopeRows:
    """Return the rows of envelopes that a decoder made of Avro or Protobuf."""
    envelope = column(messages.value)
    _check_is_envelope(messages)
    rows = messages.frame.where(envelope.isNotNull()).select(
        *map(column, messages.frame.columns),
        envelope["op"].alias(OPERATION),
        envelope["source"].alias(SOURCE),
        F.when(envelope["op"] == "d", envelope["before"]).otherwise(envelope["after"]).alias(ROW),
    )
    rows = without_other_operations(messages, rows)
    held = rows.schema[ROW].dataType
    assert isinstance(held, StructType)
    folded = {name.lower(): name for name in held.names}
    names = {n: n if n in held.names else folded.get(n.lower()) for n in wanted.names}
    found = {name: held[own] for name, own in names.items() if own is not None}
    _check_has(wanted, found, held)
    texts = {}
    for name, sent in found.items():
        text = placeholder.text_of(F.col(ROW)[sent.name], sent.dataType)
        texts[name] = F.lit("") if text is None else text
    by_name = F.create_map(*[part for name, text in texts.items() for part in (F.lit(name), text)])
    rows = _with_read(rows.withColumn(SENT, placeholder.without(by_name)), wanted, found, units)
    columns, missing, cut = {}, {}, {}
    for field in wanted:
        sent = found[field.name]
        cut[field.name] = _is_cut(sent, field, messages.location, units[field.name])
        if has_parts(sent.dataType, field.dataType):
            read = _read_parts(sent, field, messages.location, units[field.name])
        else:
            value = F.when(_is_sent(field), F.col(ROW)[sent.name])
            read = read_value(value, sent.dataType, field, messages.location, units[field.name])
        missing[field.name] = ~_is_sent(field)
        known = placeholder.problem_of(field.name, F.col(SENT)[field.name], messages.location)
        columns[field.name] = read.unless(known)
    return EnvelopeRows(rows, columns, missing, F.col(UNREAD), cut)


def _with_read(
    rows: DataFrame,
    wanted: StructType,
    found: Mapping[str, StructField],
    units: Mapping[str, TimeUnit],
) -> DataFrame:
    """Add what was read of columns with parts, and whether parts were lost.

    They are columns, so that the value and the problem do not read the parts each on their own.
    """
    read, lost = {}, {}
    for field in wanted:
        sent, name, as_type = found[field.name], field.name, field.dataType
        if has_parts(sent.dataType, as_type):
            value = F.col(ROW)[sent.name]
            parts = with_parts(value, sent.dataType, as_type, units[name])
            read[_READ_PARTS + name] = F.when(_is_sent(field), parts)
            if may_lose(sent.dataType, as_type):
                is_part_lost = is_lost(value, column(_READ_PARTS + name), sent.dataType, as_type)
                lost[_LOST + name] = _is_sent(field) & is_part_lost
    return rows.withColumns(read).withColumns(lost)


def _read_parts(
    sent: StructField, field: StructField, location: Column, unit: TimeUnit
) -> ReadValue:
    """Return what was read of a column with parts; a problem with one is with the whole."""
    read = column(_READ_PARTS + field.name)
    if not may_lose(sent.dataType, field.dataType):
        return ReadValue.fine(read)
    text = json_text(F.col(ROW)[sent.name])
    as_text = TextValue(field.name, text, location, unit, F.lit(None), F.lit(None))
    lost = column(_LOST + field.name)
    return as_text.checked(F.when(~lost, read), field.dataType, lost)


def _is_cut(sent: StructField, field: StructField, location: Column, unit: TimeUnit) -> Column:
    """Return whether a column's value is a time that loses digits below the microsecond."""
    if not isinstance(sent.dataType, (StringType, IntegralType)):
        return F.lit(False)
    text = F.col(ROW)[sent.name].cast("string")
    return TextValue(field.name, text, location, unit, None, F.lit(None)).is_cut(field.dataType)


def _is_sent(field: StructField) -> Column:
    return F.map_contains_key(SENT, field.name)


def _check_is_envelope(messages: Messages) -> None:
    value = messages.frame.schema[messages.value].dataType
    assert isinstance(value, StructType)
    lacking = [part for part in ("before", "after", "op", "source") if part not in value.names]
    if lacking:
        raise StatementError(
            f"{messages.value} is not an envelope: it lacks {', '.join(lacking)}.",
            operation="reading changes",
            hint="Flattened rows lack the position in the log: remove the transform "
            "ExtractNewRecordState from the connector.",
        )


def _check_has(wanted: StructType, found: Mapping[str, StructField], held: StructType) -> None:
    lacking = [name for name in wanted.names if name not in found]
    if lacking:
        raise StatementError(
            f"no message has the column {', '.join(lacking)}.",
            operation="reading changes",
            hint=f"Leave it out of schema. Messages have {', '.join(held.names)}.",
        )


def has_parts(held: DataType, wanted: DataType) -> bool:
    """Return whether values are converted part by part."""
    return (
        isinstance(held, _TYPES_WITH_PARTS)
        and isinstance(wanted, _TYPES_WITH_PARTS)
        and not is_as(held, wanted)
    )


def may_lose(held: DataType, wanted: DataType) -> bool:
    """Return whether a type lacks values of another one, at any depth."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        return any(
            may_lose(sent.dataType, field.dataType) for sent, field in _shared_fields(held, wanted)
        )
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        return may_lose(held.elementType, wanted.elementType)
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        has_keys = _holds_each(held.keyType, wanted.keyType)
        return not has_keys or may_lose(held.valueType, wanted.valueType)
    if isinstance(wanted, TEXT_TYPES) and not isinstance(held, StructType):
        return False
    return not _holds_each(held, wanted)


def read_value(
    value: Column, held: DataType, field: StructField, location: Column, unit: TimeUnit
) -> ReadValue:
    """Read a value without parts as a column's type."""
    wanted = field.dataType
    if _holds_each(held, wanted):
        return ReadValue.fine(value.cast(wanted))
    is_nested = isinstance(held, _TYPES_WITH_PARTS)
    text = json_text(value) if is_nested else value.cast("string")
    has_scale = isinstance(held, StructType) and set(held.names) == {"scale", "value"}
    semantic = F.lit(SCALED if has_scale else None).cast("string")
    as_text = TextValue(field.name, text, location, unit, semantic, F.lit(None))
    if is_nested and isinstance(wanted, (*TEXT_TYPES, NumericType)):
        return as_text.as_type(wanted)
    if isinstance(held, StringType) and isinstance(wanted, _READ_AS_TEXT):
        return as_text.as_type(wanted)
    if isinstance(held, IntegralType) and isinstance(wanted, (DateType, *TIMES)):
        return as_text.as_type(wanted)
    if isinstance(held, BinaryType) or not may_lose(held, wanted):
        return ReadValue.fine(value.cast(wanted))
    read = _exactly(value, held, wanted)
    return as_text.checked(read, wanted, value.isNotNull() & read.isNull())


def with_parts(value: Column, held: DataType, wanted: DataType, unit: TimeUnit) -> Column:
    """Convert a value; a part that its type does not hold exactly is null.

    Fields of structs are found by name. A map is null if a key is, or if two keys are the same.

    The value is a column, a variable, or a field of these. `unit` is what numbers count since 1970
    where the other type has times.
    """
    if is_as(held, wanted):
        return value
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        parts = {
            field.name: with_parts(value[sent.name], sent.dataType, field.dataType, unit)
            for sent, field in _shared_fields(held, wanted)
        }
        none = F.lit(None)
        fields = [parts.get(f.name, none.cast(plain(f.dataType))).alias(f.name) for f in wanted]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        return _with_items(value, held.elementType, wanted.elementType, unit)
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        keys = _with_items(F.map_keys(value), held.keyType, wanted.keyType, unit)
        values = _with_items(F.map_values(value), held.valueType, wanted.valueType, unit)
        if _holds_each(held.keyType, wanted.keyType):
            return F.map_from_arrays(keys, values)
        return once(keys, lambda keys: F.when(_are_keys(keys), F.map_from_arrays(keys, values)))
    field = StructField("part", wanted)
    return read_value(value, held, field, F.lit("").cast("string"), unit).value


def is_lost(value: Column, read: Column, held: DataType, wanted: DataType) -> Column:
    """Return whether a part of a value is null in what was read of it.

    `wanted` is the type of what was read, which may lose values.
    """
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        return reduce(
            or_,
            [
                is_lost(value[sent.name], read[field.name], sent.dataType, field.dataType)
                for sent, field in _shared_fields(held, wanted)
                if may_lose(sent.dataType, field.dataType)
            ],
        )
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        return _is_any_lost(value, read, held.elementType, wanted.elementType)
    is_null = value.isNotNull() & read.isNull()
    if not isinstance(held, MapType) or not isinstance(wanted, MapType):
        return is_null
    if not may_lose(held.valueType, wanted.valueType):
        return is_null
    values, read_values = F.map_values(value), F.map_values(read)
    lost = _is_any_lost(values, read_values, held.valueType, wanted.valueType)
    return lost if _holds_each(held.keyType, wanted.keyType) else is_null | lost


def _with_items(values: Column, held: DataType, wanted: DataType, unit: TimeUnit) -> Column:
    if is_as(held, wanted):
        return values
    return F.transform(values, lambda item: with_parts(item, held, wanted, unit))


def _is_any_lost(values: Column, read: Column, held: DataType, wanted: DataType) -> Column:
    lost = F.zip_with(values, read, lambda one, other: is_lost(one, other, held, wanted))
    return F.coalesce(F.exists(lost, lambda each: each), F.lit(False))


def _shared_fields(held: StructType, wanted: StructType) -> list[tuple[StructField, StructField]]:
    """Return the fields that both structs have."""
    by_name = by_case(held)
    return [(by_name[f.name.lower()], f) for f in wanted if f.name.lower() in by_name]


def _are_keys(keys: Column) -> Column:
    """Return whether a map may have these keys."""
    distinct = F.array_distinct(F.filter(keys, lambda key: key.isNotNull()))
    return F.size(distinct) == F.size(keys)


def _holds_each(held: DataType, wanted: DataType) -> bool:
    """Return whether a type has each value of another one, and a different one for each."""
    return is_as(held, wanted) or widens(held, wanted)


def _exactly(value: Column, held: DataType, wanted: DataType) -> Column:
    """Return a value in a type; null if the type does not hold it exactly.

    A binary fraction holds the decimals next to it: a FLOAT holds the DOUBLE 0.1.
    """
    read = value.try_cast(wanted)
    is_same = read.try_cast(held).eqNullSafe(value)
    if isinstance(wanted, DateType):
        return F.when(is_same, read) if isinstance(held, TIMES) else read
    if not isinstance(held, NumericType) or not isinstance(wanted, (NumericType, BooleanType)):
        return read
    if isinstance(held, IntegralType) and isinstance(wanted, _BINARY):
        # Spark optimizes a cast of INT to FLOAT and then to DOUBLE into one, which loses no digits.
        is_same = read.try_cast("bigint").eqNullSafe(value.cast("bigint")) & _is_below_limit(value)
    elif isinstance(wanted, _BINARY):
        is_same = is_same | read.cast("string").try_cast(held).eqNullSafe(value)
    elif isinstance(held, _BINARY) and isinstance(wanted, IntegralType):
        is_same = read.cast("double").eqNullSafe(value.cast("double")) & _is_below_limit(read)
    return F.when(is_same, read)


def _is_below_limit(whole: Column) -> Column:
    """Return whether a number is not the highest BIGINT, to which Spark casts the DOUBLE above."""
    return whole.cast("bigint") != F.lit(2**63 - 1)
