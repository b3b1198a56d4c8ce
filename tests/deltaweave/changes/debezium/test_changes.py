"""Debezium's envelopes, as JSON and as decoded rows, as what `apply_changes` takes."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import deltaweave
from deltaweave import FROM_DEBEZIUM, Table, debezium_changes
from deltaweave.errors import SourceError, StatementError

PLACEHOLDER = "__debezium_unavailable_value"
KAFKA = "value STRING, offset BIGINT"


def envelope(
    op: str,
    lsn: int,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    with_schema: bool = False,
) -> str:
    payload = {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "table": "t"}}
    return json.dumps(
        {"schema": {"type": "struct"}, "payload": payload} if with_schema else payload
    )


def test_envelopes_of_every_operation_make_the_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    messages = [
        envelope("r", 10, after={"id": 1, "name": "a"}),
        envelope("r", 10, after={"id": 2, "name": "a"}),
        envelope("c", 11, after={"id": 3, "name": "c"}, with_schema=True),
        envelope("u", 12, before={"id": 1, "name": "a"}, after={"id": 1, "name": "b"}),
        envelope("d", 13, before={"id": 2, "name": None}),
        None,  # the tombstone that follows a delete
        json.dumps({"op": "m", "source": {"lsn": 14}, "message": {"prefix": "x"}}),
        envelope("u", 11, after={"id": 1, "name": "late"}),
    ]
    kafka = spark.createDataFrame([(text, n) for n, text in enumerate(messages)], KAFKA)
    rows = debezium_changes(kafka, schema="id INT, name STRING", connector="postgresql")
    deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    found = Table(spark, path).read().select("id", "name").collect()
    assert sorted(tuple(row) for row in found) == [(1, "b"), (3, "c")]

    emptied = [(envelope("t", 20), 100), (envelope("c", 21, after={"id": 9, "name": "z"}), 101)]
    rows = debezium_changes(
        spark.createDataFrame(emptied, KAFKA), schema="id INT, name STRING", connector="postgresql"
    )
    deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    assert [row.id for row in Table(spark, path).read().collect()] == [9]


@pytest.mark.minutes
@pytest.mark.parametrize("form", ["json", "bytes", "rows"])
def test_values_that_were_not_sent_stay_and_nulls_do_not(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    path = str(tmp_path / "t")
    names = ["id", "text", "bytes", "words", "codes", "other"]
    schema = "id INT, text STRING, bytes BINARY, words ARRAY<STRING>, codes ARRAY<INT>, other INT"
    first = [1, "long", b"long", ["long"], [1, 2], 7]
    unsent = [PLACEHOLDER, PLACEHOLDER.encode(), [PLACEHOLDER], list(PLACEHOLDER.encode())]
    second = [1, *unsent, None]

    def as_json(values: list[Any]) -> dict[str, Any]:
        named = dict(zip(names, values, strict=True))
        return {**named, "bytes": base64.b64encode(named["bytes"]).decode()}

    if form == "rows":
        fields = [column.split(" ") for column in schema.split(", ")]
        row = "STRUCT<" + ", ".join(f"{name}: {of}" for name, of in fields) + ">"
        types = (
            f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<lsn: BIGINT>>"
        )
        frame = spark.createDataFrame(
            [((None, tuple(first), "c", (1,)), 0), ((None, tuple(second), "u", (2,)), 1)],
            f"{types}, offset BIGINT",
        )
    else:
        texts = [envelope("c", 1, after=as_json(first)), envelope("u", 2, after=as_json(second))]
        frame = spark.createDataFrame([(text, n) for n, text in enumerate(texts)], KAFKA)
        if form == "bytes":
            frame = frame.selectExpr("CAST(value AS BINARY) AS value", "offset")
    rows = debezium_changes(frame, schema=schema, connector="postgresql")
    deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)

    [found] = Table(spark, path).read().select(*names).collect()
    assert list(found) == [1, "long", bytearray(b"long"), ["long"], [1, 2], None]


@pytest.mark.minutes
def test_json_becomes_the_types_of_the_table(spark: SparkSession) -> None:
    schema = (
        "i BIGINT, d DECIMAL(10,2), b BOOLEAN, f DOUBLE, day DATE, at TIMESTAMP_NTZ, "
        "zoned TIMESTAMP, s STRUCT<x: INT>, m MAP<STRING, INT>"
    )
    after = {
        "i": 2**40,
        "d": "12.50",
        "b": True,
        "f": 0.5,
        "day": 19_723,
        "at": 1_704_067_200_000_001,
        "zoned": "2024-01-01T00:00:00Z",
        "s": {"x": 1},
        "m": {"a": 1},
    }
    frame = spark.createDataFrame([(envelope("c", 1, after=after), 0)], KAFKA)
    [row] = debezium_changes(frame, schema=schema, connector="postgresql").collect()
    assert (row.i, row.d, row.b, row.f) == (2**40, Decimal("12.50"), True, 0.5)
    assert (row.day, row.at) == (date(2024, 1, 1), datetime(2024, 1, 1, microsecond=1))
    assert row.zoned.timestamp() == datetime.fromisoformat("2024-01-01T00:00:00+00:00").timestamp()
    assert (row.s, row.m, row["_cdc_present"]) == (Row(x=1), {"a": 1}, None)


def test_a_message_that_is_no_json_stops_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("{no json", 0)], KAFKA)
    rows = debezium_changes(frame, schema="id INT", connector="postgresql")
    with pytest.raises(SourceError):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), rows, keys=["id"], **FROM_DEBEZIUM)
    assert not Table(spark, str(tmp_path / "t")).exists()


INFINITY = 9223372036825200000

# By operation and row: what is read of `id` and `at`, or the error of a batch without `rescues`.
IN_A_ROW: list[tuple[str, dict[str, Any], Any]] = [
    ("d", {"id": 1, "at": INFINITY}, (1, None)),  # REPLICA IDENTITY FULL: its key is enough
    ("d", {"id": 1, "at": [["__debezium_unavailable_value"]]}, (1, None)),  # an unknown form
    ("d", {"id": "one", "at": 0}, "a null in its key id"),  # whose row is it?
    ("u", {"id": 1, "at": INFINITY}, "of column at is outside the years"),  # a value of the table
    ("u", {"id": "one", "at": 0}, "the value one of column id is no INT"),
]


@pytest.mark.parametrize("form", ["json", "rows"])
@pytest.mark.parametrize(("op", "row", "expected"), IN_A_ROW)
def test_a_delete_needs_no_value_but_its_key(
    spark: SparkSession, tmp_path: Path, form: str, op: str, row: dict[str, Any], expected: Any
) -> None:
    parts = {"before": row} if op == "d" else {"after": row}
    frame = spark.createDataFrame([(envelope(op, 1, **parts), 0)], KAFKA)
    if form == "rows":
        of = "STRUCT<id: STRING, at: STRING>"
        fields = f"before {of}, after {of}, op STRING, source STRUCT<lsn: BIGINT, table: STRING>"
        frame = frame.selectExpr(f"from_json(value, '{fields}') AS value", "offset")
    rows = debezium_changes(frame, schema="id INT, at TIMESTAMP", connector="postgresql")
    if isinstance(expected, tuple):
        [found] = rows.select("id", "at").collect()
        assert tuple(found) == expected
        return
    with pytest.raises(SourceError, match=expected):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), rows, keys=["id"], **FROM_DEBEZIUM)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"connector": "db2"}, "connector is 'db2'; known are"), ({"value": "v"}, "have no column v")],
    ids=["connector", "value"],
)
def test_arguments_that_do_not_fit_are_refused(
    spark: SparkSession, arguments: dict[str, Any], problem: str
) -> None:
    frame = spark.createDataFrame([("{}", 0)], KAFKA)
    with pytest.raises(StatementError, match=problem):
        debezium_changes(frame, **{"schema": "id INT", "connector": "postgresql", **arguments})


# By connector: `source` of a snapshot's row, as Debezium 3 fills it, and of changes after it.
SOURCES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "sqlserver": (
        [
            {"commit_lsn": "00000027:00000ac0:0002", "change_lsn": None},
            {"commit_lsn": None, "change_lsn": None, "event_serial_no": None},
        ],
        [
            {
                "commit_lsn": "00000027:00000ac0:0002",
                "change_lsn": "00000027:00000ac0:0001",
                "event_serial_no": 1,
            },
        ],
    ),
    "postgresql": (
        [{"lsn": 50, "snapshot": "last"}, {"lsn": None, "snapshot": "incremental"}, {}],
        # Made before the snapshot was taken, and committed after it.
        [{"lsn": 40, "sequence": '["60","40"]'}],
    ),
    "oracle": (
        [{"scn": "100", "snapshot": "true"}, {"scn": None, "commit_scn": None}],
        [{"scn": "90", "commit_scn": "110"}],
    ),
    "mongodb": (
        # The time at which the row was sent.
        [{"ts_ms": 2_000, "ord": -1, "snapshot": "true"}],
        [{"ts_ms": 1_000, "ord": 1}],
    ),
    "mysql": (
        [{"file": "binlog.000002", "pos": 10, "row": 0, "snapshot": "incremental"}],
        [{"file": "binlog.000002", "pos": 20, "row": 0}],
    ),
}


@pytest.mark.parametrize(
    ("connector", "op"), [*((each, "r") for each in SOURCES), ("postgresql", "c")]
)
def test_rows_of_a_snapshot_come_before_the_changes_of_the_log(
    spark: SparkSession, connector: str, op: str
) -> None:
    """Also if the transform ReadToInsertEvent made inserts of them."""
    snapshots, changes = SOURCES[connector]
    if op == "c":
        snapshots = [each for each in snapshots if "snapshot" in each]
    envelopes = [
        *({"op": "u", "after": {"id": 1, "name": "new"}, "source": each} for each in changes),
        # Sent again, after the change.
        *({"op": op, "after": {"id": 1, "name": "old"}, "source": each} for each in snapshots),
    ]
    frame = spark.createDataFrame([(json.dumps(e), n) for n, e in enumerate(envelopes)], KAFKA)
    rows = debezium_changes(frame, schema="id INT, name STRING", connector=connector)  # type: ignore[arg-type]
    found = rows.orderBy("_cdc_position").select("name", "_cdc_position").collect()
    assert [row.name for row in found] == ["old"] * len(snapshots) + ["new"] * len(changes)
    assert all(part is not None for row in found for part in row["_cdc_position"])


# `source` of changes of one key, as they were sent.
AT_ONE_POSITION: dict[str, list[dict[str, Any]]] = {
    # Three statements of a compressed transaction: each counts its rows from 0.
    "mysql": [{"file": "binlog.000002", "pos": 10, "row": row} for row in (5, 0, 1)],
    # One transaction, sent by `__$command_id`; `change_lsn` is `__$seqval`.
    "sqlserver": [
        {"commit_lsn": "27:ac0:2", "change_lsn": f"27:ac0:{n}", "event_serial_no": serial}
        for n, serial in ((8, 2), (4, 1), (4, 2))
    ],
    # Two transactions.
    "oracle": [{"scn": "100", "txSeq": n} for n in (1, 2, 1)],
}


@pytest.mark.parametrize("connector", AT_ONE_POSITION)
def test_changes_of_one_position_are_in_the_order_in_which_they_were_sent(
    spark: SparkSession, connector: Any
) -> None:
    texts = [
        json.dumps({"op": "u", "after": {"name": name}, "source": source})
        for name, source in zip("abc", AT_ONE_POSITION[connector], strict=True)
    ]
    frame = spark.createDataFrame([(text, n) for n, text in enumerate(texts)], KAFKA)
    rows = debezium_changes(frame, schema="name STRING", connector=connector)
    found = rows.orderBy("_cdc_position").collect()
    assert [row.name for row in found] == ["a", "b", "c"]
    # They come after what an earlier release applied of that position.
    numbered = {"mysql": ("row", 5), "sqlserver": ("change_lsn", "27:ac0:8")}
    for field, applied in [numbered[connector]] if connector in numbered else []:
        assert all(row["_cdc_position"][field] > applied for row in found)


@pytest.mark.minutes
def test_changes_of_sql_server_continue_its_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    [first, _], [change] = SOURCES["sqlserver"]
    messages = [
        {"op": "r", "after": {"id": 1, "name": "a"}, "source": first},
        {"op": "r", "after": {"id": 2, "name": "a"}, "source": first},
        {"op": "u", "after": {"id": 1, "name": "b"}, "source": change},
        # A snapshot that was taken later is newer than the changes that the log has before it.
        {"op": "r", "after": {"id": 3, "name": "c"}, "source": {"commit_lsn": "00000028:0:0"}},
        {"op": "u", "after": {"id": 3, "name": "b"}, "source": change},
    ]
    frame = spark.createDataFrame([(json.dumps(e), n) for n, e in enumerate(messages)], KAFKA)
    rows = debezium_changes(frame, schema="id INT, name STRING", connector="sqlserver")
    path = str(tmp_path / "t")
    deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    found = Table(spark, path).read().select("id", "name").collect()
    assert sorted(tuple(row) for row in found) == [(1, "b"), (2, "a"), (3, "c")]


@pytest.mark.parametrize(
    ("connector", "source", "problem"),
    [
        ("sqlserver", {"commit_lsn": "1"}, r"id=1 at .+ \(offset 0\) has no sequence"),
        (
            "mysql",
            {"file": "binlog-000000.ibb", "pos": 0, "row": 3},
            r"offset 0 is of a binary log in InnoDB, whose events have no position",
        ),
    ],
)
def test_a_change_without_a_position_is_still_refused(
    spark: SparkSession, tmp_path: Path, connector: Any, source: dict[str, Any], problem: str
) -> None:
    change = {"op": "u", "after": {"id": 1, "name": "b"}, "source": source}
    frame = spark.createDataFrame([(json.dumps(change), 0)], KAFKA)
    rows = debezium_changes(frame, schema="id INT, name STRING", connector=connector)
    with pytest.raises(SourceError, match=problem):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), rows, keys=["id"], **FROM_DEBEZIUM)


def test_a_time_without_zone_is_the_same_in_the_hour_that_comes_twice(spark: SparkSession) -> None:
    there = spark.newSession()
    there.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    micros = [1_792_888_200_000_000, 1_792_891_800_000_000, 253_402_300_799_999_999]
    frame = there.createDataFrame(
        [(envelope("c", n, after={"id": n, "at": at}), n) for n, at in enumerate(micros)], KAFKA
    )
    rows = debezium_changes(frame, schema="id INT, at TIMESTAMP_NTZ", connector="postgresql")
    assert [row.at for row in rows.selectExpr("string(at) AS at").collect()] == [
        "2026-10-25 00:30:00",
        "2026-10-25 01:30:00",
        "9999-12-31 23:59:59.999999",
    ]


def test_columns_of_a_topic_may_have_any_name_but_those_that_are_taken(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(envelope("c", 1, after={"a.b": 7, "_op": 8}), 0, 1, 2)],
        "`the value` STRING, `off.set` BIGINT, `_op` INT, `x``y` INT",
    )
    arguments: dict[str, Any] = {"connector": "postgresql", "value": "the value"}
    rows = debezium_changes(frame, schema="`a.b` INT, _op INT", offset="off.set", **arguments)
    [row] = rows.collect()
    assert (row["a.b"], row["_op"], row["_cdc_op"]) == (7, 8, "c")
    with pytest.raises(StatementError, match="begin with _cdc_ are taken: _CDC_op"):
        debezium_changes(frame, schema="_CDC_op INT", offset="off.set", **arguments)
