"""Rows of the hour that comes twice a year stay in their own partitions, in any zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, merge
from deltaweave._session import installed_pair, line
from deltaweave.delta.commit.partition_times import repeated_hours
from deltaweave.delta.jvm import active
from deltaweave.errors import StatementError
from deltaweave.maintenance import OPERATIONS, UpkeepPolicy

BEFORE = "2026-10-25T00:30:00.000000Z"  # 02:30 in Berlin, in summer time
AFTER = "2026-10-25T01:30:00.000000Z"  # 02:30 in Berlin again
LATER = "2026-10-25T02:30:00.000000Z"  # 03:30 in Berlin

# Earlier files never hold the column, so that what lies in an hour that comes twice is refused.
FILES_HOLD_THE_COLUMN = line(installed_pair()[1]) >= (4, 4)
needs_the_column = pytest.mark.skipif(
    not FILES_HOLD_THE_COLUMN, reason="this Delta writes no file that holds a partition column"
)

# Delta 4.0 takes them for times of the JVM's zone, which here is UTC.
writes_by_the_session = pytest.mark.skipif(
    line(installed_pair()[1]) < (4, 2), reason="this Delta writes no times of the session's zone"
)

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


@needs_the_column
@pytest.mark.minutes
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


@pytest.mark.skipif(FILES_HOLD_THE_COLUMN, reason="this Delta keeps times of all zones")
def test_a_delta_that_would_take_them_for_other_times_is_refused(
    berlin: SparkSession, tmp_path: Path
) -> None:
    # Delta 4.2 writes values in UTC by the session's zone, and others by the JVM's, which is UTC.
    berlin.conf.set("spark.databricks.delta.write.utcTimestampPartitionValues", "false")
    table = _table(berlin, tmp_path / "t", "'ours' = 'true'")
    statement = (
        f"MERGE INTO delta.`{table.path_or_name}` t USING ({_rows((1, 10, LATER))}) s "
        "ON t.k = s.k WHEN NOT MATCHED THEN INSERT *"
    )
    with pytest.raises(StatementError, match="may take a time of the session's zone for another"):
        table.write(berlin.sql(_rows((1, 10, LATER))), "append")
    with pytest.raises(StatementError, match="may take a time of the session's zone for another"):
        merge(berlin, statement)
    assert not list((tmp_path / "t").rglob("*.parquet"))
    berlin.conf.set("spark.sql.session.timeZone", "UTC")  # the JVM's zone, as the error says
    merge(berlin, statement)
    assert _found(table) == [(1, 10, 150)]


@pytest.mark.minutes
@writes_by_the_session
def test_files_that_do_not_hold_the_column_are_refused(
    berlin: SparkSession, tmp_path: Path
) -> None:
    held = "delta.writePartitionColumnsToParquet" if FILES_HOLD_THE_COLUMN else "ours"
    table = _table(berlin, tmp_path / "t", f"'{held}' = 'false'")
    table.write(berlin.sql(_rows((1, 10, LATER))), "append")
    with pytest.raises(StatementError, match="'at' has times of an hour that comes twice in the"):
        table.write(berlin.sql(_rows((2, 20, AFTER))), "append")
    assert _found(table) == [(1, 10, 150)]
    files = [file for file in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in str(file)]
    assert len(files) == 1  # what was written is deleted
    berlin.conf.set("spark.sql.session.timeZone", "UTC")  # as the error says
    table.write(berlin.sql(_rows((2, 20, AFTER))), "append")
    assert _found(table) == [(1, 10, 150), (2, 20, 90)]


@needs_the_column
@pytest.mark.minutes
@pytest.mark.parametrize(
    "work", ["compact", pytest.param("optimize", marks=pytest.mark.full_matrix), "purge"]
)
def test_upkeep_leaves_the_second_hour_alone(
    berlin: SparkSession, tmp_path: Path, work: str
) -> None:
    table = _table(berlin, tmp_path / "t", "'delta.enableDeletionVectors' = 'true'")
    for k in range(4):
        before = [(k, k, BEFORE), (k + 30, k, BEFORE)]
        after = [(k + 10, k, AFTER), (k + 20, k, AFTER)]
        table.write(berlin.sql(_rows(*before, *after)).coalesce(1), "append")
    table.delete("k IN (3, 23)")

    def files_of(hour: str) -> set[str]:
        files = table.files().where(f"partitionValues['at'] = '{hour}'")
        return {row.path for row in files.select("path").collect()}

    def keep_up() -> None:
        if work == "compact":
            table.compact()
        else:
            OPERATIONS[work](table, UpkeepPolicy(small_files=2, deleted_row_fraction=0.01))

    first, second = files_of(BEFORE), files_of(AFTER)
    keep_up()
    assert not first <= files_of(BEFORE)
    assert files_of(AFTER) == second
    assert sorted(minute for _, _, minute in _found(table)) == [30] * 7 + [90] * 7
    berlin.conf.set("spark.sql.session.timeZone", "UTC")
    keep_up()
    assert not second <= files_of(AFTER)
    assert sorted(minute for _, _, minute in _found(table)) == [30] * 7 + [90] * 7


@needs_the_column
@pytest.mark.minutes
def test_delta_does_not_compact_after_a_write_to_such_an_hour(
    berlin: SparkSession, tmp_path: Path
) -> None:
    berlin.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    table = _table(berlin, tmp_path / "t", "'delta.autoOptimize.autoCompact' = 'true'")
    for k in range(3):
        table.write(berlin.sql(_rows((k, k, AFTER))), "append")
        assert table.version() == k + 1
    table.write(berlin.sql(_rows((10, 10, LATER))), "append")
    table.write(berlin.sql(_rows((11, 11, LATER))), "append")
    assert table.version() == 6  # with a compaction of the later hour
    assert _found(table) == [(0, 0, 90), (1, 1, 90), (2, 2, 90), (10, 10, 150), (11, 11, 150)]


@pytest.mark.minutes
@needs_the_column
def test_times_at_the_ends_of_the_calendar_and_parts_of_a_second_stay(
    berlin: SparkSession, tmp_path: Path
) -> None:
    berlin.conf.set("spark.sql.session.timeZone", "America/New_York")
    berlin.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
    table = _table(berlin, tmp_path / "t", "'delta.enableDeletionVectors' = 'false'")
    values = [
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-05:00",
        "2026-11-01T05:30:00.123456Z",  # 01:30 in New York, and an hour later again
        "2026-11-01T06:30:00.123456Z",
    ]
    rows = _rows(*[(k, k, value) for k, value in enumerate(values)])
    table.write(berlin.sql(rows), "append")
    exact = "unix_micros(at)"
    wanted = berlin.sql(rows).selectExpr("k", exact).collect()
    assert sorted(table.read().selectExpr("k", exact).collect()) == sorted(wanted)
    table.compact()
    assert sorted(table.read().selectExpr("k", exact).collect()) == sorted(wanted)


@pytest.mark.parametrize("zone", ["PST", "+02:00", "America/Los_Angeles"])
def test_zones_are_those_of_java(spark: SparkSession, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    values = ["2026-11-01T08:30:00.000000Z", None, "+10000-01-01T00:00:00.000000Z"]
    values += ["0000-12-31T23:06:32.000000Z", "0001-01-01T00:00:00.000000Z"]
    hours = repeated_hours(spark, session._jsparkSession, values)
    assert [hour.back for hour in hours] == ([] if zone == "+02:00" else [3600])


@pytest.mark.minutes
@needs_the_column
def test_values_without_a_zone_are_distinguished_too(berlin: SparkSession, tmp_path: Path) -> None:
    berlin.conf.set("spark.databricks.delta.write.utcTimestampPartitionValues", "false")
    table = _table(berlin, tmp_path / "t", "'delta.enableDeletionVectors' = 'false'")
    table.write(berlin.sql(_rows((1, 10, BEFORE), (2, 20, AFTER), (3, 30, LATER))), "append")
    assert _found(table) == [(1, 10, 30), (2, 20, 90), (3, 30, 150)]
    values = {row.v for row in table.files().selectExpr("partitionValues['at'] v").collect()}
    assert values == {"2026-10-25 02:30:00", AFTER, "2026-10-25 03:30:00"}
