"""Sequences of every type, at their extremes and in hours that come twice, order events exactly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.events import SEQUENCE, EventShape, read_events
from deltaweave.errors import SourceError

# By type: two values that follow each other: the later one empties the table.
LATER = {
    "TINYINT": ("-128", "127"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "DECIMAL(38,18)": ("-1", "99999999999999999999.999999999999999999"),
    "FLOAT": ("'-Infinity'", "0.1"),
    "DOUBLE": ("'Infinity'", "'NaN'"),
    "STRING": ("'Ünï\"c''ode'", "'Ünï\"c''ode\U0001f600'"),
    "BINARY": ("X'00'", "X'00FF'"),
    "BOOLEAN": ("false", "true"),
    "DATE": ("'0001-01-01'", "'9999-12-31'"),
    "TIMESTAMP": ("'2026-10-25 00:30:00Z'", "'2026-10-25 01:30:00.000001Z'"),
    "TIMESTAMP_NTZ": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "STRUCT<a: TIMESTAMP, b: STRUCT<c: TIMESTAMP_NTZ>>": (
        "named_struct('a', TIMESTAMP '9999-12-31 23:59:59.999999Z', "
        "'b', named_struct('c', TIMESTAMP_NTZ '2026-10-25 02:30:00'))",
        "named_struct('a', TIMESTAMP '9999-12-31 23:59:59.999999Z', "
        "'b', named_struct('c', TIMESTAMP_NTZ '2026-10-25 02:30:00.000001'))",
    ),
}


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python in a zone where, in autumn, the hour from 2 to 3 comes twice."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("of", LATER)
def test_the_last_event_that_empties_is_known_exactly(spark: SparkSession, of: str) -> None:
    one, later = (f"CAST({value} AS {of})" for value in LATER[of])
    source = spark.sql(f"SELECT 1 AS k, {one} AS at UNION ALL SELECT 1, {later}")
    shape = EventShape(
        keys=("k",), sequence_by=F.col("at"), deletes=None, truncates=F.lit(True), columns=()
    )
    events = read_events(source, shape, table="t")
    assert events.truncated is not None
    at = F.col(SEQUENCE)["at"]
    found = events.rows.agg(
        F.count_if(at == events.truncated), F.count_if(at < events.truncated)
    ).first()
    events.rows.unpersist()
    assert found == (1, 1)


@pytest.mark.minutes
@pytest.mark.usefixtures("berlin")
def test_an_emptied_table_loses_older_rows_also_in_the_repeated_hour(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "k INT, at STRING, op STRING, v INT"
    # At 1:00 UTC it is 2 for the second time. By the clock on the wall, the table would be emptied
    # half an hour too late first, and in the wrong order then.
    batches = [
        ([(1, "00:15", "", 0), (2, "01:00", "", 0), (None, "00:30", "t", 0)], {2}),
        ([(3, "01:10", "", 0), (4, "01:25", "", 0), (None, "01:20", "t", 0)], {4}),
    ]
    arguments = {
        "keys": ["k"],
        "sequence_by": "to_timestamp(concat('2026-10-25 ', at, ':00Z'))",
        "apply_as_truncates": "op = 't'",
        "except_column_list": ["op", "at"],
    }
    path = str(tmp_path / "t")
    orders = MergeOnReadTable(spark, str(tmp_path / "base"), **arguments)  # type: ignore[arg-type]
    for batch, left in batches:
        source = spark.createDataFrame(batch, schema)
        deltaweave.apply_changes(spark, path, source, **arguments)  # type: ignore[arg-type]
        orders.append(source)
        assert {row.k for row in Table(spark, path).read().collect()} == left
        assert {row.k for row in orders.read().collect()} == left


@pytest.mark.minutes
def test_runs_in_several_zones_agree_on_the_order(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    # By the clock on the wall they would be in the order of k.
    for zone, v, at in [
        ("Asia/Tokyo", 3, "2026-07-01 12:00:00Z"),
        ("America/New_York", 1, "2026-07-01 11:59:59.999999Z"),
        ("UTC", 2, "2026-07-01 11:00:00Z"),
    ]:
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        source = session.createDataFrame([(1, v, at)], "k INT, v INT, at STRING")
        deltaweave.apply_changes(
            session,
            path,
            source,
            keys=["k"],
            sequence_by="CAST(at AS TIMESTAMP)",
            except_column_list=["at"],
        )
    assert [row.v for row in Table(spark, path).read().collect()] == [3]


def test_an_event_that_python_has_no_time_for_is_named_all_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = spark.sql(
        "SELECT timestamp_micros(253402300800000000) AS k, CAST(NULL AS INT) AS at, 1 AS v"
    )
    with pytest.raises(
        SourceError, match=r"1 of 1 events cannot be applied: k=\+10000-.+ has no sequence"
    ):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), source, keys=["k"], sequence_by="at")


@pytest.mark.minutes
def test_histories_keep_their_sequences_and_refuse_what_does_not_fit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The session's ANSI mode makes no difference."""

    def apply(name: str, at: str, value: str = "5") -> None:
        events = spark.sql(f"SELECT 1 AS k, {value} AS v, {at} AS at")
        deltaweave.apply_changes(
            spark,
            str(tmp_path / name),
            events,
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=2,
        )

    times = ("timestamp_ntz'2026-01-01 10:00:00'", "timestamp_ntz'2026-01-02 00:00:00'")
    apply("times", times[0])
    apply("days", "date'2026-01-01'")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        apply("times", "date'2026-01-02'", "6")
        with pytest.raises(SourceError, match="does not fit the table, whose sequences are date"):
            apply("days", times[0], "6")
        for value in ("5000000000", "'seven'"):
            with pytest.raises(SourceError, match="CAST_"):
                apply("times", times[1], value)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    starts = Table(spark, str(tmp_path / "times")).read().selectExpr("v", "__START_AT", "__END_AT")
    expected = spark.sql(f"SELECT 5, {', '.join(times)} UNION ALL SELECT 6, {times[1]}, NULL")
    assert set(map(tuple, starts.collect())) == set(map(tuple, expected.collect()))


