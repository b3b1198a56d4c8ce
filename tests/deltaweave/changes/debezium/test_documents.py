"""MongoDB's envelopes, in every form that its connector gives documents and keys.

Nothing here is recorded, because the connector needs a MongoDB. The envelopes are those of the
documentation ("Debezium connector for MongoDB", data change events), with the JSON that Debezium's
`JsonSerialization` makes in each mode.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import FROM_DEBEZIUM, Table, debezium_changes
from deltaweave.errors import SourceError

OID = '{"$oid": "596e275826f08b2730779e1f"}'
SCHEMA = "_id STRING, name STRING, visits BIGINT"


def source(second: int) -> dict[str, Any]:
    return {"ts_ms": 1_558_965_508_000 + 1000 * second, "ord": 1, "collection": "c"}


def envelope(op: str, second: int, **parts: Any) -> dict[str, Any]:
    parts = {"before": None, "after": None, "updateDescription": None, **parts}
    return {**parts, "source": source(second), "op": op, "ts_ms": 1, "transaction": None}


def topic(spark: SparkSession, *sent: tuple[str | None, dict[str, Any] | None]) -> DataFrame:
    """A topic of keys (the text of `_id`) and envelopes."""
    rows = []
    for n, (of_id, value) in enumerate(sent):
        key = None if of_id is None else json.dumps({"id": of_id})
        rows.append((key, None if value is None else json.dumps(value), n))
    return spark.createDataFrame(rows, "key STRING, value STRING, offset BIGINT")


def read(kafka: DataFrame, schema: str = SCHEMA, **arguments: Any) -> DataFrame:
    return debezium_changes(kafka, schema=schema, connector="mongodb", key="key", **arguments)


@pytest.mark.minutes
def test_documents_are_inserted_updated_and_deleted(spark: SparkSession, tmp_path: Path) -> None:
    other, third = '{"$oid": "596e275826f08b2730779e20"}', "1004"

    def document(of_id: str, **values: Any) -> str:
        return json.dumps({"_id": json.loads(of_id), **values})

    updated = {"removedFields": None, "updatedFields": '{"name": "Mary Ann"}'}
    removed = {"removedFields": ["visits"], "updatedFields": "{}", "truncatedArrays": None}
    visited = {"updatedFields": '{"visits": {"$numberLong": "9"}, "address.city": "x"}'}
    kafka = topic(
        spark,
        (OID, envelope("r", 0, after=document(OID, name="Anne", visits={"$numberLong": "7"}))),
        (other, envelope("c", 1, after=document(other, NAME="Bob", extra=1))),
        (third, envelope("c", 2, after=document(third, name="Carl", visits=3))),
        # Without the whole document, by the key alone.
        (OID, envelope("u", 3, updateDescription=updated)),
        (third, envelope("u", 4, updateDescription=removed)),
        (OID, envelope("u", 5, updateDescription=visited)),
        # With the whole document, which has lost a field.
        (other, envelope("u", 6, after=document(other, visits=5), updateDescription=updated)),
        ('"text"', envelope("c", 7, after='{"_id": "text", "name": "{\\"$oid\\": \\"x\\"}"}')),
        ('"gone"', envelope("c", 8, after='{"_id": "gone"}')),
        ('"gone"', envelope("d", 9)),
        ('"gone"', None),  # the tombstone that follows a delete
    )
    path = str(tmp_path / "t")
    deltaweave.apply_changes(spark, path, read(kafka), keys=["_id"], **FROM_DEBEZIUM)
    found = Table(spark, path).read().select("_id", "name", "visits").collect()
    assert sorted(map(tuple, found)) == [
        ("1004", "Carl", None),
        ("596e275826f08b2730779e1f", "Mary Ann", 9),
        ("596e275826f08b2730779e20", None, 5),
        ("text", '{"$oid": "x"}', None),
    ]


# By mode: a long, an int, a double, a decimal, bytes, two times, and values within others.
MODES = {
    "strict": """{"_id": {"$oid": "a1"}, "l": {"$numberLong": "9007199254740993"}, "i": 7,
        "d": 0.5, "m": {"$numberDecimal": "12.50"}, "b": {"$binary": "AQI=", "$type": "00"},
        "t": {"$date": 1751371200001}, "o": {"$date": -1}, "list": [{"$numberLong": "1"}, 2],
        "deep": {"x": {"$oid": "b2"}, "y": {"$numberDecimal": "1.25"},
        "z": {"$date": 1751371200001}, "past": [{"$date": -1}]}}""",
    "extended": """{"_id": {"$oid": "a1"}, "l": {"$numberLong": "9007199254740993"},
        "i": {"$numberInt": "7"}, "d": {"$numberDouble": "0.5"},
        "m": {"$numberDecimal": "12.50"}, "b": {"$binary": {"base64": "AQI=", "subType": "00"}},
        "t": {"$date": {"$numberLong": "1751371200001"}}, "o": {"$date": {"$numberLong": "-1"}},
        "list": [{"$numberLong": "1"}, {"$numberInt": "2"}],
        "deep": {"x": {"$oid": "b2"}, "y": {"$numberDecimal": "1.25"},
        "z": {"$date": {"$numberLong": "1751371200001"}},
        "past": [{"$date": {"$numberLong": "-1"}}]}}""",
    "relaxed": """{"_id": {"$oid": "a1"}, "l": 9007199254740993, "i": 7, "d": 0.5,
        "m": {"$numberDecimal": "12.50"}, "b": {"$binary": {"base64": "AQI=", "subType": "00"}},
        "t": {"$date": "2025-07-01T12:00:00.001Z"}, "o": {"$date": {"$numberLong": "-1"}},
        "list": [1, 2], "deep": {"x": {"$oid": "b2"}, "y": {"$numberDecimal": "1.25"},
        "z": {"$date": "2025-07-01T12:00:00.001Z"},
        "past": [{"$date": {"$numberLong": "-1"}}]}}""",
}


@pytest.mark.minutes
def test_values_are_the_same_in_every_mode(spark: SparkSession) -> None:
    schema = (
        "_id STRING, l BIGINT, i INT, d DOUBLE, m DECIMAL(9,2), b BINARY, t TIMESTAMP, "
        "o TIMESTAMP, list ARRAY<INT>, "
        "deep STRUCT<x: STRING, y: DECIMAL(9,2), z: TIMESTAMP, past: ARRAY<TIMESTAMP>>"
    )
    sent = [(None, envelope("c", n, after=text)) for n, text in enumerate(MODES.values())]
    rows = read(topic(spark, *sent), schema).selectExpr(
        *["_id", "l", "i", "d", "m", "b", "unix_millis(t)", "unix_millis(o)", "list"],
        *["deep.x", "deep.y", "unix_millis(deep.z)", "unix_millis(deep.past[0])"],
    )
    expected = ("a1", 2**53 + 1, 7, 0.5, Decimal("12.50"), b"\1\2", 1_751_371_200_001, -1)
    found = [tuple(row) for row in rows.collect()]
    assert found == [(*expected, [1, 2], "b2", Decimal("1.25"), 1_751_371_200_001, -1)] * 3
    text = (
        r'{"_id": 1, "s": "{\"$date\": 5}", "d": [{"$date": 9999999999999999}], "t": {"$date": 5}}'
    )
    message = topic(spark, (None, envelope("c", 0, after=text)))
    strings = topic(
        spark,
        (None, envelope("c", 0, after=text)),
        (None, envelope("c", 1, after=r'{"_id": 2, "s": "{\"$date\": 5}", "t": "5"}')),
    )
    texts = read(strings, "_id INT, s STRING, t STRING").select("s", "t").collect()
    assert texts == [('{"$date": 5}', "5")] * 2
    with pytest.raises(Exception, match="of column d is no ARRAY<TIMESTAMP>"):
        read(message, "_id INT, d ARRAY<TIMESTAMP>").collect()
    doubles = '{"_id": 1, "x": {"$numberDouble": "NaN"}, "y": {"$numberDouble": "-Infinity"}}'
    [row] = read(
        topic(spark, (None, envelope("c", 0, after=doubles))), "_id INT, x DOUBLE, y DOUBLE"
    ).collect()
    assert (str(row.x), row.y) == ("nan", float("-inf"))


@pytest.mark.minutes
def test_a_long_value_takes_no_stack(spark: SparkSession) -> None:
    data = b"\xfb\xff" * 100_000
    of_binary = {"base64": base64.b64encode(data).decode(), "subType": "00"}
    document = json.dumps({"_id": 1, "b": {"$binary": of_binary}, "s": {"$symbol": '\\"' * 50_000}})
    [row] = read(
        topic(spark, (None, envelope("c", 0, after=document))), "_id INT, b BINARY, s STRING"
    ).collect()
    assert (bytes(row.b), row.s) == (data, '\\"' * 50_000)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            OID,
            envelope("u", 1, updateDescription={"updatedFields": '{"name.first": "x"}'}),
            "offset 0, key .+ changes a part of name, and lacks the rest",
        ),
        (
            OID,
            envelope(
                "u",
                1,
                updateDescription={"truncatedArrays": [{"field": "name", "size": 1}]},
            ),
            "changes a part of name",
        ),
        (None, envelope("d", 1), "offset 0 has neither a document nor a key"),
        (OID, {"_id": 1, "name": "x"}, "is not an envelope but a flattened row"),
    ],
    ids=["a field of a field", "an array cut off", "without a key", "flattened"],
)
def test_what_has_no_whole_values_is_refused(
    spark: SparkSession, key: str | None, value: dict[str, Any], problem: str
) -> None:
    rows = read(topic(spark, (key, value)))
    with pytest.raises(Exception, match=problem):
        rows.collect()


@pytest.mark.minutes
def test_decoded_envelopes_and_keys_are_read(spark: SparkSession) -> None:
    parts = (
        "before: STRING, after: STRING, op: STRING, source: STRUCT<ts_ms: BIGINT, ord: INT>, "
        "updateDescription: STRUCT<removedFields: ARRAY<STRING>, updatedFields: STRING>"
    )
    frame = spark.createDataFrame(
        [
            ((OID,), (None, f'{{"_id": {OID}, "name": "a"}}', "c", (1, 1), None), 0),
            ((OID,), (None, None, "u", (2, 1), (None, '{"visits": 4}')), 1),
            ((OID,), (None, None, "d", (3, 1), None), 2),
        ],
        f"key STRUCT<id: STRING>, value STRUCT<{parts}>, offset BIGINT",
    )
    columns = ["_id", "name", "visits", "_cdc_op", "_cdc_present", "_cdc_position.changed_at"]
    found = read(frame).orderBy("_cdc_position").select(*columns).collect()
    assert [tuple(row)[1:5] for row in found] == [
        ("a", None, "c", None),
        (None, 4, "u", ["_id", "visits"]),
        (None, None, "d", None),
    ]
    assert {row["_id"] for row in found} == {"596e275826f08b2730779e1f"}
    assert found[0].changed_at.astimezone(timezone.utc).year == datetime(1970, 1, 1).year


@pytest.mark.minutes
def test_a_delete_without_its_key_stops_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    rows = debezium_changes(
        topic(spark, (OID, envelope("d", 1))), schema=SCHEMA, connector="mongodb"
    )
    with pytest.raises(SourceError, match="name the column with Kafka's key, key="):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), rows, keys=["_id"], **FROM_DEBEZIUM)


@pytest.mark.minutes
def test_documents_that_cannot_be_read_are_put_aside_with_their_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    key = json.dumps({"id": OID})
    cut = {"truncatedArrays": [{"field": "name", "size": 1}]}
    sent: list[tuple[str | None, str, str | None]] = [
        (key, json.dumps(envelope("c", 0, after=f'{{"_id": {OID}, "name": "a"}}')), None),
        (key, "{no JSON", "is no JSON envelope"),
        (key, json.dumps(envelope("c", 1, after="{no document")), "a document that is no JSON"),
        (
            key,
            json.dumps(envelope("u", 1, updateDescription={"updatedFields": "{no"})),
            "a document that is no JSON",
        ),
        (key, json.dumps(envelope("u", 1, updateDescription=cut)), "changes a part of name"),
        (
            key,
            json.dumps(envelope("c", 1, after=f'{{"_id": {OID}, "Name": "a", "NAME": "b"}}')),
            "several fields whose names differ from that of a column in case alone",
        ),
        (None, json.dumps(envelope("d", 1)), "neither a document nor a key"),
        (
            key,
            json.dumps(envelope("c", 1, after=f'{{"_id": {OID}, "visits": "x"}}')),
            "the value x of column visits is no BIGINT",
        ),
    ]
    kafka = spark.createDataFrame(
        [(of_key, value, n) for n, (of_key, value, _) in enumerate(sent)],
        "k STRING, value STRING, offset BIGINT",
    )

    def changes(messages: DataFrame, *, rescues: bool) -> DataFrame:
        return debezium_changes(
            messages, schema=SCHEMA, connector="mongodb", key="k", rescues=rescues
        )

    path = str(tmp_path / "t")
    rows = changes(kafka, rescues=True)
    deltaweave.apply_changes(spark, path, rows, keys=["_id"], rescued=True, **FROM_DEBEZIUM)
    assert [row.name for row in Table(spark, path).read().collect()] == ["a"]
    kept = Table(spark, f"{path}_rescued").read().collect()
    found = {row.event: row.reason for row in kept}
    assert f"offset 1, key {key}" in {row.message for row in kept}
    wrong = {value: reason for _, value, reason in sent if reason is not None}
    assert found.keys() == wrong.keys()
    for value, reason in wrong.items():
        assert reason in found[value]
    for of_key, value, reason in sent[1:]:
        alone = spark.createDataFrame([(of_key, value, 0)], kafka.schema)
        with pytest.raises(Exception, match=str(reason)):
            changes(alone, rescues=False).collect()


# By the fields that an update sets and removes: what is read of it, or what it says of itself.
OTHER_CASES = [
    ({"name": "x"}, [], {"name": "x"}),
    ({}, ["name"], {"name": None}),
    ({}, ["Name"], "changes Name, which may be another field than the column's"),
    ({"Name": "y"}, [], "changes Name, which may be another field than the column's"),
    ({"Name": "y", "NAME": "z"}, [], "changes Name, NAME, which may be another field"),
    ({"Name": "y"}, ["name"], "changes Name, which may be another field than the column's"),
    ({"name": "x", "extra": 1}, ["Extra"], {"name": "x"}),
    ({}, ["Name.first"], "changes a part of name"),
    # With change_streams_update_full, too, if the document was deleted before it was looked up.
    ({"name.first": "x"}, [], "With that setting, the document was gone before the connector read"),
    ({"Name": "y"}, [], "With that setting, the document was gone before the connector read it"),
]


@pytest.mark.minutes
@pytest.mark.parametrize(("updated", "removed", "found"), OTHER_CASES)
def test_an_update_changes_no_column_by_a_field_of_another_case(
    spark: SparkSession, updated: dict[str, Any], removed: list[str], found: Any
) -> None:
    """MongoDB tells such fields apart, so the document may have both."""
    changed = {"updatedFields": json.dumps(updated), "removedFields": removed}
    kafka = topic(spark, ("1", envelope("u", 1, updateDescription=changed)))
    rows = read(kafka, rescues=True)
    [row] = rows.select("name", "_cdc_present", "_cdc_message.problem").collect()
    if isinstance(found, str):
        assert found in row.problem
    else:
        assert row.problem is None
        assert {name: row[name] for name in row._cdc_present if name != "_id"} == found
