"""Debezium's positions have a time, which is for readers and does not order events."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import FROM_DEBEZIUM, MergeOnReadTable, Table, debezium_changes
from deltaweave.errors import StatementError

NOON = 1_782_907_200_000  # 2026-07-01 12:00 UTC, in milliseconds
HISTORIES: dict[str, Any] = {"keys": ["id"], "stored_as_scd_type": 2, **FROM_DEBEZIUM}


def change(op: str, lsn: int | None, minute: int | None, **row: Any) -> str:
    """An envelope of PostgreSQL's connector for a change that many minutes after noon."""
    source = {"lsn": lsn, **({} if minute is None else {"ts_ms": NOON + 60_000 * minute})}
    part = "before" if op == "d" else "after"
    return json.dumps({"op": op, part: row or None, "source": source})


def changes(spark: SparkSession, *texts: str, start: int = 0, **arguments: Any) -> DataFrame:
    rows = [(text, n) for n, text in enumerate(texts, start)]
    kafka = spark.createDataFrame(rows, "value STRING, offset BIGINT")
    return debezium_changes(
        kafka, schema="id INT, name STRING", connector="postgresql", **arguments
    )


@pytest.mark.minutes
def test_versions_are_valid_by_time_and_position(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    batches = [
        # The clock went back a minute between 20 and 30, and the log goes on.
        [change("r", 1, 5, id=1, name="a"), change("u", 30, 19, id=1, name="d")],
        [change("u", 20, 20, id=1, name="c"), change("d", 40, 30, id=1)],
        [change("u", 10, 10, id=1, name="b"), change("c", 50, None, id=1, name="e")],
    ]
    for n, batch in enumerate(batches):
        deltaweave.apply_changes(spark, path, changes(spark, *batch, start=9 * n), **HISTORIES)
    columns = ["name", "__START_AT.lsn", "unix_millis(__START_AT.changed_at)"]
    columns += ["unix_millis(__END_AT.changed_at)", "__START_AT.is_snapshot"]
    found = Table(spark, path).read().orderBy("__START_AT").selectExpr(*columns).collect()
    minute = {n: NOON + 60_000 * n for n in (5, 10, 19, 20, 30)}
    assert [tuple(row) for row in found] == [
        ("a", -1, minute[5], minute[10], True),
        ("b", 10, minute[10], minute[20], False),
        ("c", 20, minute[20], minute[19], False),
        ("d", 30, minute[19], minute[30], False),
        ("e", 50, 0, None, False),  # its message has no time
    ]
    # Valid at a time, as docs/how-to/debezium.md has it.
    at = "TIMESTAMP '2026-07-01 12:15:00Z'"
    valid = f"__START_AT.changed_at <= {at} AND ifnull(__END_AT.changed_at > {at}, true)"
    assert [
        row.name for row in Table(spark, path).read().where(f"name != 'e' AND {valid}").collect()
    ] == ["b"]


def test_a_microsecond_of_the_commit_is_kept(spark: SparkSession) -> None:
    source = {"lsn": 1, "ts_ms": NOON, "ts_us": NOON * 1000 + 7}
    text = json.dumps({"op": "c", "after": {"id": 1}, "source": source})
    [row] = changes(spark, text).collect()
    assert row["_cdc_position"].changed_at.astimezone(timezone.utc) == datetime(
        2026, 7, 1, 12, microsecond=7, tzinfo=timezone.utc
    )


def as_before(rows: DataFrame) -> DataFrame:
    """Rows with the positions of releases before they had epochs and times."""
    earlier = F.struct("_cdc_position.lsn", "_cdc_position.offset")
    return rows.withColumn("_cdc_position", earlier)


@pytest.mark.minutes
def test_tables_with_positions_of_earlier_releases_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = [change("c", 10, 1, id=1, name="a"), change("d", 15, 2, id=2)]
    then = [change("u", 20, 3, id=1, name="b"), change("u", 5, 0, id=2, name="late")]
    current, histories, base = (str(tmp_path / name) for name in ("current", "histories", "base"))
    on_read = MergeOnReadTable(spark, base, keys=["id"], **FROM_DEBEZIUM)
    for rows in (as_before(changes(spark, *first)), changes(spark, *then, start=5)):
        deltaweave.apply_changes(spark, current, rows, keys=["id"], **FROM_DEBEZIUM)
        deltaweave.apply_changes(spark, histories, rows, **HISTORIES)
        on_read.append(rows)
    assert [row.name for row in Table(spark, current).read().collect()] == ["b"]
    assert [row.name for row in on_read.read().collect()] == ["b"]
    found = Table(spark, histories).read().selectExpr("name", "__START_AT.*").collect()
    assert sorted(map(tuple, found)) == [("a", 10, 0), ("b", 20, 5), ("late", 5, 6)]

    # Positions of another kind are refused.
    rows = changes(spark, change("u", 30, 4, id=1, name="c"), offset=None)
    with pytest.raises(StatementError, match=r"positions of the type struct<lsn:bigint,offset"):
        deltaweave.apply_changes(spark, current, rows, keys=["id"], **FROM_DEBEZIUM)


@pytest.mark.minutes
def test_views_still_know_that_all_changes_are_newer(spark: SparkSession, tmp_path: Path) -> None:
    table = MergeOnReadTable(
        spark,
        str(tmp_path / "t"),
        keys=["id"],
        **{name: value for name, value in FROM_DEBEZIUM.items() if name != "present_columns"},
    )
    table.append(changes(spark, change("c", 1, 1, id=1, name="a")).drop("_cdc_present"))
    table.rematerialize()
    table.append(changes(spark, change("u", 2, 2, id=1, name="b")).drop("_cdc_present"))
    assert [row.name for row in table.read("anti_join").collect()] == ["b"]
    table.append(changes(spark, change("u", 1, 2, id=1, name="b")).drop("_cdc_present"))
    with pytest.raises(StatementError, match="anti_join needs changes that are"):
        table.read("anti_join")


@pytest.mark.minutes
def test_histories_are_emptied_by_deletes_as_the_page_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    first = [change("c", 1, 1, id=1, name="a"), change("c", 2, 1, id=2, name="b")]
    deltaweave.apply_changes(spark, path, changes(spark, *first), **HISTORIES)
    rows = changes(spark, change("t", 5, 2), change("c", 9, 3, id=2, name="c"), start=5)
    with pytest.raises(StatementError, match="an event empties the table") as refused:
        deltaweave.apply_changes(spark, path, rows, **HISTORIES)
    assert "_cdc_op <> 't'" in str(refused.value)

    deltaweave.apply_changes(spark, path, rows.where("_cdc_op <> 't'"), **HISTORIES)
    ids = Table(spark, path).read().select("id").distinct()
    emptied = rows.where("_cdc_op = 't'").drop("id")
    deltaweave.apply_changes(
        spark, path, ids.join(emptied.withColumn("_cdc_op", F.lit("d"))), **HISTORIES
    )
    columns = ["id", "name", "__START_AT.lsn", "__END_AT.lsn"]
    found = Table(spark, path).read().selectExpr(*columns).collect()
    assert sorted(map(tuple, found)) == [(1, "a", 1, 5), (2, "b", 2, 5), (2, "c", 9, None)]
