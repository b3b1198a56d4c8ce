"""Debezium's change envelopes as rows for `apply_changes`.

An envelope is `{before, after, op, source, …}`, as JSON (with or without the `schema` that Kafka
Connect can put around it) or as rows that a decoder made of Avro. `op` is `c`, `u` or `r` (a row of
the first snapshot) for the row in `after`, `d` for the row in `before`, and `t` if the table was
emptied. Tombstones, which have no value, and other messages are skipped.

PostgreSQL does not send large values that did not change, and Debezium puts a placeholder there.
Such columns are not in `_cdc_present`, so they stay as they are.

A snapshot's row comes before every change that the log has after it. If Debezium's position for the
row does not ensure that, the row gets a position before the whole log.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from deltaweave.changes.events import PREFIX, PRESENT
from deltaweave.choices import check_choice
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

Connector = Literal["postgresql", "mysql", "sqlserver", "oracle", "mongodb"]
TimeUnit = Literal["micros", "millis"]

UNAVAILABLE = "__debezium_unavailable_value"

_OP, _POSITION = "_cdc_op", "_cdc_position"

# Columns for the parts of an envelope, with names that no topic uses.
_OPERATION, _SOURCE = "_cdc_envelope_op", "_cdc_envelope_source"
_ENVELOPE, _ROW = "_cdc_envelope", "_cdc_envelope_row"
_BEFORE, _AFTER = "_cdc_envelope_before", "_cdc_envelope_after"

FROM_DEBEZIUM: Mapping[str, Any] = MappingProxyType(
    {
        "sequence_by": _POSITION,
        "apply_as_deletes": f"{_OP} = 'd'",
        "apply_as_truncates": f"{_OP} = 't'",
        "present_columns": PRESENT,
        "except_column_list": (_OP, _POSITION),
    }
)
"""The arguments of `apply_changes` for rows from `debezium_changes`."""

# The fields of `source` with an event's position in its database's log.
_POSITIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": {"lsn": "bigint"},
        "mysql": {"file": "string", "pos": "bigint", "row": "int"},
        "sqlserver": {"commit_lsn": "string", "change_lsn": "string", "event_serial_no": "bigint"},
        "oracle": {"scn": "decimal(38,0)"},
        "mongodb": {"ts_ms": "bigint", "ord": "int"},
    }
)

# For each type, a value below all positions.
_BEFORE_ALL: Mapping[str, Any] = MappingProxyType(
    {"string": "", "bigint": -1, "int": -1, "decimal(38,0)": -1}
)

# For these databases, a snapshot's row has the position at which the snapshot was taken. For the
# others, its position may be above that of a change which the row lacks: PostgreSQL and Oracle
# number a change when it is made and not when it is committed, Debezium leaves the number out of
# incremental snapshots of PostgreSQL, and for MongoDB it may be the time at which the row was sent.
_SNAPSHOTS_HAVE_POSITIONS = ("mysql", "sqlserver")


def debezium_changes(
    envelopes: DataFrame,
    *,
    schema: StructType | str,
    connector: Connector,
    value: str = "value",
    offset: str | None = "offset",
    time_unit: TimeUnit = "micros",
    unavailable: str = UNAVAILABLE,
) -> DataFrame:
    """The envelopes as rows of the table whose changes they are.

    >>> rows = debezium_changes(kafka, schema="id INT, name STRING", connector="postgresql")
    >>> deltaweave.apply_changes(spark, target, rows, keys=["id"], **FROM_DEBEZIUM)

    Args:
        envelopes: One envelope in each row, e.g. what Spark reads from a Kafka topic.
        schema: Columns and types of the table. In JSON, numbers, decimals as strings (Debezium's
            `decimal.handling.mode=string`), dates as days, times in `time_unit` or as ISO 8601,
            binary in base64, and nested types as JSON are converted to these types; a value that
            cannot be converted is an error.
        connector: The database the events come from, whose log position orders them.
        value: Column of the envelope: a string, its bytes, or a struct.
        offset: Column that orders events of the same position, such as those of a snapshot or of
            one statement; None if there is none.
        time_unit: What times count since 1970 in JSON: `micros` or, with Debezium's
            `time.precision.mode=connect`, `millis`.
        unavailable: Debezium's `unavailable.value.placeholder`.

    Returns:
        The columns of `schema`; `_cdc_op` (string), `_cdc_position` (struct) and `_cdc_present`
        (array of strings, null for all).

    Raises:
        StatementError: There is no such connector, time unit or column, or a column's name is
            taken.
    """
    operation = "reading changes"
    check_choice("connector", connector, _POSITIONS, table=None, operation=operation)
    check_choice("time_unit", time_unit, get_args(TimeUnit), table=None, operation=operation)
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(wanted, StructType)
    taken = [name for name in (*wanted.names, *envelopes.columns) if _is_taken(name)]
    if taken:
        raise StatementError(
            f"column names that begin with {PREFIX} are taken: {', '.join(taken)}.",
            operation="reading changes",
            hint="Rename them in what is given to debezium_changes.",
        )
    for name in filter(None, [value, offset]):
        if name not in envelopes.columns:
            raise StatementError(
                f"the envelopes have no column {name}.",
                operation="reading changes",
                hint=f"They have {', '.join(envelopes.columns)}.",
            )
    if isinstance(envelopes.schema[value].dataType, StructType):
        rows, columns, missing = _of_structs(envelopes, value, wanted, unavailable)
    else:
        rows, columns, missing = _of_json(envelopes, value, wanted, unavailable, time_unit)
    place = _place(connector)
    place += [] if offset is None else [column(offset).cast("bigint").alias("offset")]
    present = F.array_compact(
        F.array(*[F.when(~is_missing, F.lit(name)) for name, is_missing in missing.items()])
    )
    is_whole = (F.col(_OPERATION) == "d") | (F.size(present) == len(wanted))
    return rows.where(F.col(_OPERATION).isin("c", "u", "r", "d", "t")).select(
        *columns,
        F.col(_OPERATION).alias(_OP),
        F.struct(*place).alias(_POSITION),
        F.when(~is_whole & (F.col(_OPERATION) != "t"), present).alias(PRESENT),
    )


def _is_taken(name: str) -> bool:
    return name.lower().startswith(PREFIX)


def _place(connector: Connector) -> list[Column]:
    """The position of an event in the log; only rows of snapshots may lack it."""
    is_snapshot = F.col(_OPERATION) == "r"
    place = []
    for field, data_type in _POSITIONS[connector].items():
        at = F.col(_SOURCE)[field].cast(data_type)
        before_all = F.lit(_BEFORE_ALL[data_type]).cast(data_type)
        of_row = (
            F.coalesce(at, before_all) if connector in _SNAPSHOTS_HAVE_POSITIONS else before_all
        )
        place.append(F.when(is_snapshot, of_row).otherwise(at).alias(field))
    return place


Parts = tuple[DataFrame, Sequence[Column], Mapping[str, Column]]
"""Rows with `_cdc_envelope_op` and `_cdc_envelope_source`; the table's columns; and for each
column, whether it is missing."""


def _of_json(
    envelopes: DataFrame, value: str, wanted: StructType, unavailable: str, time_unit: TimeUnit
) -> Parts:
    text = column(value).cast("string")
    # Kafka Connect may send `schema` and `payload`.
    parsed = F.from_json(
        text,
        "before map<string,string>, after map<string,string>, op string, "
        "source map<string,string>, payload struct<before map<string,string>, "
        "after map<string,string>, op string, source map<string,string>>",
        {"mode": "FAILFAST"},
    )
    rows = envelopes.where(text.isNotNull()).withColumn(_ENVELOPE, parsed)
    parts = {"before": _BEFORE, "after": _AFTER, "op": _OPERATION, "source": _SOURCE}
    rows = rows.select(
        *map(column, envelopes.columns),
        *[
            F.coalesce(column(_ENVELOPE, part), column(_ENVELOPE, "payload", part)).alias(name)
            for part, name in parts.items()
        ],
    )
    row = F.when(F.col(_OPERATION) == "d", F.col(_BEFORE)).otherwise(F.col(_AFTER))
    rows = rows.withColumn(_ROW, row)
    columns, missing = [], {}
    for field in wanted:
        text_of = F.col(_ROW)[field.name]
        is_there = F.coalesce(F.map_contains_key(_ROW, field.name), F.lit(False))
        is_placeholder = F.coalesce(text_of.isin(_placeholders_in_json(unavailable)), F.lit(False))
        missing[field.name] = ~is_there | is_placeholder
        said = F.when(~is_placeholder, text_of)
        columns.append(_from_text(said, field.dataType, time_unit).alias(field.name))
    return rows, columns, missing


def _from_text(text: Column, data_type: DataType, time_unit: TimeUnit) -> Column:
    """A value of the type, from its JSON text."""
    if isinstance(data_type, StringType):
        return text
    if isinstance(data_type, BinaryType):
        return F.unbase64(text)
    is_number = text.rlike(r"^-?\d+$")
    number = F.when(is_number, text).cast("bigint")
    if isinstance(data_type, DateType):
        days = F.date_from_unix_date(number.cast("int"))
        return F.when(is_number, days).otherwise(F.when(~is_number, text).cast("date"))
    if isinstance(data_type, (TimestampType, TimestampNTZType)):
        since = F.timestamp_micros(number) if time_unit == "micros" else F.timestamp_millis(number)
        if isinstance(data_type, TimestampNTZType):
            # A time without a zone is no instant: converting it by one would shift it by the
            # session's zone.
            unit = "0.000001" if time_unit == "micros" else "0.001"
            epoch = F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'")
            since = epoch + F.expr(f"INTERVAL '{unit}' SECOND") * number
        return F.when(is_number, since).otherwise(F.when(~is_number, text).cast(data_type))
    if isinstance(data_type, VariantType):
        return F.parse_json(text)
    if isinstance(data_type, (StructType, ArrayType, MapType)):
        return F.from_json(text, data_type, {"mode": "FAILFAST"})  # type: ignore[arg-type]
    return text.cast(data_type)


def _placeholders_in_json(unavailable: str) -> list[str]:
    """How JSON writes the placeholder of columns of text, bytes, arrays and maps."""
    return [
        unavailable,
        base64.b64encode(unavailable.encode()).decode(),
        json.dumps([unavailable]),
        json.dumps({unavailable: unavailable}, separators=(",", ":")),
        json.dumps(list(unavailable.encode()), separators=(",", ":")),
    ]


def _of_structs(envelopes: DataFrame, value: str, wanted: StructType, unavailable: str) -> Parts:
    envelope = column(value)
    rows = envelopes.where(envelope.isNotNull()).select(
        *map(column, envelopes.columns),
        envelope["op"].alias(_OPERATION),
        envelope["source"].alias(_SOURCE),
        F.when(envelope["op"] == "d", envelope["before"]).otherwise(envelope["after"]).alias(_ROW),
    )
    held = rows.schema[_ROW].dataType
    assert isinstance(held, StructType)
    columns, missing = [], {}
    for field in wanted:
        if field.name not in held.names:
            missing[field.name] = F.lit(True)
            columns.append(F.lit(None).cast(field.dataType).alias(field.name))
            continue
        said = F.col(_ROW)[field.name]
        is_placeholder = _is_placeholder(said, held[field.name], unavailable)
        missing[field.name] = is_placeholder
        columns.append(F.when(~is_placeholder, said).cast(field.dataType).alias(field.name))
    return rows, columns, missing


def _is_placeholder(said: Column, field: StructField, unavailable: str) -> Column:
    data_type = field.dataType
    if isinstance(data_type, StringType):
        placeholder = F.lit(unavailable)
    elif isinstance(data_type, BinaryType):
        placeholder = F.lit(unavailable).cast("binary")
    elif isinstance(data_type, ArrayType) and isinstance(data_type.elementType, StringType):
        placeholder = F.array(F.lit(unavailable))
    elif isinstance(data_type, ArrayType) and isinstance(data_type.elementType, IntegralType):
        codes = [F.lit(code) for code in unavailable.encode()]
        placeholder = F.array(*codes).cast(data_type)
    else:
        return F.lit(False)
    return F.coalesce(said == placeholder, F.lit(False))
