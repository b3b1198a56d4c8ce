"""MongoDB's envelopes, in which documents are texts of MongoDB's extended JSON.

`after` is the text of a whole document; a field that it lacks is null. An update may come without
`after`: `updateDescription` then has the text of the fields that were set, and the names of those
that were removed. Of a delete, only Kafka's key says which document it was: `{"id": "…"}`, with the
text of `_id`.

The forms are those of Debezium's `JsonSerialization` and `MongoDbCollectionSchema`, in all modes of
`json.serialization.mode`: `legacy`, `strict`, `extended` and `relaxed`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType

from deltaweave.changes.debezium.envelopes import (
    ENVELOPE,
    NO_JSON,
    OPERATION,
    ROW,
    SOURCE,
    TYPES,
    UNREAD,
    EnvelopeRows,
    Messages,
    Placeholder,
    rows_of_texts,
    without_other_operations,
    without_skipped,
)
from deltaweave.changes.debezium.values import MILLIS, TEXTS, TimeUnit, named_as, of_micros
from deltaweave.identifiers import column

_ID = "_id"
_FIELDS = "map<string,struct<text: string, is_time: boolean>>"
_DOCUMENT, _KEY = "_cdc_envelope_document", "_cdc_envelope_key"
_SET, _UNSET = "_cdc_envelope_set", "_cdc_envelope_removed"

_DOCUMENT_PARTS = (
    "before string, after string, op string, source map<string,string>, updateDescription struct<"
    "removedFields: array<string>, updatedFields: string, truncatedArrays: array<struct<"
    "field: string>>>"
)

# Possessive quantifiers, because others take a stack frame of Java for each character.
_TEXT = r'("[^"\\]*+(?:\\.[^"\\]*+)*+")'
# Values of extended JSON; the first group is the plain value. They do not match within a string of
# JSON, whose quotes have backslashes.
_EXTENDED = (
    rf'\{{\s*"\$(?:oid|numberDecimal|symbol|uuid)"\s*:\s*{_TEXT}\s*\}}',
    r'\{\s*"\$number(?:Long|Int|Double)"\s*:\s*"([-+.\deE]+)"\s*\}',
    rf'\{{\s*"\$numberDouble"\s*:\s*{_TEXT}\s*\}}',  # NaN and the infinities
    rf'\{{\s*"\$binary"\s*:\s*\{{\s*"base64"\s*:\s*{_TEXT}\s*,\s*"subType"\s*:\s*{_TEXT}\s*\}}\s*\}}',
    rf'\{{\s*"\$binary"\s*:\s*{_TEXT}\s*,\s*"\$type"\s*:\s*{_TEXT}\s*\}}',
    rf'\{{\s*"\$date"\s*:\s*{_TEXT}\s*\}}',
)
_MILLIS = r'\{\s*"\$date"\s*:\s*(-?\d+)\s*\}'
_DIGITS_OF_A_TIME = 15  # milliseconds up to the year 9999


def rows_of_documents(
    messages: Messages,
    wanted: StructType,
    placeholder: Placeholder,
    units: Mapping[str, TimeUnit],
) -> EnvelopeRows:
    """Return the rows of envelopes with documents, as JSON text or from a decoder."""
    rows = _parsed_documents(messages, wanted)
    is_key = {name: F.lit(name.lower() == _ID) for name in wanted.names}
    key = F.col(_KEY)[_ID]
    whole, changed = [], []
    for name in wanted.names:
        whole += [F.lit(name), F.try_element_at(_DOCUMENT, F.lit(name))]
        changed_value = F.try_element_at(_SET, F.lit(name))
        changed += [F.lit(name), F.when(is_key[name], key).otherwise(changed_value)]
    is_delete = F.col(OPERATION) == "d"
    is_set = F.map_filter(
        F.create_map(*changed),
        lambda name, _: (
            (F.lower(name) == _ID)
            | ~is_delete & (F.map_contains_key(_SET, name) | F.array_contains(_UNSET, name))
        ),
    )
    row = F.when(F.col(_DOCUMENT).isNotNull(), F.create_map(*whole)).otherwise(is_set)
    parameters = F.lit(None).cast("map<string,string>").alias("parameters")
    items = F.struct(F.lit(None).cast("string").alias("name"), parameters).alias("items")
    time_type = F.struct(F.lit(MILLIS).alias("name"), parameters, items)
    rows = rows.withColumn(ROW, row).withColumns(
        {
            TYPES: F.transform_values(ROW, lambda _, v: F.when(v["is_time"], time_type)),
            ROW: F.transform_values(ROW, lambda _, v: v["text"]),
        }
    )
    return rows_of_texts(messages, rows, wanted, placeholder, units, F.col(UNREAD))


def _parsed_documents(messages: Messages, wanted: StructType) -> DataFrame:
    """Parse the envelopes among the messages, with their documents."""
    envelope = _envelope(messages)
    rows = messages.frame.where(column(messages.value).isNotNull()).withColumn(ENVELOPE, envelope)
    rows = rows.withColumns({OPERATION: column(ENVELOPE, "op"), SOURCE: column(ENVELOPE, "source")})
    if isinstance(messages.frame.schema[messages.value].dataType, StructType):
        rows = without_other_operations(messages, rows)
    else:
        unread = F.when(column(ENVELOPE, UNREAD).isNotNull(), messages.with_place(F.lit(NO_JSON)))
        rows = without_skipped(messages, rows.withColumn(UNREAD, unread), wanted)
    described = column(ENVELOPE, "updateDescription")
    before, after = column(ENVELOPE, "before"), column(ENVELOPE, "after")
    document = F.when(F.col(OPERATION) == "d", before).otherwise(after)
    changed = _document_fields(described["updatedFields"])
    is_garbled = (document.isNotNull() & _document_fields(document).isNull()) | (
        described["updatedFields"].isNotNull() & changed.isNull()
    )
    removed = F.coalesce(described["removedFields"], F.array())
    rows = rows.withColumns(
        {
            _DOCUMENT: named_as(wanted, _document_fields(document), or_null=True),
            _SET: F.coalesce(changed, F.expr(f"CAST(map() AS {_FIELDS})")),
            _UNSET: removed.cast("array<string>"),
            _KEY: _key_document(messages),
        }
    )
    change_problem = _problem_of_change(wanted, described["truncatedArrays"])
    has_key = F.col(_DOCUMENT).isNotNull() | F.col(_KEY).isNotNull()
    is_change = F.col(OPERATION).isin("c", "u", "r", "d")
    problem = (
        F.when(is_garbled, F.lit(" has a document that is no JSON."))
        .when(document.isNotNull() & F.col(_DOCUMENT).isNull(), F.lit(_AMBIGUOUS))
        .when(F.col(_DOCUMENT).isNull() & change_problem.isNotNull(), change_problem)
        .when(is_change & ~has_key, F.lit(_LACKS_KEY))
    )
    unread = F.coalesce(UNREAD, messages.with_place(problem))
    changed = named_as(wanted, F.col(_SET), or_null=True)
    return rows.withColumns({_SET: changed, UNREAD: unread})


_AMBIGUOUS = (
    " has several fields whose names differ from that of a column in case alone: name the column "
    "in schema= as the document does."
)
_SEND_WHOLE = "set capture.mode=change_streams_update_full"
_GONE = (
    ". With that setting, the document was gone before the connector read it: put the update aside "
    "(rescues=True, and rescued= where it is applied)."
)
_LACKS_KEY = (
    " has neither a document nor a key: name the column with Kafka's key, key=, or let the "
    "connector send whole documents (capture.mode)."
)


def _problem_of_change(wanted: StructType, truncated: Column) -> Column:
    """Return what is wrong with a change that comes without its document; null if nothing is.

    Names are case-sensitive in MongoDB: a field in another case may not be the column's.
    """
    paths = F.flatten(
        F.array(
            F.filter(F.map_keys(_SET), lambda name: name.contains(".")),
            F.filter(_UNSET, lambda name: name.contains(".")),
            F.coalesce(
                F.transform(truncated, lambda each: each["field"]), F.array().cast("array<string>")
            ),
        )
    )
    roots = F.transform(paths, lambda path: F.lower(F.substring_index(path, ".", 1)))
    own = F.array(*[F.lit(name.lower()) for name in wanted.names])
    folded = F.filter(
        F.array_union(F.map_keys(_SET), F.col(_UNSET)),
        lambda name: F.array_contains(own, F.lower(name)) & ~name.isin(*wanted.names),
    )
    part = F.concat(
        F.lit(" changes a part of "),
        F.concat_ws(", ", F.array_intersect(roots, own)),
        F.lit(f", and lacks the rest: {_SEND_WHOLE}{_GONE}"),
    )
    other = F.concat(
        F.lit(" changes "),
        F.concat_ws(", ", folded),
        F.lit(
            f", which may be another field than the column's, in another case: {_SEND_WHOLE}, or "
        ),
        F.lit(f"name the column in schema= as the document does{_GONE}"),
    )
    return F.when(F.arrays_overlap(roots, own), part).when(F.size(folded) > 0, other)


def _envelope(messages: Messages) -> Column:
    """Return the parts that `_DOCUMENT_PARTS` names, and all fields of a decoded `source`."""
    value = column(messages.value)
    held = messages.frame.schema[messages.value].dataType
    if isinstance(held, StructType):
        return F.struct(
            *[_part(value, held, name, "string") for name in ("before", "after", "op")],
            value["source"].alias("source"),
            _description(value, held).alias("updateDescription"),
        )
    parsed = F.from_json(
        value.cast("string"),
        f"{_DOCUMENT_PARTS}, payload struct<{_DOCUMENT_PARTS}>, {UNREAD} string",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNREAD},
    )
    names = ("before", "after", "op", "source", "updateDescription")
    parts = [F.coalesce(parsed[n], parsed["payload"][n]).alias(n) for n in names]
    return F.struct(*parts, parsed[UNREAD].alias(UNREAD))


def _description(value: Column, held: StructType) -> Column:
    name = "updateDescription"
    described_type = held[name].dataType if name in held.names else StructType()
    assert isinstance(described_type, StructType)
    given, cut = F.lit(None), F.lit(None).cast("array<struct<field: string>>")
    if name in held.names:
        given = value[name]
    if "truncatedArrays" in described_type.names:
        fields = F.transform(
            given["truncatedArrays"], lambda each: F.struct(each["field"].alias("field"))
        )
        cut = fields.cast("array<struct<field: string>>")
    return F.struct(
        _part(given, described_type, "removedFields", "array<string>"),
        _part(given, described_type, "updatedFields", "string"),
        cut.alias("truncatedArrays"),
    )


def _with_times(text: Column) -> Column:
    """Write times in a text as `relaxed` sends those since 1970, instead of milliseconds."""
    # Times beyond the year 9999 stay as they are, and are refused where they are read.
    millis = F.array_distinct(F.regexp_extract_all(text, F.lit(_MILLIS), 1))
    possible = F.filter(millis, lambda n: F.length(n) <= _DIGITS_OF_A_TIME)
    return F.aggregate(possible, text, _with_time)


def _with_time(text: Column, millis: Column) -> Column:
    at = of_micros(millis.cast("bigint") * 1000, TimestampNTZType()).cast("string")
    form = F.concat(F.lit(r'\{\s*"\$date"\s*:\s*'), millis, F.lit(r"\s*\}"))
    return F.regexp_replace(
        text, form, F.concat(F.lit('"'), F.translate(at, " ", "T"), F.lit('Z"'))
    )


def _part(value: Column, held: StructType, name: str, data_type: str) -> Column:
    found = value[name] if name in held.names else F.lit(None)
    return found.cast(data_type).alias(name)


def _key_document(messages: Messages) -> Column:
    """Build the document of a deleted row from Kafka's key; null without a key."""
    if messages.key is None:
        return F.lit(None).cast(_FIELDS)
    key = column(messages.key)
    if isinstance(messages.frame.schema[messages.key].dataType, StructType):
        id_text = key["id"]
    else:
        text = key.cast("string")
        id_text = F.coalesce(
            F.get_json_object(text, "$.payload.id"), F.get_json_object(text, "$.id")
        )
    return _document_fields(F.concat(F.lit(f'{{"{_ID}":'), id_text, F.lit("}")))


def _document_fields(text: Column) -> Column:
    """Parse the fields of a document in extended JSON, as `_FIELDS`; null if it is none.

    Their texts are those of plain JSON. A field that is a time itself has its milliseconds.
    """
    for form in _EXTENDED:
        text = F.regexp_replace(text, form, "$1")
    in_millis = F.from_json(F.regexp_replace(text, _MILLIS, "$1"), TEXTS)
    in_times = F.from_json(_with_times(text), TEXTS)

    def field(millis: Column, other: Column) -> Column:
        # A string that looks like a time is the same in both.
        is_time = millis.rlike(r"^-?\d+$") & (millis != other)
        value = F.when(is_time, millis).otherwise(other)
        return F.struct(value.alias("text"), is_time.alias("is_time"))

    from_both = F.map_zip_with(in_millis, in_times, lambda _, millis, other: field(millis, other))
    from_one = F.transform_values(in_millis, lambda _, millis: field(millis, millis))
    return F.when(text.contains('"$date"'), from_both).otherwise(from_one)
