"""Debezium's envelopes, `{before, after, op, source, …}`, as columns.

`op` is `c`, `u` or `r` (a row of a snapshot) for the row in `after`, `d` for the row in `before`,
and `t` if the table was emptied. Tombstones, which have no value, and other messages are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegralType, StringType, StructType

from deltaweave.changes.debezium.placeholders import Placeholder
from deltaweave.changes.debezium.values import TIMES, TextValue, TimeUnit
from deltaweave.identifiers import column

# Columns for the parts of an envelope, with names that no topic uses.
OPERATION, SOURCE = "_cdc_envelope_op", "_cdc_envelope_source"
_ENVELOPE, _ROW = "_cdc_envelope", "_cdc_envelope_row"
_BEFORE, _AFTER = "_cdc_envelope_before", "_cdc_envelope_after"
_SENT, _TYPES = "_cdc_envelope_sent", "_cdc_envelope_types"

_PARTS = "before map<string,string>, after map<string,string>, op string, source map<string,string>"
# What the Connect schema of an envelope says of `before` and `after`.
_SCHEMA = (
    "struct<fields: array<struct<field: string, fields: array<struct<"
    "field: string, name: string, parameters: map<string,string>>>>>>"
)


@dataclass(frozen=True)
class Messages:
    """The messages of a topic.

    Attributes:
        frame: One message in each row.
        value: Column of the envelope.
        offset: Column that orders messages, or None.
    """

    frame: DataFrame
    value: str
    offset: str | None

    @property
    def place(self) -> Column:
        """Where a message is, for errors."""
        named: list[tuple[str, str]] = [
            (name, name) for name in ("topic", "partition") if name in self.frame.columns
        ]
        named += [] if self.offset is None else [("offset", self.offset)]
        parts = [F.concat(F.lit(f"{w} "), column(n).cast("string")) for w, n in named]
        return F.concat_ws(", ", *parts) if parts else F.lit("an unknown offset")


@dataclass(frozen=True)
class ChangedRows:
    """The rows of envelopes.

    Attributes:
        frame: The messages' columns, `_cdc_envelope_op` and `_cdc_envelope_source`.
        columns: The table's columns.
        missing: For each column, whether the message lacks its value.
    """

    frame: DataFrame
    columns: Sequence[Column]
    missing: Mapping[str, Column]


def rows_of_json(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> ChangedRows:
    """Return the rows of envelopes that are JSON text."""
    rows = _parsed(messages)
    named = F.map_filter(_ROW, lambda name, _: name.isin(wanted.names))
    rows = rows.withColumn(_SENT, placeholder.without(named, messages.place))
    columns, missing = [], {}
    for field in wanted:
        missing[field.name] = ~F.coalesce(F.map_contains_key(_SENT, field.name), F.lit(False))
        said = F.col(_TYPES)[field.name]
        value = TextValue(
            field.name,
            F.col(_SENT)[field.name],
            messages.place,
            units[field.name],
            semantic=said["name"],
            scale=said["parameters"]["scale"].cast("int"),
        )
        columns.append(value.as_type(field.dataType).alias(field.name))
    return ChangedRows(rows, columns, missing)


def rows_of_structs(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> ChangedRows:
    """Return the rows of envelopes that a decoder made of Avro or Protobuf."""
    envelope = column(messages.value)
    rows = messages.frame.where(envelope.isNotNull()).select(
        *map(column, messages.frame.columns),
        envelope["op"].alias(OPERATION),
        envelope["source"].alias(SOURCE),
        F.when(envelope["op"] == "d", envelope["before"]).otherwise(envelope["after"]).alias(_ROW),
    )
    held = rows.schema[_ROW].dataType
    assert isinstance(held, StructType)
    texts = {}
    for field in wanted:
        if field.name in held.names:
            text = placeholder.text_of(F.col(_ROW)[field.name], held[field.name].dataType)
            texts[field.name] = F.lit("") if text is None else text
    by_name = F.create_map(*[part for name, text in texts.items() for part in (F.lit(name), text)])
    rows = rows.withColumn(_SENT, placeholder.without(by_name, messages.place))
    columns, missing = [], {}
    for field in wanted:
        is_sent = F.lit(False)
        value = F.lit(None)
        if field.name in texts:
            is_sent = F.map_contains_key(_SENT, field.name)
            value = F.when(is_sent, F.col(_ROW)[field.name])
            is_text = isinstance(held[field.name].dataType, (IntegralType, StringType))
            if is_text and isinstance(field.dataType, (DateType, *TIMES)):
                text, no_schema = value.cast("string"), F.lit(None).cast("string")
                value = TextValue(
                    field.name, text, messages.place, units[field.name], no_schema, F.lit(None)
                ).as_type(field.dataType)
        missing[field.name] = ~is_sent
        columns.append(value.cast(field.dataType).alias(field.name))
    return ChangedRows(rows, columns, missing)


def _parsed(messages: Messages) -> DataFrame:
    """The messages with the parts of their envelopes."""
    text = column(messages.value).cast("string")
    # Kafka Connect may send `schema` and `payload`.
    parsed = F.from_json(
        text, f"{_PARTS}, payload struct<{_PARTS}>, schema {_SCHEMA}", {"mode": "FAILFAST"}
    )
    rows = messages.frame.where(text.isNotNull()).withColumn(_ENVELOPE, parsed)
    parts = {"before": _BEFORE, "after": _AFTER, "op": OPERATION, "source": SOURCE}
    rows = rows.select(
        *map(column, messages.frame.columns),
        *[
            F.coalesce(column(_ENVELOPE, part), column(_ENVELOPE, "payload", part)).alias(name)
            for part, name in parts.items()
        ],
        _types_by_column().alias(_TYPES),
    )
    row = F.when(F.col(OPERATION) == "d", F.col(_BEFORE)).otherwise(F.col(_AFTER))
    return rows.withColumn(_ROW, row)


def _types_by_column() -> Column:
    """The Connect schemas of a row's columns, by name; null if the message has none."""
    of_rows = F.filter(
        column(_ENVELOPE, "schema", "fields"), lambda part: part["field"].isin("before", "after")
    )
    columns = F.transform(
        F.get(of_rows, F.lit(0))["fields"], lambda each: F.struct(each["field"], each)
    )
    return F.map_from_entries(columns)
