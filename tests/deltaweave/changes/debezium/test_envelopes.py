"""Messages that are no envelopes, columns in another case, and histories of Debezium's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import FROM_DEBEZIUM, Table, debezium_changes
from deltaweave.errors import SourceError, StatementError

ORACLE: dict[str, Any] = {"connector": "oracle"}


def topic(spark: SparkSession, *messages: dict[str, Any]) -> DataFrame:
    rows = [("t", 3, n, json.dumps(message)) for n, message in enumerate(messages)]
    return spark.createDataFrame(rows, "topic STRING, partition INT, offset BIGINT, value STRING")


def change(op: str, scn: int, **row: Any) -> dict[str, Any]:
    part = "before" if op == "d" else "after"
    return {"op": op, part: row or None, "source": {"scn": str(scn)}}


def test_columns_are_found_in_any_case_and_exact_names_first(spark: SparkSession) -> None:
    messages = [
        change("c", 1, ID=1, Name="a"),
        change("c", 2, id=2, NAME="x", name="b"),  # quoted names differ in case alone
        change("d", 3, ID=3, NAME="c"),
    ]
    rows = debezium_changes(topic(spark, *messages), schema="id INT, name STRING", **ORACLE)
    found = rows.orderBy("_cdc_position").select("id", "name", "_cdc_present").collect()
    assert [tuple(row) for row in found] == [(1, "a", None), (2, "b", None), (3, "c", None)]


def test_decoded_columns_are_found_in_any_case_and_missing_ones_are_named(
    spark: SparkSession,
) -> None:
    row = "STRUCT<ID: INT, Name: STRING>"
    frame = spark.createDataFrame(
        [((None, (1, "a"), "c", ("1",)), 0)],
        f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<scn: STRING>>, "
        "offset INT",
    )
    [found] = debezium_changes(frame, schema="id INT, name STRING", **ORACLE).collect()
    assert (found.id, found.name, found["_cdc_present"]) == (1, "a", None)
    with pytest.raises(StatementError, match="no message has the column nmae"):
        debezium_changes(frame, schema="id INT, nmae STRING", **ORACLE)


@pytest.mark.minutes
def test_columns_that_no_message_of_a_batch_has_are_named_in_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")

    def warned(*messages: dict[str, Any]) -> tuple[str, ...]:
        rows = debezium_changes(
            topic(spark, *messages), schema="id INT, nmae STRING, note STRING", **ORACLE
        )
        return deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM).warnings

    [warning] = warned(change("c", 1, id=1, name="a", note="n"), change("u", 2, id=1, name="b"))
    assert "no message of the batch has the column nmae, " in warning
    assert path in warning
    unsent = "__debezium_unavailable_value"  # is there, and only its value is not
    assert warned(change("c", 3, id=1, nmae="a"), change("u", 4, id=1, note=unsent)) == ()
    assert warned(change("d", 5, id=1)) == ()


@pytest.mark.parametrize(
    "flattened",
    [
        {"id": 1, "name": "a"},
        {"ID": 1, "other": 2},
        {"other": 1, "__op": "u", "__deleted": "false"},
        {"schema": {"type": "struct"}, "payload": {"id": 1}},
        {"id": 1, "op": "c"},
    ],
    ids=["row", "case", "marks", "schema", "a column op"],
)
def test_flattened_rows_are_refused_and_not_skipped(
    spark: SparkSession, tmp_path: Path, flattened: dict[str, Any]
) -> None:
    frame = topic(spark, change("c", 1, id=1, name="a"), flattened)
    rows = debezium_changes(frame, schema="id INT, name STRING", **ORACLE)
    path = str(tmp_path / "t")
    with pytest.raises(
        SourceError, match=r"t, partition 3, offset 1 is not an envelope but a flattened"
    ):
        deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    assert not Table(spark, path).exists()


def test_decoded_flattened_rows_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [((1, "u"), 0)], "value STRUCT<id: INT, __op: STRING>, offset INT"
    )
    with pytest.raises(StatementError, match="not an envelope: it lacks before, after, op, source"):
        debezium_changes(frame, schema="id INT", **ORACLE)


SKIPPED: list[str | None] = [
    None,  # a tombstone
    "null",  # a tombstone of a JSON serializer
    '{"schema": null, "payload": null}',  # a tombstone of Kafka Connect before 2.3
    '{"ts_ms": 1}',  # a heartbeat
    '{"schema": {"type": "struct"}, "payload": {"ts_ms": 1}}',
    '{"status": "BEGIN", "id": "571", "event_count": null, "ts_ms": 1}',  # a transaction's
    '{"status": "END", "id": "571", "event_count": 2, "data_collections": [], "ts_ms": 1}',
    # A change of a schema.
    '{"source": {}, "ts_ms": 1, "databaseName": "d", "ddl": "CREATE TABLE t", "tableChanges": []}',
    '{"op": "m", "message": {"prefix": "x"}, "source": {}}',  # pg_logical_emit_message
]
READ = [
    '{"op": "c", "after": {"id": 1}, "source": {"scn": "1"}}',
    '{"op": "r", "after": {"id": 1}, "source": {"scn": "1"}, "extra": 1}',
    '{"payload": {"op": "u", "after": {"id": 1}, "source": {"scn": "1"}}, "schema": {}}',
    '{"op": "d", "before": {"id": 1}, "source": {"scn": "1"}}',
    '{"op": "t", "source": {"scn": "1"}}',
]
REFUSED = {
    # A wrapped envelope.
    '{"data": {"op": "c", "after": {"id": 1}, "source": {}}}': "envelope; its fields: data",
    '{"message": {"payload": {"op": "c"}}}': "is not an envelope; its fields: message",
    # An operation that a transform renamed.
    '{"op": "C", "after": {"id": 1}, "source": {"scn": "1"}}': "has the operation C, which is none",
    '{"op": "i", "after": {"id": 1}}': "is not an envelope; its fields: op, after",
    '{"op": null, "after": {"id": 1}, "source": {"scn": "1"}}': "its fields: op, after",
    # Not what its fields are like.
    '{"ts_ms": 1, "rows": [1]}': "its fields: ts_ms, rows",
    '{"status": "BEGIN", "ts_ms": 1}': "its fields: status, ts_ms",
    '{"ddl": "CREATE TABLE t"}': "its fields: ddl",
    "{}": "its fields: none",
    "": "is not an envelope",
    "[]": "is no JSON envelope",
    "7": "is no JSON envelope",
    '"text"': "is no JSON envelope",
}


@pytest.mark.parametrize("connector", ["oracle", "mongodb"])
def test_a_message_is_skipped_read_or_refused_by_its_kind(
    spark: SparkSession, connector: Any
) -> None:
    kinds = {"skipped": SKIPPED, "read": READ, "refused": [*REFUSED]}
    if connector == "mongodb":  # whose documents are texts
        kinds["read"] = ['{"op": "c", "after": "{\\"_id\\": 1}", "source": {"ts_ms": 1, "ord": 1}}']
    texts = [text for messages in kinds.values() for text in messages]
    frame = spark.createDataFrame(
        [("t", 3, n, text) for n, text in enumerate(texts)],
        "topic STRING, partition INT, offset BIGINT, value STRING",
    )
    arguments: dict[str, Any] = {"schema": "id INT, source STRING", "connector": connector}
    rows = debezium_changes(frame, rescues=True, **arguments).select("_cdc_message.*").collect()
    found = {row.event: row for row in rows}
    assert found.keys() == {*kinds["read"], *REFUSED}
    assert [text for text in kinds["read"] if found[text].problem] == []
    for text, problem in REFUSED.items():
        place = f"topic t, partition 3, offset {texts.index(text)}"
        assert problem in found[text].problem
        assert place == found[text].place
        assert place in found[text].problem
        alone = debezium_changes(frame.where(f"offset = {texts.index(text)}"), **arguments)
        with pytest.raises(PySparkException, match=place):
            alone.collect()


# By operation: whether a decoded message is read, or what is wrong with it; None if it is skipped.
DECODED: list[tuple[str | None, Any]] = [
    ("c", True),
    ("d", True),
    ("t", True),
    ("m", None),
    ("C", "has the operation C, which is none of"),
    (None, "has no operation"),  # as a decoder leaves messages that it cannot read
]


def test_decoded_messages_of_other_operations_are_refused(spark: SparkSession) -> None:
    row = "STRUCT<id: INT>"
    frame = spark.createDataFrame(
        [((None, None, op, ("1",)), n) for n, (op, _) in enumerate(DECODED)],
        f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<scn: STRING>>, "
        "offset INT",
    )
    rows = debezium_changes(frame, schema="id INT", rescues=True, **ORACLE)
    found = {row.place: row.problem for row in rows.select("_cdc_message.*").collect()}
    for n, (_, expected) in enumerate(DECODED):
        if isinstance(expected, str):
            assert f"the message at offset {n} {expected}" in found[f"offset {n}"]
        else:
            assert (f"offset {n}" in found, found.get(f"offset {n}")) == (bool(expected), None)


@pytest.mark.minutes
def test_histories_take_the_rows_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {"keys": ["id"], "stored_as_scd_type": 2, **FROM_DEBEZIUM}

    def apply(*messages: dict[str, Any]) -> None:
        rows = debezium_changes(topic(spark, *messages), schema="id INT, name STRING", **ORACLE)
        deltaweave.apply_changes(spark, path, rows, **arguments)

    apply(change("c", 1, id=1, name="a"), change("u", 5, id=1, name="c"), change("d", 7, id=1))
    apply(change("u", 3, id=1, name="b"))  # late
    columns = ["name", "int(__START_AT.scn)", "int(__END_AT.scn)"]
    found = Table(spark, path).read().selectExpr(*columns).collect()
    assert sorted(map(tuple, found)) == [("a", 1, 3), ("b", 3, 5), ("c", 5, 7)]

    version = Table(spark, path).version()
    with pytest.raises(StatementError, match="an event empties the table"):
        apply(change("c", 8, id=2, name="z"), change("t", 9))
    assert Table(spark, path).version() == version
