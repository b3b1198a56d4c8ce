"""Debezium's envelopes, `{before, after, op, source, …}`, as columns.

`op` is `c`, `u` or `r` (a row of a snapshot) for the row in `after`, `d` for the row in `before`,
and `t` if the table was emptied. Messages that hold no change are skipped: tombstones, which have
no value, what a program wrote into the log (`m`), heartbeats, and messages about transactions and
schemas. All others are problems.

A database's log may lack large values that did not change, e.g. those that PostgreSQL stores apart
from their row (TOAST). Debezium then sends a placeholder, in a form that the column's type decides:

- the text itself, or its bytes; in JSON, bytes are in base64, base64url or hexadecimal digits
- a UUID made of the text (version 3)
- an array of the text, of its bytes or of that UUID; an array of numbers, one for each byte
- for hstore, a map from the text to the text
- for PostGIS, a struct with the text's bytes as `wkb`

A nested value that contains the placeholder in another form has no values that could be trusted.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import md5

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    VariantType,
)

from deltaweave.changes.conversions import once
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
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default placeholder."""

_SHOWN_OF_VALUE = 100
_LEAST_OF_CUT_TEXT = len("__debezium_")
_NESTED_OR_VARIANT = (ArrayType, MapType, StructType, VariantType)
_SHORT_ESCAPES = dict(zip('"\\/\b\f\n\r\t', '"\\/bfnrt', strict=True))


