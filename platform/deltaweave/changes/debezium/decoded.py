"""Envelopes that a decoder made of Avro or Protobuf: structs, whose values have types."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from deltaweave.changes.conversions import converted, is_as
from deltaweave.changes.debezium.envelopes import (
    OPERATION,
    ROW,
    SENT,
    SOURCE,
    ChangedRows,
    Messages,
)
from deltaweave.changes.debezium.placeholders import Placeholder
from deltaweave.changes.debezium.values import SCALED, TIMES, ReadValue, TextValue, TimeUnit
from deltaweave.delta.jvm import json_text
from deltaweave.errors import StatementError
from deltaweave.identifiers import column


def rows_of_structs(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> ChangedRows:
    """Return the rows of envelopes that a decoder made of Avro or Protobuf."""
    envelope = column(messages.value)
    _check_is_envelope(messages)
    rows = messages.frame.where(envelope.isNotNull()).select(
        *map(column, messages.frame.columns),
        envelope["op"].alias(OPERATION),
        envelope["source"].alias(SOURCE),
        F.when(envelope["op"] == "d", envelope["before"]).otherwise(envelope["after"]).alias(ROW),
    )
    held = rows.schema[ROW].dataType
    assert isinstance(held, StructType)
    folded = {name.lower(): name for name in held.names}
    names = {n: n if n in held.names else folded.get(n.lower()) for n in wanted.names}
    found = {name: held[of] for name, of in names.items() if of is not None}
    _check_has(wanted, found, held)
    texts = {}
    for name, of in found.items():
        text = placeholder.text_of(F.col(ROW)[of.name], of.dataType)
        texts[name] = F.lit("") if text is None else text
    by_name = F.create_map(*[part for name, text in texts.items() for part in (F.lit(name), text)])
    rows = rows.withColumn(SENT, placeholder.without(by_name))
    columns, missing = {}, {}
    for field in wanted:
        of = found[field.name]
        is_sent = F.map_contains_key(SENT, field.name)
        value = F.when(is_sent, F.col(ROW)[of.name])
        read = _read(value, of.dataType, field, messages.place, units[field.name])
        missing[field.name] = ~is_sent
        known = placeholder.problem_of(field.name, F.col(SENT)[field.name], messages.place)
        columns[field.name] = read.unless(known)
    return ChangedRows(rows, columns, missing, F.lit(None).cast("string"))


def _check_is_envelope(messages: Messages) -> None:
    value = messages.frame.schema[messages.value].dataType
    assert isinstance(value, StructType)
    lacking = [part for part in ("before", "after", "op", "source") if part not in value.names]
    if lacking:
        raise StatementError(
            f"{messages.value} is no envelope: it lacks {', '.join(lacking)}.",
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


def _read(
    value: Column, held: DataType, field: StructField, place: Column, unit: TimeUnit
) -> ReadValue:
    """Read a value as a column's type; fields of structs are found by name."""
    wanted = field.dataType
    if is_as(held, wanted):
        return ReadValue.fine(value)
    is_nested = isinstance(held, (StructType, ArrayType, MapType))
    text = json_text(value) if is_nested else value.cast("string")
    has_scale = isinstance(held, StructType) and set(held.names) == {"scale", "value"}
    semantic = F.lit(SCALED if has_scale else None).cast("string")
    as_text = TextValue(field.name, text, place, unit, semantic, F.lit(None))
    if is_nested and isinstance(wanted, (StringType, NumericType)):
        return as_text.as_type(wanted)
    if isinstance(held, (IntegralType, StringType)) and isinstance(wanted, (DateType, *TIMES)):
        return as_text.as_type(wanted)
    if isinstance(held, BinaryType) and not isinstance(wanted, StringType):
        return ReadValue.fine(value.cast(wanted))
    by_name = converted(value, held, wanted)
    lost = _is_lost(by_name, wanted)
    if isinstance(held, FractionalType) and isinstance(wanted, IntegralType):
        lost = lost | (value != F.floor(value))
    return as_text.checked(by_name.try_cast(wanted), wanted, lost)


def _is_lost(value: Column, wanted: DataType) -> Column:
    """Return whether a value, or a part of it, does not fit its type; false or null if it fits."""
    read = value.try_cast(wanted)
    return _differs(value, read, wanted)


def _differs(value: Column, read: Column, wanted: DataType) -> Column:
    """Return whether a part that is not null became null."""
    lost = value.isNotNull() & read.isNull()
    if isinstance(wanted, StructType):
        for name in wanted.names:
            of = wanted[name].dataType
            lost = lost | F.coalesce(_differs(value[name], read[name], of), F.lit(False))
        return lost
    if isinstance(wanted, ArrayType):
        return lost | _any_differs(value, read, wanted.elementType)
    if isinstance(wanted, MapType):
        of_keys = _any_differs(F.map_keys(value), F.map_keys(read), wanted.keyType)
        return (
            lost | of_keys | _any_differs(F.map_values(value), F.map_values(read), wanted.valueType)
        )
    return lost


def _any_differs(values: Column, read: Column, wanted: DataType) -> Column:
    each = F.zip_with(values, read, lambda one, other: _differs(one, other, wanted))
    return F.coalesce(F.exists(each, lambda differs: differs), F.lit(False))
