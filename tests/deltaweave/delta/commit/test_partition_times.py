"""Rows of the hour that comes twice a year stay in their own partitions, in any zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, merge
from deltaweave.delta.jvm import active
from deltaweave.errors import StatementError
from deltaweave.maintenance.operations import OPERATIONS
from deltaweave.maintenance.policy import UpkeepPolicy

BEFORE = "2026-10-25T00:30:00.000000Z"  # 02:30 in Berlin, in summer time
AFTER = "2026-10-25T01:30:00.000000Z"  # 02:30 in Berlin again
LATER = "2026-10-25T02:30:00.000000Z"  # 03:30 in Berlin

LAYOUTS = {
    "by name": "'delta.columnMapping.mode' = 'name'",
    "with a change feed": "'delta.enableChangeDataFeed' = 'true'",
    "marked": "'delta.enableDeletionVectors' = 'true'",
}


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in Berlin's time, active in this thread, so that Delta writes by it."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with active(session):
        yield session


def _table(session: SparkSession, place: Path, properties: str) -> Table:
    session.sql(
        f"CREATE TABLE delta.`{place}` (k INT, v INT, at TIMESTAMP) USING DELTA "
        f"PARTITIONED BY (at) TBLPROPERTIES ('delta.checkpointInterval' = '100', {properties})"
    )
    return Table(session, str(place))


def _rows(*rows: tuple[int, int, str]) -> str:
    return " UNION ALL ".join(
        f"SELECT {k} k, {v} v, TIMESTAMP'{time}' AS at" for k, v, time in rows
    )


def _found(table: Table) -> list[tuple[int, int, str]]:
    # By a number: the text of the zone's own time is ambiguous.
    minutes = "cast(unix_seconds(at) % 86400 / 60 AS INT)"
    return sorted(map(tuple, table.read().selectExpr("k", "v", minutes).collect()))


@pytest.mark.parametrize("properties", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_of_both_hours_keep_their_partitions(
    berlin: SparkSession, tmp_path: Path, properties: str
) -> None:
    table = _table(berlin, tmp_path / "a table [of] {ours}", properties)
    table.write(berlin.sql(_rows((1, 10, BEFORE), (2, 20, AFTER))), "append")
    assert _found(table) == [(1, 10, 30), (2, 20, 90)]
    table.write(
        berlin.sql(_rows((2, 21, AFTER), (3, 30, AFTER))),
        "overwrite",
        replace_where=f"at = TIMESTAMP'{AFTER}'",
    )
    assert _found(table) == [
        (1, 10, 30),  # of the hour before: not replaced
        (2, 21, 90),
        (3, 30, 90),
    ]
    source = _rows((1, 11, LATER), (2, 22, BEFORE), (4, 40, AFTER), (5, 50, BEFORE))
    merge(
        berlin,
        f"MERGE INTO delta.`{table.path_or_name}` t USING ({source}) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    )
    assert _found(table) == [
        (1, 11, 150),  # moved
        (2, 22, 30),  # moved
        (3, 30, 90),
        (4, 40, 90),  # inserted
        (5, 50, 30),  # inserted
    ]
    if "ChangeDataFeed" in properties:
        feed = berlin.sql(
            f"SELECT k, _change_type, cast(unix_seconds(at) % 86400 / 60 AS INT) minute "
            f"FROM table_changes_by_path('{table.path_or_name}', 3) WHERE k > 1 ORDER BY ALL"
        )
        assert [tuple(row) for row in feed.collect()] == [
            (2, "update_postimage", 30),
            (2, "update_preimage", 90),
            (4, "insert", 90),
            (5, "insert", 30),
        ]


def test_files_that_do_not_hold_the_column_are_refused(
    berlin: SparkSession, tmp_path: Path
) -> None:
    table = _table(berlin, tmp_path / "t", "'delta.writePartitionColumnsToParquet' = 'false'")
    table.write(berlin.sql(_rows((1, 10, LATER))), "append")
    with pytest.raises(StatementError, match="'at' has times of an hour that comes twice in Eur"):
        table.write(berlin.sql(_rows((2, 20, AFTER))), "append")
    assert _found(table) == [(1, 10, 150)]
    files = [file for file in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in str(file)]
    assert len(files) == 1  # what was written is deleted
    berlin.conf.set("spark.sql.session.timeZone", "UTC")  # as the error says
    table.write(berlin.sql(_rows((2, 20, AFTER))), "append")
    assert _found(table) == [(1, 10, 150), (2, 20, 90)]


@pytest.mark.parametrize("work", ["compact", "optimize", "purge"])
def test_rewritten_files_keep_their_partitions(
    berlin: SparkSession, tmp_path: Path, work: str
) -> None:
    table = _table(berlin, tmp_path / "t", "'delta.enableDeletionVectors' = 'true'")
    for k in range(4):
        rows = berlin.sql(_rows((k, k, BEFORE), (k + 10, k, AFTER), (k + 20, k, AFTER)))
        table.write(rows.coalesce(1), "append")
    table.delete("k IN (3, 23)")
    files = table.layout(1).files
    if work == "compact":
        table.compact()
    else:
        OPERATIONS[work](table, UpkeepPolicy(small_files=2, deleted_row_fraction=0.01))
    assert table.layout(1).files < files or table.layout(1).deleted_rows == 0
    assert [minute for _, _, minute in _found(table)] == [30] * 3 + [90] * 7