@dataclass(frozen=True)
class Placeholder:
    """Debezium's placeholder for unavailable values, in all its forms.

    Attributes:
        code: The bytes of the placeholder.
    """

    code: bytes

    @classmethod
    def of(cls, unavailable: str) -> Placeholder:
        """Return the placeholder that a connector's `unavailable.value.placeholder` makes.

        Raises:
            StatementError: The placeholder is empty, or begins with `hex:` without hexadecimal
                digits after it.
        """
        try:
            is_hex = unavailable.startswith("hex:")
            code = bytes.fromhex(unavailable[4:]) if is_hex else unavailable.encode()
        except ValueError:
            code = b""
        if not code:
            raise StatementError(
                f"unavailable is {unavailable!r}, which is not a placeholder.",
                operation="reading changes",
                hint="Give the connector's unavailable.value.placeholder.",
            )
        return cls(code)

    def without(self, texts: Column) -> Column:
        """Return the entries of a map whose values are not the placeholder.

        Args:
            texts: The values of a row by their columns' names, as `text_of` or JSON has them.
        """

        def is_kept(_: Column, value: Column) -> Column:
            return (
                F.when(value.isNull(), True)
                .when(self._is_token(value), False)
                .when(_is_nested(value) & value.rlike(self._nested), False)
                .otherwise(True)
            )

        return F.map_filter(texts, is_kept)

    def problem_of(self, name: str, value: Column, location: Column) -> Column:
        """Return what is wrong with a value that contains the placeholder in another form.

        Args:
            name: The column of the value.
            value: The value's text; null, or not the placeholder itself.
            location: Where the message is.

        Returns:
            A string, or null if the value does not contain it.
        """
        problem = F.concat(
            F.lit(
                f"the value of column {name} contains Debezium's placeholder for values that it "
                "does not have, in a form that no connector is known to send: "
            ),
            F.substring(value, 1, _SHOWN_OF_VALUE),
            F.lit(" (the message at "),
            location,
            F.lit(")."),
        )
        contains = value.rlike(self._contained) & F.try_parse_json(value).isNotNull()
        return F.when(_is_nested(value) & contains, problem)

    def text_of(self, value: Column, data_type: DataType) -> Column | None:
        """Return the text by which `without` recognizes a value; None if it cannot be one."""
        if isinstance(data_type, StringType):
            return value
        if isinstance(data_type, BinaryType):
            return F.when(value.isin(self.code, self._uuid.bytes), self._text)
        if isinstance(data_type, ArrayType) and isinstance(data_type.elementType, NumericType):
            return F.when(F.size(value) == len(self.code), json_text(value))
        return json_text(value) if isinstance(data_type, _NESTED_OR_VARIANT) else None

    @cached_property
    def _text(self) -> str:
        return self.code.decode(errors="replace")

    @cached_property
    def _uuid(self) -> uuid.UUID:
        """The UUID that Java's `UUID.nameUUIDFromBytes` makes of the bytes."""
        return uuid.UUID(bytes=md5(self.code, usedforsecurity=False).digest(), version=3)

    @cached_property
    def _encoded(self) -> list[str]:
        """The bytes as text."""
        texts = []
        for code in (self.code, self._uuid.bytes):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                padded = encode(code).decode()
                texts += [padded, padded.rstrip("=")]
        return list(dict.fromkeys(texts))

    @cached_property
    def _in_any_case(self) -> list[str]:
        return [self.code.hex(), self._uuid.hex, str(self._uuid)]

    @cached_property
    def _cut(self) -> list[str]:
        """The beginnings of the default text, as columns have them that the connector truncates.

        Another text may begin as a value does.
        """
        if self._text != UNAVAILABLE:
            return []
        return [UNAVAILABLE[:at] for at in range(_LEAST_OF_CUT_TEXT, len(UNAVAILABLE))]

    def _is_token(self, value: Column) -> Column:
        tokens = [self._text, *self._encoded, *self._in_any_case]
        longest = max(len(token.encode()) for token in tokens)
        any_case = F.lower(value).isin(self._in_any_case)
        is_token = value.isin(self._text, *self._cut, *self._encoded) | any_case
        return (F.octet_length(value) <= longest) & is_token

    @cached_property
    def _strings(self) -> str:
        """A pattern of the JSON strings that are the placeholder."""
        exact = map(_escaped, (self._text, *self._encoded))
        return f'"(?:{_any(exact)}|(?i:{_any(map(_escaped, self._in_any_case))}))"'

    @cached_property
    def _numbers(self) -> str:
        """A pattern of the JSON array with a number for each byte."""
        # Java's bytes have a sign; a decoder may have removed it.
        codes = [f"(?:{code}|{code - 256})" if code > 127 else str(code) for code in self.code]
        each = [rf'\s*"?{code}(?:\.0+)?"?\s*' for code in codes]
        return r"\[" + ",".join(each) + r"\]"

    @cached_property
    def _nested(self) -> str:
        """A pattern of the JSON arrays and objects that are the placeholder."""
        text = f'"{_escaped(self._text)}"'
        srid = r'"srid"\s*:\s*(?:null|-?\d+)'
        wkb = rf'"wkb"\s*:\s*{self._strings}'
        geometry = rf"(?:{srid}\s*,\s*)?{wkb}(?:\s*,\s*{srid})?"
        forms = (
            rf"\[\s*{self._strings}\s*\]",
            self._numbers,
            rf"\{{\s*(?:{text}\s*:\s*{text}|{geometry})\s*\}}",
        )
        return rf"\A\s*(?:{_any(forms)})\s*\z"

    @cached_property
    def _contained(self) -> str:
        """A pattern of JSON in which the placeholder is."""
        # Spark's JSON parser ignores text after a value.
        nested = rf"[\[{{](?s:.*)(?:{self._strings}|{self._numbers})(?s:.*)[\]}}]"
        return rf"\A\s*(?:{self._strings}|{nested})\s*\z"


def _is_nested(text: Column) -> Column:
    """Return whether a text may be JSON that holds strings."""
    return F.substring(F.ltrim(text, F.lit(" \t\r\n")), 1, 1).isin("[", "{", '"')


def _any(patterns: Iterable[str]) -> str:
    return "|".join(patterns)


def _escaped(text: str) -> str:
    """Build a pattern of the ways in which JSON may write a text."""
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character == "_" or (character.isascii() and character.isalnum()):
        return character
    code_units = character.encode("utf-16-be").hex()
    units = [code_units[at : at + 4] for at in range(0, len(code_units), 4)]
    ways = [re.escape("".join(rf"\u{unit}" for unit in units))]
    if character in _SHORT_ESCAPES:
        ways.append(re.escape("\\" + _SHORT_ESCAPES[character]))
    if character not in '"\\':
        ways.append(re.escape(character))
    return f"(?:(?i:{ways[0]})|{_any(ways[1:])})" if len(ways) > 1 else f"(?i:{ways[0]})"