# By how the events' sequences differ from the table's: sequences of rows in the table, oldest
# first, and those of two events that empty it. The first of the two is the greater one in the type
# of the events, the second in that of the table.
EMPTIED_BY: dict[str, tuple[list[str], list[str]]] = {
    "texts of numbers": (["9", "10", "11"], ["'9'", "'10'"]),
    "texts of times with zones": (
        [f"TIMESTAMP'2026-01-01 {time}Z'" for time in ("08:00:00", "09:15:00", "09:30:01")],
        ["'2026-01-01T10:00:00+02:00'", "'2026-01-01T09:30:00Z'"],
    ),
    "structs in another order": (
        [f"named_struct('a', {a}, 'b', {b})" for a, b in ((1, 50), (2, 1), (2, 3))],
        [f"named_struct('b', {b}, 'a', {a})" for a, b in ((1, 90), (2, 2))],
    ),
    "narrower numbers": (["9L", "10L", "11L"], ["9Y", "10Y"]),
}


@pytest.mark.minutes
@pytest.mark.parametrize("of", EMPTIED_BY)
@pytest.mark.parametrize("kind", ["current rows", "merge on read"])
def test_a_table_is_emptied_by_events_with_sequences_of_another_type(
    spark: SparkSession, tmp_path: Path, kind: str, of: str
) -> None:
    arguments: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": "at",
        "apply_as_truncates": "op = 't'",
        "except_column_list": ["at", "op"],
    }
    path, (rows, emptied) = str(tmp_path / "t"), EMPTIED_BY[of]
    table = MergeOnReadTable(spark, path, **arguments)

    def apply(op: str, sequences: list[str]) -> None:
        events = [f"SELECT {k} AS k, {at} AS at, '{op}' AS op" for k, at in enumerate(sequences)]
        source = spark.sql(" UNION ALL ".join(events))
        if kind == "merge on read":
            table.append(source)
        else:
            deltaweave.apply_changes(spark, path, source, **arguments)

    def left() -> list[int]:
        read = table.read() if kind == "merge on read" else Table(spark, path).read()
        return sorted(row.k for row in read.collect())

    apply("u", rows)
    apply("t", emptied)
    assert left() == [2]  # 0 and 1 are not after the second of the two
    if kind == "merge on read":
        table.rematerialize()
        assert left() == [2]
    apply("u", rows)  # late
    assert left() == [2]
