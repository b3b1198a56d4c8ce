"""Changes of another log, whose positions start over, are an error or come in their epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import FROM_DEBEZIUM, MergeOnReadTable, Table, debezium_changes
from deltaweave.changes.debezium.changes import Connector
from deltaweave.errors import DeltaweaveError, SourceError
from tests.deltaweave.changes.debezium_messages import FOLDER, messages

NOON = 1_782_907_200_000  # 2026-07-01 12:00 UTC, in milliseconds
HOUR = 3_600_000
KAFKA = "value STRING, offset BIGINT"
OTHER_LOG = "of another log"
Envelope = tuple[str, int, float, dict[str, Any]]


def changes(
    spark: SparkSession,
    *envelopes: Envelope,
    start: int = 0,
    connector: Connector = "postgresql",
    **arguments: Any,
) -> DataFrame:
    """Rows of envelopes: the operation, the position, the hours after noon and the row."""
    rows = []
    for n, (op, at, hours, row) in enumerate(envelopes, start):
        source: dict[str, Any] = {"lsn": at, "ts_ms": NOON + int(HOUR * hours)}
        if connector == "mysql":
            source |= {"file": "bin.000001", "pos": at, "row": 0, "server_id": row.pop("server", 1)}
        part = "before" if op == "d" else "after"
        rows.append((json.dumps({"op": op, part: row or None, "source": source}), n))
    kafka = spark.createDataFrame(rows, KAFKA)
    return debezium_changes(kafka, schema="id INT, name STRING", connector=connector, **arguments)


class Target:
    """A table of a kind that takes changes."""

    def __init__(self, spark: SparkSession, path: str, kind: str) -> None:
        self.spark, self.path, self.kind = spark, path, kind
        self.on_read = MergeOnReadTable(spark, path, keys=["id"], **FROM_DEBEZIUM)

    def apply(self, rows: DataFrame) -> None:
        """Apply changes, and merge them if they were appended."""
        if self.kind == "merge on read":
            self.on_read.append(rows)
            self.on_read.rematerialize("merge")
            return
        arguments: dict[str, Any] = {"keys": ["id"], **FROM_DEBEZIUM}
        arguments["stored_as_scd_type"] = 2 if self.kind == "histories" else 1
        deltaweave.apply_changes(self.spark, self.path, rows, **arguments)

    def rows(self) -> list[tuple[Any, ...]]:
        """The newest rows."""
        table = Table(self.spark, self.path).read()
        newest = table.where("__END_AT IS NULL") if self.kind == "histories" else table
        return sorted(tuple(row) for row in newest.select("id", "name").collect())


# A base has current rows. Of them alone, other tests below tell what is an error.
KINDS = [pytest.param("current rows", marks=pytest.mark.full_matrix), "histories", "merge on read"]
HELD: list[Envelope] = [
    ("r", 1, 5, {"id": 5, "name": "snapshot"}),
    ("c", 100, 0, {"id": 1, "name": "a"}),
    ("c", 200, 0, {"id": 2, "name": "b"}),
    ("d", 300, 0, {"id": 3}),
]
OF_OTHER_LOG: dict[str, Envelope] = {
    "an update of a held row": ("u", 10, 24, {"id": 2, "name": "x"}),
    "a delete of a held row": ("d", 10, 24, {"id": 2}),
    "a row whose key was deleted": ("c", 10, 24, {"id": 3, "name": "x"}),
    "a late change of the log before": ("u", 300, -24, {"id": 2, "name": "y"}),
}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_another_log_are_an_error_until_they_have_an_epoch(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    target = Target(spark, str(tmp_path / "t"), kind)
    target.apply(changes(spark, *HELD))
    # In one log: late, repeated and shuffled; clocks that differ by less than an hour; a snapshot
    # that read rows long after its position; a message without a time.
    target.apply(
        changes(
            spark,
            ("u", 150, -9, {"id": 2, "name": "late"}),
            *HELD,
            ("u", 190, 0.9, {"id": 2, "name": "late"}),
            ("r", 1, 30, {"id": 1, "name": "old"}),
            ("u", 400, 4, {"id": 5, "name": "e"}),
            ("u", 500, -NOON / HOUR, {"id": 1, "name": "d"}),
            ("u", 110, 2, {"id": 1, "name": "late"}),
            ("u", 600, 3, {"id": 1, "name": "f"}),
            start=20,
        )
    )
    one_log = [(1, "f"), (2, "b"), (5, "e")]
    assert target.rows() == one_log
    if kind != "merge on read":  # which would keep the changes
        for envelope in OF_OTHER_LOG.values():
            with pytest.raises(DeltaweaveError, match=OTHER_LOG):
                target.apply(changes(spark, envelope, start=40))
        assert target.rows() == one_log
    target.apply(
        changes(
            spark,
            ("u", 10, 24, {"id": 2, "name": "x"}),
            ("c", 11, 24, {"id": 3, "name": "x"}),
            ("d", 9, 24, {"id": 1}),
            ("r", 1, 20, {"id": 5, "name": "again"}),
            start=50,
            epoch=1,
        )
    )
    target.apply(changes(spark, ("u", 9000, 23, {"id": 2, "name": "late"}), start=60))
    assert target.rows() == [(2, "x"), (3, "x"), (5, "again")]


@pytest.mark.minutes
def test_one_batch_with_changes_of_two_logs_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {"keys": ["id"], **FROM_DEBEZIUM}
    envelopes: list[Envelope] = [
        ("u", 100, 0, {"id": 1, "name": "a"}),
        ("u", 10, 24, {"id": 1, "name": "b"}),
    ]
    with pytest.raises(DeltaweaveError, match=f"id=1 at 2026-07-02 .*{OTHER_LOG}") as refused:
        deltaweave.apply_changes(spark, path, changes(spark, *envelopes), **arguments)
    assert "epoch=" in str(refused.value)
    epoch = F.when(F.col("offset") >= 1, 1).otherwise(0)
    deltaweave.apply_changes(spark, path, changes(spark, *envelopes, epoch=epoch), **arguments)
    assert [row.name for row in Table(spark, path).read().collect()] == ["b"]

    # Another log empties the table.
    emptied = changes(spark, ("t", 5, 48, {}), start=5, epoch=1)
    with pytest.raises(DeltaweaveError, match=OTHER_LOG):
        deltaweave.apply_changes(spark, path, emptied, **arguments)
    emptied = changes(spark, ("t", 5, 48, {}), start=5, epoch=2)
    deltaweave.apply_changes(spark, path, emptied, **arguments)
    assert Table(spark, path).read().count() == 0


@pytest.mark.minutes
def test_pending_changes_of_another_log_are_an_error_without_an_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every view fails until the changes have an epoch."""
    whole = {name: value for name, value in FROM_DEBEZIUM.items() if name != "present_columns"}
    table = MergeOnReadTable(spark, str(tmp_path / "t"), keys=["id"], **whole)
    table.append(changes(spark, *HELD).drop("_cdc_present"))
    table.rematerialize()
    table.append(changes(spark, *OF_OTHER_LOG.values(), start=9).drop("_cdc_present"))
    reads: list[Callable[[], Any]] = [
        lambda: table.read("double_rank").collect(),
        lambda: table.read("full_outer_join").collect(),
        lambda: table.read("left_join_anti_join").collect(),
        lambda: table.read().collect(),
        lambda: table.rematerialize("merge"),
        lambda: table.rematerialize("overwrite"),
    ]
    for read in reads:
        with pytest.raises(Exception, match=OTHER_LOG):
            read()
    # As docs/how-to/another-log.md says.
    spark.sql(
        f"UPDATE delta.`{table.changes.path_or_name}` SET _cdc_sequence.at.epoch = 1 "
        "WHERE _cdc_sequence.at.changed_at >= TIMESTAMP '2026-07-02 12:00:00Z'"
    )
    table.rematerialize()
    found = sorted((row.id, row.name) for row in table.read().collect())
    assert found == [(1, "a"), (3, "x"), (5, "snapshot")]


