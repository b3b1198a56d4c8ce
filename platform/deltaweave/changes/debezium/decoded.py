"""Envelopes that a decoder made of Avro or Protobuf: structs, whose values have types."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from deltaweave.changes.debezium.decoded_values import (
    has_parts,
    is_lost,
    may_lose,
    read_value,
    with_parts,
)
from deltaweave.changes.debezium.envelopes import (
    OPERATION,
    ROW,
    SENT,
    SOURCE,
    ChangedRows,
    Messages,
)
from deltaweave.changes.debezium.placeholders import Placeholder
from deltaweave.changes.debezium.values import ReadValue, TextValue, TimeUnit
from deltaweave.delta.jvm import json_text
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

# Of a column with parts: what was read of it, and whether a part was lost.
_READ, _LOST = "_cdc_read_", "_cdc_lost_"


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
    rows = _with_read(rows.withColumn(SENT, placeholder.without(by_name)), wanted, found, units)
    columns, missing = {}, {}
    for field in wanted:
        of = found[field.name]
        if has_parts(of.dataType, field.dataType):
            read = _read_parts(of, field, messages.place, units[field.name])
        else:
            value = F.when(_is_sent(field), F.col(ROW)[of.name])
            read = read_value(value, of.dataType, field, messages.place, units[field.name])
        missing[field.name] = ~_is_sent(field)
        known = placeholder.problem_of(field.name, F.col(SENT)[field.name], messages.place)
        columns[field.name] = read.unless(known)
    return ChangedRows(rows, columns, missing, F.lit(None).cast("string"))


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
        of, name, as_type = found[field.name], field.name, field.dataType
        if has_parts(of.dataType, as_type):
            value = F.col(ROW)[of.name]
            parts = with_parts(value, of.dataType, as_type, units[name])
            read[_READ + name] = F.when(_is_sent(field), parts)
            if may_lose(of.dataType, as_type):
                of_parts = is_lost(value, column(_READ + name), of.dataType, as_type)
                lost[_LOST + name] = _is_sent(field) & of_parts
    return rows.withColumns(read).withColumns(lost)


def _read_parts(of: StructField, field: StructField, place: Column, unit: TimeUnit) -> ReadValue:
    """Return what was read of a column with parts; a problem with one is with the whole."""
    read = column(_READ + field.name)
    if not may_lose(of.dataType, field.dataType):
        return ReadValue.fine(read)
    text = json_text(F.col(ROW)[of.name])
    as_text = TextValue(field.name, text, place, unit, F.lit(None), F.lit(None))
    lost = column(_LOST + field.name)
    return as_text.checked(F.when(~lost, read), field.dataType, lost)


def _is_sent(field: StructField) -> Column:
    return F.map_contains_key(SENT, field.name)


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
