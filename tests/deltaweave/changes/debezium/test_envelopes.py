"""Messages that are no envelopes, columns in another case, and histories of Debezium's rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
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


def test_messages_about_other_things_are_still_skipped(spark: SparkSession) -> None:
    others: list[dict[str, Any]] = [
        {"ts_ms": 1},  # a heartbeat
        {"status": "BEGIN", "id": "571", "event_count": None, "ts_ms": 1},
        {
            "source": {},
            "ts_ms": 1,
            "databaseName": "d",
            "ddl": "CREATE TABLE t",
            "tableChanges": [],
        },
        {"op": "m", "message": {"prefix": "x"}, "source": {}},
    ]
    frame = topic(spark, *others, change("c", 1, id=1))
    rows = debezium_changes(frame, schema="id INT, source STRING", **ORACLE)
    assert [row.id for row in rows.collect()] == [1]


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