# Columns for the parts of an envelope, with names that no topic uses.
OPERATION, SOURCE = "_cdc_envelope_op", "_cdc_envelope_source"
ROW, TYPES = "_cdc_envelope_row", "_cdc_envelope_types"
_ROW_BEFORE, _ROW_AFTER = "_cdc_envelope_before", "_cdc_envelope_after"
ENVELOPE, SENT = "_cdc_envelope", "_cdc_envelope_sent"
UNREAD, _READ_COLUMN = "_cdc_envelope_unread", "_cdc_envelope_read_"

_ENVELOPE_PARTS = (
    "before map<string,string>, after map<string,string>, op string, source map<string,string>"
)
# Parts of messages about transactions, schemas and heartbeats, which have no rows.
_PARTS_WITHOUT_ROW = {
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
_OPERATIONS, _OF_PROGRAM = ("c", "u", "r", "d", "t"), "m"
# Fields of messages about transactions, which have the first two, and of heartbeats.
_OF_TRANSACTIONS = ("status", "id", "event_count")
_OF_HEARTBEATS = ("ts_ms", "ts_us", "ts_ns")
# The part of an envelope's Connect schema that describes `before` and `after`.
_SCHEMA = (
    "struct<fields: array<struct<field: string, fields: array<struct<"
    "field: string, name: string, parameters: map<string,string>, "
    "items: struct<name: string, parameters: map<string,string>>>>>>>"
)

_EXACT_ROW, _VARIANTS = "_cdc_envelope_exact", "map<string,variant>"
_JSON_NUMBER_FORM = r"^-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?$"

# A number with few digits and an exponent, and one with more digits than a double holds.
_FEW_DIGITS, _MANY_DIGITS = r"(?:\d\.?){0,15}+[eE]", r"(?:\d\.?){16}"

_SHOWN_OF_PLACE = 200
NO_JSON = " is no JSON envelope."


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
    def location(self) -> Column:
        """Where a message is, for errors."""
        named: list[tuple[str, str]] = [
            (name, name) for name in ("topic", "partition") if name in self.frame.columns
        ]
        named += [] if self.offset is None else [("offset", self.offset)]
        named += [("key", name) for name in self._key_names]
        parts = [
            F.concat(
                F.lit(f"{word} "), F.substring(column(name).cast("string"), 1, _SHOWN_OF_PLACE)
            )
            for word, name in named
        ]
        return F.concat_ws(", ", *parts) if parts else F.lit("an unknown offset")

    def with_place(self, problem: Column) -> Column:
        """Return what is wrong with a message as a whole, with its place; null if nothing is."""
        return F.concat(F.lit("the message at "), self.location, problem)

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
        cut: For each column, whether its value is a time that lost digits below the microsecond.
        absent: The columns that a message does not have, also not as a placeholder (array of
            strings), or None if it need not have all.
    """

    frame: DataFrame
    columns: Mapping[str, ReadValue]
    missing: Mapping[str, Column]
    unread: Column
    cut: Mapping[str, Column]
    absent: Column | None = None

    @property
    def problem(self) -> Column:
        """What is wrong with a message (string); null if nothing is."""
        column_problems = F.concat_ws(" ", *[read.problem for read in self.columns.values()])
        # In a delete's row, only the key counts, and a key that cannot be read is null.
        column_problems = F.when(F.col(OPERATION) != "d", column_problems)
        return F.coalesce(self.unread, F.nullif(column_problems, F.lit("")))


def rows_of_json(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> EnvelopeRows:
    """Return the rows of envelopes that are JSON text."""
    rows = _with_numbers(messages, _parsed_envelopes(messages, wanted), wanted)
    read = rows_of_texts(messages, rows, wanted, placeholder, units, F.col(UNREAD))
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
    columns, missing, cut, reads = {}, {}, {}, {}
    for field in wanted:
        missing[field.name] = ~F.coalesce(F.map_contains_key(SENT, field.name), F.lit(False))
        type_of, text = F.col(TYPES)[field.name], F.col(SENT)[field.name]
        value = TextValue(
            field.name,
            text,
            messages.location,
            units[field.name],
            semantic=type_of["name"],
            scale=type_of["parameters"]["scale"].cast("int"),
            items=type_of["items"],
        )
        cut[field.name] = value.is_cut(field.dataType)
        known = placeholder.problem_of(field.name, text, messages.location)
        read = value.as_type(field.dataType).unless(known)
        # As a column, so that the long plan has it once.
        name = _READ_COLUMN + field.name
        reads[name] = F.struct(read.value.alias("value"), read.problem.alias("problem"))
        columns[field.name] = ReadValue(column(name, "value"), column(name, "problem"))
    rows = rows.withColumns(reads)
    nothing = F.lit(None).cast("string")
    return EnvelopeRows(rows, columns, missing, nothing if unread is None else unread, cut)


def _parsed_envelopes(messages: Messages, wanted: StructType) -> DataFrame:
    """Parse the envelopes among the messages, with their parts.

    Evaluating them is an error if a message is a flattened row instead.
    """
    text = column(messages.value).cast("string")
    # Kafka Connect may send `schema` and `payload`.
    parsed = F.from_json(
        text,
        f"{_ENVELOPE_PARTS}, payload struct<{_ENVELOPE_PARTS}>, schema {_SCHEMA}, {UNREAD} string",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREAD},
    )
    is_unread = column(ENVELOPE, UNREAD).isNotNull()
    unread = messages.with_place(F.lit(NO_JSON))
    rows = messages.frame.where(text.isNotNull()).withColumn(ENVELOPE, parsed)
    parts = {"before": _ROW_BEFORE, "after": _ROW_AFTER, "op": OPERATION, "source": SOURCE}
    rows = rows.select(
        *map(column, messages.frame.columns),
        *[
            F.coalesce(column(ENVELOPE, part), column(ENVELOPE, "payload", part)).alias(name)
            for part, name in parts.items()
        ],
        named_as(wanted, _types_by_column()).alias(TYPES),
        F.when(is_unread, unread).alias(UNREAD),
    )
    row = F.when(F.col(OPERATION) == "d", F.col(_ROW_BEFORE)).otherwise(F.col(_ROW_AFTER))
    return without_skipped(messages, rows, wanted).withColumn(ROW, named_as(wanted, row))


def _with_numbers(messages: Messages, rows: DataFrame, wanted: StructType) -> DataFrame:
    """Return the rows with all digits of decimals that are numbers, and schemas that name these.

    The text 1234 may be a number or bytes, so the row's JSON decides whether it is in quotes. Spark
    reads a number as text by way of a double, and as a variant with its digits, unless it has an
    exponent or more than 38 digits. Then it counts only if the message has few digits of it.
    """

    def may_be_number(name: Column, type_of: Column) -> Column:
        text, item_type = F.try_element_at(ROW, name), type_of["items"]["name"]
        is_array = F.coalesce((item_type == DECIMAL) & text.rlike(ARRAY_OF_NUMBERS), F.lit(False))
        return is_array | ((type_of["name"] == DECIMAL) & text.rlike(_JSON_NUMBER_FORM))

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

    read = rows.withColumn(_EXACT_ROW, once(named_as(wanted, row), known))
    return read.withColumns({name: column(_EXACT_ROW, name) for name in (TYPES, ROW)}).drop(
        _EXACT_ROW
    )


def _number_of(name: str, digits: str) -> str:
    """Build a pattern of JSON in which a number, or one of an array's, has this name."""
    # Leading zeros are skipped, because they do not count as digits.
    value = rf"(?:\[(?:[^\]\"]*,)?\s*)?-?[0.]*+{digits}"
    return rf"(?iu){re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*{value}"


def without_skipped(messages: Messages, rows: DataFrame, wanted: StructType) -> DataFrame:
    """Leave out messages in JSON that hold no change, and say which others are no envelopes.

    Evaluating them is an error if a message is a flattened row.
    """
    text = column(messages.value).cast("string")
    whole = F.coalesce(F.get_json_object(text, "$.payload"), text)
    # A flattened row may have a column with one of these names, but rarely with both.
    has_parts = F.col(OPERATION).isNotNull() & F.col(SOURCE).isNotNull()
    is_skipped = (
        F.when(F.trim(text) == "null", True)  # a tombstone of a JSON serializer
        .when(F.col(UNREAD).isNotNull(), False)
        .when(has_parts, _is_of_program())
        .when(_is_about_others(text, whole), True)
        .when(_is_flattened(whole, wanted), _refused_as_flattened(messages))
        .otherwise(_is_of_program())
    )
    fields = F.substring(F.concat_ws(", ", F.json_object_keys(whole)), 1, _SHOWN_OF_PLACE)
    named = F.coalesce(F.nullif(fields, F.lit("")), F.lit("none"))
    other = F.concat(F.lit(" is not an envelope; its fields: "), named, F.lit("."))
    of_operation = _unknown_operation()
    problem = F.when(has_parts, of_operation).when(of_operation.isNotNull(), other)
    unread = F.coalesce(UNREAD, messages.with_place(problem))
    return rows.where(~F.coalesce(is_skipped, F.lit(False))).withColumn(UNREAD, unread)


def without_other_operations(messages: Messages, rows: DataFrame) -> DataFrame:
    """Leave out decoded messages that hold no change, and say which others are no envelopes."""
    unread = messages.with_place(_unknown_operation())
    return rows.where(~_is_of_program()).withColumn(UNREAD, unread)


def _is_of_program() -> Column:
    return F.coalesce(F.col(OPERATION) == _OF_PROGRAM, F.lit(False))


def _unknown_operation() -> Column:
    """Return what is wrong with a message's operation (string); null if nothing is."""
    known = (*_OPERATIONS, _OF_PROGRAM)
    other = F.concat(
        F.lit(" has the operation "),
        F.substring(OPERATION, 1, _SHOWN_OF_PLACE),
        F.lit(f", which is none of {', '.join(known)}."),
    )
    problem = F.coalesce(other, F.lit(" has no operation, so it is not an envelope."))
    return F.when(~F.coalesce(F.col(OPERATION).isin(*known), F.lit(False)), problem)


def _is_about_others(text: Column, whole: Column) -> Column:
    """Return whether a message is a tombstone, or about heartbeats, transactions or schemas."""
    keys = F.json_object_keys(whole)

    def has(*names: str) -> Column:
        return F.size(F.array_intersect(keys, F.array(*map(F.lit, names)))) == len(names)

    def has_only(*names: str) -> Column:
        return F.size(F.array_except(keys, F.array(*map(F.lit, names)))) == 0

    is_null = F.get_json_object(text, "$.payload").isNull() & has("payload")
    is_tombstone = is_null & has_only("schema", "payload")
    is_heartbeat = has("ts_ms") & has_only(*_OF_HEARTBEATS)
    is_of_transaction = F.get_json_object(whole, "$.status").isin("BEGIN", "END") & has(
        *_OF_TRANSACTIONS
    )
    is_of_schema = (
        has("databaseName") & (has("ddl") | has("tableChanges")) & (has("source") | has("position"))
    )
    is_other = is_tombstone | is_heartbeat | is_of_transaction | is_of_schema
    return F.coalesce(is_other, F.lit(False))


def _is_flattened(whole: Column, wanted: StructType) -> Column:
    """Return whether a message without an envelope has the table's columns or marks a change."""
    keys = F.transform(F.json_object_keys(whole), F.lower)
    columns = {name.lower() for name in wanted.names} - _PARTS_WITHOUT_ROW
    field_names = [F.lit(name) for name in sorted({*columns, "__op", "__deleted"})]
    return F.coalesce(F.arrays_overlap(keys, F.array(*field_names)), F.lit(False))


def _refused_as_flattened(messages: Messages) -> Column:
    problem = F.lit(
        " is not an envelope but a flattened row (ExtractNewRecordState), which lacks the "
        "position in the log: remove that transform from the connector."
    )
    return F.raise_error(messages.with_place(problem)).cast("boolean")


def _types_by_column() -> Column:
    """Return the Connect schemas of a row's columns, by name; null if the message has none."""
    row_schemas = F.filter(
        column(ENVELOPE, "schema", "fields"), lambda part: part["field"].isin("before", "after")
    )
    columns = F.transform(
        F.get(row_schemas, F.lit(0))["fields"], lambda each: F.struct(each["field"], each)
    )
    return F.map_from_entries(columns)