@pytest.mark.minutes
def test_statements_of_one_server_may_take_hours(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")

    def apply(*envelopes: Envelope) -> None:
        rows = changes(spark, *envelopes, connector="mysql")
        deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)

    # MySQL's time is when the statement began: one that ran for hours came to the row last.
    apply(("u", 200, 1, {"id": 1, "name": "b"}), ("u", 100, 9, {"id": 1, "name": "a"}))
    apply(("u", 100, 9, {"id": 1, "name": "a"}))
    assert [row.name for row in Table(spark, path).read().collect()] == ["b"]
    for later in (("u", 50, 3, {"id": 1, "server": 2}), ("u", 50, 26, {"id": 1})):
        with pytest.raises(DeltaweaveError, match=OTHER_LOG):
            apply(later)  # type: ignore[arg-type]


@pytest.mark.minutes
def test_the_recorded_log_after_reset_master_is_an_error_without_its_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    found = [m for m in messages("mariadb-other_log", "across_logs") if m.value is not None]
    values = [json.loads(m.value or "") for m in found]
    values = [value.get("payload", value) for value in values]
    second = [n for n, value in enumerate(values) if value["source"]["snapshot"] == "first"][1]
    for value in values[second:]:  # as if a day had passed between the logs
        value["source"]["ts_us"] += 25 * HOUR * 1000
    kafka = spark.createDataFrame([(json.dumps(v), n) for n, v in enumerate(values)], KAFKA)

    def apply(rows: DataFrame, epoch: int) -> None:
        rows = debezium_changes(rows, schema="id INT, note STRING", connector="mysql", epoch=epoch)
        deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)

    apply(kafka.where(f"offset < {second}"), 0)
    with pytest.raises(DeltaweaveError, match=OTHER_LOG):
        apply(kafka.where(f"offset >= {second}"), 0)
    apply(kafka.where(f"offset >= {second}"), 1)
    expected = (FOLDER / "mariadb.across_logs.rows.jsonl").read_text().splitlines()
    rows = Table(spark, path).read().orderBy("id").select("id", "note").collect()
    assert [row.asDict() for row in rows] == [
        {name: json.loads(line)[name] for name in ("id", "note")} for line in expected
    ]


@pytest.mark.minutes
def test_tables_of_earlier_releases_refuse_epochs(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {"keys": ["id"], **FROM_DEBEZIUM}
    earlier = F.struct("_cdc_position.lsn", "_cdc_position.offset")
    rows = changes(spark, *HELD).withColumn("_cdc_position", earlier)
    deltaweave.apply_changes(spark, path, rows, **arguments)
    of_next = changes(spark, ("u", 1, 24, {"id": 1, "name": "x"}), start=9, epoch=1)
    with pytest.raises(SourceError, match="before positions had an epoch"):
        deltaweave.apply_changes(spark, path, of_next, **arguments)
