"""Debezium's envelopes, `{before, after, op, source, …}`, as columns.

`op` is `c`, `u` or `r` (a row of a snapshot) for the row in `after`, `d` for the row in `before`,
and `t` if the table was emptied. Tombstones, which have no value, and other messages are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from deltaweave.changes.conversions import once
from deltaweave.changes.debezium.placeholders import Placeholder
from deltaweave.changes.debezium.values import (
    ARRAY_OF_NUMBERS,
    CUT,
    DECIMAL,
    JSON_NUMBER,
    UNCLEAR,
    ReadValue,
    TextValue,
    TimeUnit,
    named_as,
)
from deltaweave.delta.jvm import json_text
from deltaweave.identifiers import column

# Columns for the parts of an envelope, with names that no topic uses.
OPERATION, SOURCE = "_cdc_envelope_op", "_cdc_envelope_source"
ROW, TYPES = "_cdc_envelope_row", "_cdc_envelope_types"
_BEFORE, _AFTER = "_cdc_envelope_before", "_cdc_envelope_after"
_ENVELOPE, SENT = "_cdc_envelope", "_cdc_envelope_sent"
_UNREAD, _READ = "_cdc_envelope_unread", "_cdc_envelope_read_"

_PARTS = "before map<string,string>, after map<string,string>, op string, source map<string,string>"
# Parts of messages about transactions, schemas and heartbeats, which have no rows.
_NO_COLUMNS = {
    "before",
    "after",
    "source",
    "op",
    "ts_ms",
    "ts_us",
    "ts_ns",
    "transaction",
    "status",
}
# What the Connect schema of an envelope says of `before` and `after`.
_SCHEMA = (
    "struct<fields: array<struct<field: string, fields: array<struct<"
    "field: string, name: string, parameters: map<string,string>, "
    "items: struct<name: string, parameters: map<string,string>>>>>>>"
)

_EXACT, _VARIANTS = "_cdc_envelope_exact", "map<string,variant>"
_NUMBER = r"^-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$"

# Of a number with an exponent, and of one that a double may not hold.
_FEW_DIGITS, _MANY_DIGITS = r"(?:\d\.?){0,15}+[eE]", r"(?:\d\.?){16}"

_SHOWN = 200


@dataclass(frozen=True)
class Messages:
    """The messages of a topic.

    Attributes:
        frame: One message in each row.
        value: Column of the envelope.
        offset: Column that orders messages, or None.
        key: Column of Kafka's key, or None.
    """

    frame: DataFrame
    value: str
    offset: str | None
    key: str | None = None

    @property
    def place(self) -> Column:
        """Where a message is, for errors."""
        named: list[tuple[str, str]] = [
            (name, name) for name in ("topic", "partition") if name in self.frame.columns
        ]
        named += [] if self.offset is None else [("offset", self.offset)]
        named += [("key", name) for name in self._key_names]
        parts = [
            F.concat(F.lit(f"{word} "), F.substring(column(name).cast("string"), 1, _SHOWN))
            for word, name in named
        ]
        return F.concat_ws(", ", *parts) if parts else F.lit("an unknown offset")

    @property
    def text(self) -> Column:
        """The envelope as text."""
        is_struct = isinstance(self.frame.schema[self.value].dataType, StructType)
        whole = json_text(column(self.value), with_nulls=True)
        return whole if is_struct else column(self.value).cast("string")

    @property
    def _key_names(self) -> list[str]:
        """The column of Kafka's key, if there is one that can be shown."""
        name, texts = self.key or "key", (StringType, BinaryType)
        return [
            f.name for f in self.frame.schema if f.name == name and isinstance(f.dataType, texts)
        ]


@dataclass(frozen=True)
class EnvelopeRows:
    """The rows of envelopes.

    Attributes:
        frame: The messages' columns, `_cdc_envelope_op` and `_cdc_envelope_source`.
        columns: The table's columns, by name.
        missing: For each column, whether the message lacks its value.
        unread: What is wrong with a message as a whole (string); null if nothing is.
        absent: The columns that a message does not have, also not as a placeholder (array of
            strings), or None if it need not have all.
    """

    frame: DataFrame
    columns: Mapping[str, ReadValue]
    missing: Mapping[str, Column]
    unread: Column
    absent: Column | None = None

    @property
    def problem(self) -> Column:
        """What is wrong with a message (string); null if nothing is."""
        of_columns = F.concat_ws(" ", *[read.problem for read in self.columns.values()])
        # Of the row that a delete has, only the key counts, which is null if it cannot be read.
        of_columns = F.when(F.col(OPERATION) != "d", of_columns)
        return F.coalesce(self.unread, F.nullif(of_columns, F.lit("")))


def rows_of_json(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> EnvelopeRows:
    """Return the rows of envelopes that are JSON text."""
    rows = _with_numbers(messages, _parsed(messages, wanted), wanted)
    read = rows_of_texts(messages, rows, wanted, placeholder, units, F.col(_UNREAD))
    names = F.array(*map(F.lit, wanted.names))
    return replace(read, absent=F.array_except(names, F.map_keys(ROW)))


def rows_of_texts(
    messages: Messages,
    rows: DataFrame,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
    unread: Column | None = None,
) -> EnvelopeRows:
    """Return rows whose values are texts: `_cdc_envelope_row` and `_cdc_envelope_types` by name."""
    rows = rows.withColumn(SENT, placeholder.without(F.col(ROW)))
    columns, missing, reads = {}, {}, {}
    for field in wanted:
        missing[field.name] = ~F.coalesce(F.map_contains_key(SENT, field.name), F.lit(False))
        type_of, text = F.col(TYPES)[field.name], F.col(SENT)[field.name]
        value = TextValue(
            field.name,
            text,
            messages.place,
            units[field.name],
            semantic=type_of["name"],
            scale=type_of["parameters"]["scale"].cast("int"),
            items=type_of["items"],
        )
        known = placeholder.problem_of(field.name, text, messages.place)
        read = value.as_type(field.dataType).unless(known)
        # A column, so that the plan, which is long, has it once.
        name = _READ + field.name
        reads[name] = F.struct(read.value.alias("value"), read.problem.alias("problem"))
        columns[field.name] = ReadValue(column(name, "value"), column(name, "problem"))
    rows = rows.withColumns(reads)
    nothing = F.lit(None).cast("string")
    return EnvelopeRows(rows, columns, missing, nothing if unread is None else unread)


def _parsed(messages: Messages, wanted: StructType) -> DataFrame:
    """Parse the envelopes among the messages, with their parts.

    Evaluating them is an error if a message is a flattened row instead.
    """
    text = column(messages.value).cast("string")
    # Kafka Connect may send `schema` and `payload`.
    parsed = F.from_json(
        text,
        f"{_PARTS}, payload struct<{_PARTS}>, schema {_SCHEMA}, {_UNREAD} string",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREAD},
    )
    is_unread = column(_ENVELOPE, _UNREAD).isNotNull()
    unread = F.concat(F.lit("the message at "), messages.place, F.lit(" is no JSON envelope."))
    rows = messages.frame.where(text.isNotNull()).withColumn(_ENVELOPE, parsed)
    parts = {"before": _BEFORE, "after": _AFTER, "op": OPERATION, "source": SOURCE}
    rows = rows.select(
        *map(column, messages.frame.columns),
        *[
            F.coalesce(column(_ENVELOPE, part), column(_ENVELOPE, "payload", part)).alias(name)
            for part, name in parts.items()
        ],
        named_as(wanted, _types_by_column()).alias(TYPES),
        F.when(is_unread, unread).alias(_UNREAD),
    )
    row = F.when(F.col(OPERATION) == "d", F.col(_BEFORE)).otherwise(F.col(_AFTER))
    is_row = is_envelope(text, wanted, messages.place)
    rows = rows.where(F.when(F.col(_UNREAD).isNotNull(), True).otherwise(is_row))
    return rows.withColumn(ROW, named_as(wanted, row))


def _with_numbers(messages: Messages, rows: DataFrame, wanted: StructType) -> DataFrame:
    """Return the rows with all digits of decimals that are numbers, and schemas that name these.

    The text 1234 may be a number or bytes, so the row's JSON decides whether it is in quotes. Spark
    reads a number as text by way of a double, and as a variant with its digits, unless it has an
    exponent or more than 38 digits. Then it counts only if the message has few digits of it.
    """

    def may_be_number(name: Column, type_of: Column) -> Column:
        text, of_items = F.try_element_at(ROW, name), type_of["items"]["name"]
        of_array = F.coalesce((of_items == DECIMAL) & text.rlike(ARRAY_OF_NUMBERS), F.lit(False))
        return of_array | ((type_of["name"] == DECIMAL) & text.rlike(_NUMBER))

    some = F.exists(F.map_entries(TYPES), lambda each: may_be_number(each["key"], each["value"]))
    text = F.when(some, column(messages.value).cast("string"))
    payload = F.from_json(text, f"payload struct<before {_VARIANTS}, after {_VARIANTS}>")["payload"]
    row = F.when(F.col(OPERATION) == "d", payload["before"]).otherwise(payload["after"])
    few, many = (
        F.create_map(*[F.lit(p) for name in wanted.names for p in (name, _number_of(name, digits))])
        for digits in (_FEW_DIGITS, _MANY_DIGITS)
    )

    def has_few_digits(name: Column) -> Column:
        sent = column(messages.value).cast("string")
        has_many = F.regexp_like(sent, F.try_element_at(many, name))
        return F.regexp_like(sent, F.try_element_at(few, name)) & ~has_many

    def known(values: Column) -> Column:
        def is_number(name: Column, type_of: Column) -> Column:
            kind = F.schema_of_variant(F.try_element_at(values, name))
            return may_be_number(name, type_of) & (kind != "STRING")

        def exact(name: Column, text: Column) -> Column:
            digits = F.try_element_at(values, name).cast("string")
            return F.when(is_number(name, F.try_element_at(TYPES, name)), digits).otherwise(text)

        def with_numbers(name: Column, type_of: Column) -> Column:
            variant = F.try_element_at(values, name)
            kind = F.schema_of_variant(variant)
            sent = (
                F.when(variant.isNull(), UNCLEAR)
                .when(kind == "STRING", DECIMAL)
                .when(kind.contains("DOUBLE") & ~has_few_digits(name), CUT)
                .otherwise(JSON_NUMBER)
            )
            named = F.when(type_of["name"] == DECIMAL, type_of.withField("name", sent))
            named = named.otherwise(type_of.withField("items.name", sent))
            return F.when(may_be_number(name, type_of), named).otherwise(type_of)

        texts = F.when(values.isNull(), F.col(ROW)).otherwise(F.transform_values(ROW, exact))
        return F.struct(F.transform_values(TYPES, with_numbers).alias(TYPES), texts.alias(ROW))

    read = rows.withColumn(_EXACT, once(named_as(wanted, row), known))
    return read.withColumns({name: column(_EXACT, name) for name in (TYPES, ROW)}).drop(_EXACT)


def _number_of(name: str, digits: str) -> str:
    """Build a pattern of JSON in which a number, or one of an array's, has this name."""
    # Without leading zeros, whose digits do not count.
    value = rf"(?:\[(?:[^\]\"]*,)?\s*)?-?[0.]*+{digits}"
    return rf"(?iu){re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*{value}"


def is_envelope(text: Column, wanted: StructType, place: Column) -> Column:
    """Return whether a message is an envelope; evaluating a flattened row is an error."""
    # A flattened row may have a column of the one name, but rarely of both.
    has_parts = F.col(OPERATION).isNotNull() & F.col(SOURCE).isNotNull()
    return F.when(has_parts, True).otherwise(
        ~_is_flattened(text, wanted) | _refused_as_flattened(place)
    )


def _is_flattened(text: Column, wanted: StructType) -> Column:
    """Return whether a message that is no envelope has the table's columns or marks a change."""
    whole = F.coalesce(F.get_json_object(text, "$.payload"), text)
    keys = F.transform(F.json_object_keys(whole), F.lower)
    columns = {name.lower() for name in wanted.names} - _NO_COLUMNS
    field_names = [F.lit(name) for name in sorted({*columns, "__op", "__deleted"})]
    is_of_transaction = F.array_contains(keys, "event_count")
    return F.coalesce(
        F.arrays_overlap(keys, F.array(*field_names)) & ~is_of_transaction, F.lit(False)
    )


def _refused_as_flattened(place: Column) -> Column:
    problem = F.concat(
        F.lit("the message at "),
        place,
        F.lit(
            " is no envelope but a flattened row (ExtractNewRecordState), which lacks the position "
            "in the log: remove that transform from the connector."
        ),
    )
    return F.raise_error(problem).cast("boolean")


def _types_by_column() -> Column:
    """Return the Connect schemas of a row's columns, by name; null if the message has none."""
    of_rows = F.filter(
        column(_ENVELOPE, "schema", "fields"), lambda part: part["field"].isin("before", "after")
    )
    columns = F.transform(
        F.get(of_rows, F.lit(0))["fields"], lambda each: F.struct(each["field"], each)
    )
    return F.map_from_entries(columns)
