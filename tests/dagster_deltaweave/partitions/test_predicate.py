"""Which rows a partition has: time zones, hours that come twice or never, types, hostile keys."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    asset,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import partition_keys, read_source_partition
from dagster_deltaweave.components.table_component import path_of_partition
from dagster_deltaweave.partitions.predicate import partition_predicate
from deltaweave import Table
from deltaweave.errors import SourceError, StatementError
from tests.dagster_deltaweave.conftest import Run, rows

AssetTable = Callable[[str], Table]

BERLIN, SAO_PAULO = "Europe/Berlin", "America/Sao_Paulo"
OVERWRITE = {"deltaweave/write": "overwrite"}
AUTUMN = HourlyPartitionsDefinition("2024-10-26-00:00", timezone=BERLIN)
SPRING = HourlyPartitionsDefinition("2024-03-30-00:00", timezone=BERLIN)
DAILY = DailyPartitionsDefinition("2024-03-01", timezone=BERLIN)
AT_SIX = DailyPartitionsDefinition("2024-03-01", timezone=BERLIN, hour_offset=6)

HOURS_OF_THE_TURN = [
    "2024-10-26 23:59:59Z",  # 01:59:59, the hour before
    "2024-10-27 00:00:00Z",  # 02:00 for the first time
    "2024-10-27 00:59:59Z",
    "2024-10-27 01:00:00Z",  # 02:00 for the second time
    "2024-10-27 01:59:59Z",
    "2024-10-27 02:00:00Z",  # 03:00
]
FIRST, SECOND = HOURS_OF_THE_TURN[1:3], HOURS_OF_THE_TURN[3:5]


@pytest.fixture
def session_zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    yield lambda zone: spark.conf.set(name, zone)
    spark.conf.set(name, before)


def chosen(
    spark: SparkSession,
    definition: PartitionsDefinition[str],
    keys: list[str],
    kind: str,
    values: list[str],
) -> list[str]:
    """Those of the values, cast to the type, that are rows of the partitions."""
    lines = [(value, value.removesuffix("Z")) for value in values]
    of = "value" if kind == "TIMESTAMP" else "wall"
    table = spark.createDataFrame(lines, "value STRING, wall STRING").selectExpr(
        "value", f"CAST({of} AS {kind}) AS p"
    )
    predicate = partition_predicate(definition, keys, "p", table="t", rows=table)
    return [row.value for row in table.where(predicate).select("value").collect()]


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "Asia/Kolkata"])
def test_a_timestamp_separates_hours_that_come_twice_in_any_time_zone(
    spark: SparkSession, session_zone: Callable[[str], None], zone: str
) -> None:
    session_zone(zone)
    for keys, expected in (
        (["2024-10-27-02:00"], FIRST),
        (["2024-10-27-02:00+0100"], SECOND),
        (["2024-10-27-02:00+0100", "2024-10-27-02:00"], FIRST + SECOND),
        (["2024-10-27-01:00"], HOURS_OF_THE_TURN[:1]),
        (["2024-10-27-03:00", "2024-10-27-01:00"], [HOURS_OF_THE_TURN[0], HOURS_OF_THE_TURN[-1]]),
    ):
        assert chosen(spark, AUTUMN, keys, "TIMESTAMP", HOURS_OF_THE_TURN) == expected, keys
    # In spring the hour from two to three never comes.
    spring = ["2024-03-31 00:00:00Z", "2024-03-31 00:59:59Z", "2024-03-31 01:00:00Z"]
    assert chosen(spark, SPRING, ["2024-03-31-01:00"], "TIMESTAMP", spring) == spring[:2]
    assert chosen(spark, SPRING, ["2024-03-31-03:00"], "TIMESTAMP", spring) == spring[2:]
    # Days of 23 and 25 hours.
    days = ["2024-03-30 22:59:59Z", "2024-03-30 23:00:00Z", "2024-03-31 21:59:59Z"]
    days += ["2024-03-31 22:00:00Z", "2024-10-26 22:00:00Z", "2024-10-27 22:59:59Z"]
    assert chosen(spark, DAILY, ["2024-03-31"], "TIMESTAMP", days) == days[1:3]
    assert chosen(spark, DAILY, ["2024-10-27"], "TIMESTAMP", days) == days[4:]


def test_a_day_that_the_zone_skipped_has_no_rows(spark: SparkSession) -> None:
    """Dagster gives it the window of the next day."""
    days = DailyPartitionsDefinition("2011-12-28", end_date="2012-01-03", timezone="Pacific/Apia")
    for kind in ("DATE", "STRING", "TIMESTAMP_NTZ", "TIMESTAMP"):
        values = ["2011-12-29", "2011-12-31", "2012-01-01"]
        if kind == "TIMESTAMP":
            values = ["2011-12-30 09:59:00Z", "2011-12-30 10:00:00Z", "2011-12-31 10:00:00Z"]
        assert chosen(spark, days, ["2011-12-30"], kind, values) == []
        assert chosen(spark, days, ["2011-12-30", "2011-12-31"], kind, values) == [values[1]]
        assert chosen(spark, days, ["2011-12-29", "2011-12-30"], kind, values) == [values[0]]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
def test_dates_and_wall_clock_times_are_those_of_the_partitions_time_zone(
    spark: SparkSession, session_zone: Callable[[str], None], zone: str
) -> None:
    session_zone(zone)
    no_midnight = DailyPartitionsDefinition("2018-11-01", timezone=SAO_PAULO)
    ntz = "TIMESTAMP_NTZ"
    for definition, keys, kind, values, expected in (
        (DAILY, ["2024-10-27"], "DATE", ["2024-10-26", "2024-10-27", "2024-10-28"], 1),
        (AT_SIX, ["2024-10-27"], "DATE", ["2024-10-26", "2024-10-27", "2024-10-28"], 1),
        (no_midnight, ["2018-11-04"], "DATE", ["2018-11-03", "2018-11-04"], 1),
        (no_midnight, ["2018-11-04"], "STRING", ["2018-11-03", "2018-11-04"], 1),
        (no_midnight, ["2018-11-04"], ntz, ["2018-11-03 23:59", "2018-11-04 01:00"], 1),
        (SPRING, ["2024-03-31-01:00"], ntz, ["2024-03-31 01:59:59", "2024-03-31 03:00"], 0),
        (AUTUMN, ["2024-10-27-01:00"], ntz, ["2024-10-27 01:59:59", "2024-10-27 02:00"], 0),
        # Both hours of one name together.
        (
            AUTUMN,
            ["2024-10-27-02:00", "2024-10-27-02:00+0100"],
            ntz,
            ["2024-10-27 01:59", "2024-10-27 02:30", "2024-10-27 03:00"],
            1,
        ),
        (DAILY, ["2024-10-27"], ntz, ["2024-10-27 02:30", "2024-10-28 00:00"], 0),
    ):
        found = chosen(spark, definition, keys, kind, values)
        assert found == [values[expected]], (definition, keys, kind)


@pytest.mark.parametrize(
    ("key", "kind", "problem"),
    [
        ("2024-10-27-02:00", "TIMESTAMP_NTZ", "one of the partition's comes twice"),
        ("2024-10-27-02:00+0100", "TIMESTAMP_NTZ", "one of the partition's comes twice"),
        ("2024-10-27-05:00", "DATE", "a partition is a part of one"),
        ("2024-10-26-23:00", "DATE", "a partition is a part of one"),
    ],
)
def test_a_type_that_cannot_separate_a_partitions_rows_is_refused(
    spark: SparkSession, key: str, kind: str, problem: str
) -> None:
    with pytest.raises(StatementError, match=problem):
        chosen(spark, AUTUMN, [key], kind, ["2024-10-27"])


@pytest.mark.minutes
def test_strings_are_keys_or_times_and_never_those_of_other_partitions(
    spark: SparkSession,
) -> None:
    hours = ["2024-10-26-22:00", "2024-10-26-23:00", "2024-10-27-00:00", "2024-10-27-02:00"]
    hours += ["2024-10-27-02:00+0100", "2024-10-26 23:30:00", "2024-10-27 00:00:00"]
    months = MonthlyPartitionsDefinition("2024-01", fmt="%Y-%m")
    days_first = DailyPartitionsDefinition("2024-01-01", fmt="%Y-%d-%m")
    daily = ["2024-05-01", "2024-05-01 13:00:00", "2024-05-02"]
    minutes = ["2024-10-27 05:00", "2024-10-27 05:00:00", "2024-10-27 05:59", "2024-10-27 06:00"]
    iso = ["2024-10-27T05:00", "2024-10-27T05:37:12", "2024-10-27T05:37:12.5", "2024-10-27T06:00"]
    iso += ["2024-10-27T05:00:00+00:00", "2024-10-27T05:00:00+01:00"]
    in_utc = HourlyPartitionsDefinition("2024-10-26-00:00")
    spaced = HourlyPartitionsDefinition("2024-10-26 00", timezone=BERLIN, fmt="%Y-%m-%d %H")
    of_spaced = ["2024-10-27 05", "2024-10-27 05:00", "2024-10-27 05:37:12", "2024-10-27 06"]
    turn = ["2024-10-27 02", "2024-10-27 02+0100", "2024-10-27 03", "2024-10-27 03:00"]
    for definition, key, values, expected in (
        (AUTUMN, "2024-10-26-23:00", hours, [1, 5]),  # a text of that day has a greater key
        (AUTUMN, "2024-10-27-00:00", hours, [2, 6]),
        (AUTUMN, "2024-10-27-02:00", hours, [3]),
        (AUTUMN, "2024-10-27-02:00+0100", hours, [4]),
        (AUTUMN, "2024-10-27-05:00", minutes, [0, 1, 2]),
        (AUTUMN, "2024-10-27-06:00", minutes, [3]),
        # ISO 8601; a text that names a zone is of no partition, except UTC in partitions of UTC.
        (AUTUMN, "2024-10-27-05:00", iso, [0, 1, 2]),
        (AUTUMN, "2024-10-27-06:00", iso, [3]),
        (in_utc, "2024-10-27-05:00", iso, [0, 1, 2, 4]),
        (AT_SIX, "2024-10-26", iso, [0, 1, 2]),
        (spaced, "2024-10-27 05", of_spaced, [0, 1, 2]),
        (spaced, "2024-10-27 02", turn, [0]),  # in which no text is a time that comes twice
        (DAILY, "2024-05-01", daily, [0, 1]),
        (AT_SIX, "2024-05-01", [*daily, "2024-05-02 05:00:00"], [0, 1, 3]),
        (months, "2024-05", ["2024-05", "2024-05-17", "2024-06", "2024-06-01"], [0, 1]),
        (days_first, "2024-02-01", ["2024-02-01", "2024-01-02"], [0]),  # 2 January
    ):  # fmt: skip
        found = chosen(spark, definition, [key], "STRING", values)
        assert found == [values[place] for place in expected], (key, found)


DATED = ["%Y-%m-%d", "%Y-%d-%m", "%Y-%m-%j", "%Y-%m-%d ", "%Y%m%d"]
HOURS = ["%Y-%m-%d %H", "%Y-%m-%d h%H", "%Y-%m-%d %I %p", "%Y-%m-%d-%H", "%Y-%m-%d%H"]
HOURS += ["%Y-%m-%dT%H", "%Y-%d-%m%H", "%Y-%m-%j %H", "%y%m-%d-%H", "%d.%m.%Y %H"]
MINUTES = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H%M", "%Y-%m-%d %H-%M"]
MINUTES += ["%Y-%m-%d %I:%M %p", "%Y-%m-%d-%H:%M", "%Y-%d-%m %H:%M", "%H:%M %Y-%m-%d"]
MINUTES += ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H%M", "%Y-%m-%dT%I:%M %p", "%Y-%d-%mT%H:%M"]
FORMATS_OF = {
    "0 * * * *": HOURS + MINUTES,
    "30 * * * *": HOURS + MINUTES,
    "*/15 * * * *": MINUTES,
    "0 0 * * *": DATED + HOURS + MINUTES,
    "0 6 * * *": DATED + HOURS + MINUTES,
    "30 6 * * *": DATED + HOURS + MINUTES,
}
KEYS_ALONE = {
    *(("%Y-%m-%d %I:%M %p", " "), ("%Y-%d-%m %H:%M", " ")),
    *(("%Y-%m-%dT%I:%M %p", "T"), ("%Y-%d-%mT%H:%M", "T")),
}
"""Formats whose keys look like texts of times with this separator, and sort otherwise."""


@pytest.mark.minutes
@pytest.mark.parametrize("schedule", FORMATS_OF)
def test_a_key_of_any_format_is_in_its_own_partition_alone(
    spark: SparkSession, schedule: str
) -> None:
    """And so is a text of a time, as far as keys can be distinguished from times."""
    begin, end = datetime(2024, 1, 31, 20), datetime(2024, 2, 2, 2)
    if schedule.endswith("* * * *"):
        moments = [begin + timedelta(minutes=15) * n for n in range(30 * 4)]
    else:
        begin, end = datetime(2024, 1, 1), datetime(2024, 2, 13)
        moments = [begin + timedelta(hours=6, minutes=15) * n for n in range(4 * 44)]
    spelt = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"]
    times = {at.strftime(each): at for at in moments for each in spelt}
    if schedule.startswith("0"):
        times |= {f"{at:%Y-%m-%d %H}": at for at in moments if not at.minute}
    for fmt in FORMATS_OF[schedule]:
        definition = TimeWindowPartitionsDefinition(begin, fmt, end=end, cron_schedule=schedule)
        windows = {
            key: [each.replace(tzinfo=None) for each in (window.start, window.end)]
            for key in definition.get_partition_keys()
            for window in [definition.time_window_for_partition_key(key)]
        }
        of_day = [key for key, (start, _) in windows.items() if start.date() == date(2024, 2, 1)]
        table = spark.createDataFrame([(text,) for text in {*windows, *times}], "p STRING")
        of_keys = [
            partition_predicate(definition, keys, "p", table="t", rows=table)
            for keys in (*([key] for key in windows), of_day, [*windows])
        ]
        found = table.selectExpr("p", *(f"{each} AS k{n}" for n, each in enumerate(of_keys)))
        for text, *is_in, is_in_day, is_in_any in found.collect():
            those = [key for key, there in zip(windows, is_in, strict=True) if there]
            assert is_in_any == bool(those), (fmt, text)
            assert is_in_day == any(key in of_day for key in those), (fmt, text)
            if text in windows:
                assert those == [text], (fmt, text)
            elif those or (":" in text and (fmt, text[10]) not in KEYS_ALONE):
                at = times[text]
                of_time = [key for key, (start, end) in windows.items() if start <= at < end]
                assert those == of_time, (fmt, text)


@pytest.mark.parametrize("key", ["2024-10-27-02:00", "2024-10-27-02:00+0100"])
def test_texts_of_an_ambiguous_time_are_refused_and_keys_alone_are_not(
    spark: SparkSession, key: str
) -> None:
    """A time is ambiguous in the hour that a clock shows twice when it is set back."""
    keys = ["2024-10-27-02:00", "2024-10-27-02:00+0100", "2024-10-27 01:59:59"]
    assert chosen(spark, AUTUMN, [key], "STRING", [*keys, "2024-10-27 03:00"]) == [key]
    for text in ("2024-10-27 02:30", "2024-10-27T02:30"):
        with pytest.raises(StatementError, match="one of the partition's comes twice"):
            chosen(spark, AUTUMN, [key], "STRING", [*keys, text])


def test_other_types_are_compared_with_the_keys(spark: SparkSession) -> None:
    days = DailyPartitionsDefinition("20240101", fmt="%Y%m%d")
    assert chosen(spark, days, ["20240502"], "INT", ["20240501", "20240502"]) == ["20240502"]


def test_the_partition_of_nulls_has_the_rows_without_a_value(spark: SparkSession) -> None:
    """Its key is the one in the names of Hive's directories, as the table sensor requests it."""
    regions = StaticPartitionsDefinition(["north", "__HIVE_DEFAULT_PARTITION__"])
    table = spark.createDataFrame([("north",), ("south",), (None,)], "region STRING")
    found = {}
    for keys in (["north"], ["__HIVE_DEFAULT_PARTITION__"], regions.get_partition_keys()):
        condition = partition_predicate(regions, keys, "region", table="t", rows=table)
        found[len(keys), keys[-1]] = [row[0] for row in table.where(condition).collect()]
        others = table.where(f"NOT coalesce({condition}, false)").count()
        assert others == 3 - len(found[len(keys), keys[-1]])
    assert [*found.values()] == [["north"], [None], ["north", None]]


@pytest.mark.minutes
def test_an_hour_that_comes_twice_is_replaced_by_itself(
    spark: SparkSession, run: Run, table: AssetTable, session_zone: Callable[[str], None]
) -> None:
    session_zone("America/New_York")
    starts = {
        "2024-10-27-02:00": "2024-10-27 00:30:00Z",
        "2024-10-27-02:00+0100": "2024-10-27 01:30:00Z",
    }
    value = {"n": 1}

    @asset(partitions_def=AUTUMN, metadata={**OVERWRITE, "partition_expr": "at"})
    def hours(context: AssetExecutionContext) -> DataFrame:
        return spark.sql(
            f"SELECT TIMESTAMP'{starts[context.partition_key]}' AS at, {value['n']} AS n"
        )

    for key in starts:
        run(hours, partition=key)
    value["n"] = 2
    run(hours, partition="2024-10-27-02:00")

    found = table("hours").read().selectExpr("unix_seconds(at) % 7200 AS s", "n").collect()
    assert sorted(map(tuple, found)) == [(1800, 2), (5400, 1)]


@pytest.mark.minutes
def test_an_overwrite_of_a_day_that_the_zone_skipped_replaces_nothing(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    of_zone = DailyPartitionsDefinition(
        "2011-12-28", end_date="2012-01-03", timezone="Pacific/Apia"
    )

    @asset(partitions_def=of_zone, metadata={**OVERWRITE, "partition_expr": "day"})
    def days(context: AssetExecutionContext) -> DataFrame:
        key = context.partition_key
        return spark.sql(f"SELECT DATE'{key}' AS day").where(f"'{key}' <> '2011-12-30'")

    for key in ("2011-12-31", "2011-12-30"):
        run(days, partition=key)
    assert [str(day) for (day,) in rows(table("days"))] == ["2011-12-31"]


HOSTILE = [
    "a' OR '1'='1",
    "a\\' OR 1=1 --",
    "\\",
    "'",
    "`a`",
    "${x}",
    "a\nb",
    "%_",
    "é\U0001f600",
    "a@b#c→d",
]


@pytest.mark.minutes
def test_keys_are_text_whatever_they_hold(
    spark: SparkSession, run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    names = DynamicPartitionsDefinition(name="names")
    instance.add_dynamic_partitions("names", HOSTILE)

    @asset(
        partitions_def=names,
        metadata={**OVERWRITE, "partition_expr": "who", "deltaweave/partition_by": ["who"]},
    )
    def people(context: AssetExecutionContext) -> Any:
        lines = [(key, len(context.partition_keys)) for key in context.partition_keys]
        return spark.createDataFrame(lines, "who STRING, n INT")

    run(people, tags={
        "dagster/asset_partition_range_start": HOSTILE[0],
        "dagster/asset_partition_range_end": HOSTILE[-1],
    })  # fmt: skip
    assert len(rows(table("people"))) == len(HOSTILE)
    for key in HOSTILE[:3]:
        run(people, partition=key)

    assert dict(rows(table("people"))) == {key: 1 if key in HOSTILE[:3] else 10 for key in HOSTILE}


def test_multi_partitions_of_a_range_are_one_condition(spark: SparkSession) -> None:
    letters, numbers = (
        StaticPartitionsDefinition(["a", "b"]),
        StaticPartitionsDefinition(["1", "2"]),
    )
    both = MultiPartitionsDefinition({"letter": letters, "number": numbers})
    cells = [(letter, number) for letter in "abc" for number in "12"]
    table = spark.createDataFrame(cells, "letter STRING, number STRING")
    expressions = {"letter": "letter", "number": "number"}
    for keys, conditions in (["a|1", "a|2", "b|1", "b|2"], 1), (["a|1", "a|2", "b|2"], 2):
        predicate = partition_predicate(both, keys, expressions, table="t", rows=table)
        assert predicate.count(" AND ") == conditions
        assert ["|".join(row) for row in table.where(predicate).collect()] == keys


@pytest.mark.minutes
def test_multi_partitions_with_a_dynamic_dimension_are_replaced(
    spark: SparkSession, run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    """Runs replace partitions one by one and in ranges."""
    regions = DynamicPartitionsDefinition(name="regions")
    instance.add_dynamic_partitions("regions", ["eu", "us"])
    days = StaticPartitionsDefinition(["mon", "tue"])
    both = MultiPartitionsDefinition({"day": days, "region": regions})

    @asset(
        partitions_def=both,
        metadata={**OVERWRITE, "partition_expr": {"day": "day", "region": "region"}},
    )
    def sales(context: AssetExecutionContext) -> DataFrame:
        lines = [tuple(key.split("|")) for key in partition_keys(context)]
        return spark.createDataFrame(
            [(*line, len(lines)) for line in lines], "day STRING, region STRING, n INT"
        )

    @asset(partitions_def=both)
    def reader(context: AssetExecutionContext, sales: DataFrame) -> None:
        read.append(sorted(tuple(row) for row in sales.collect()))

    read: list[Any] = []
    run(sales, tags={
        "dagster/asset_partition_range_start": "mon|eu",
        "dagster/asset_partition_range_end": "tue|us",
    })  # fmt: skip
    run(sales, reader, partition=MultiPartitionKey({"day": "tue", "region": "us"}))
    run(sales, tags={"deltaweave/partitions": "mon|eu, tue|eu"})

    assert rows(table("sales")) == [
        ("mon", "eu", 2),
        ("mon", "us", 4),
        ("tue", "eu", 2),
        ("tue", "us", 1),
    ]
    assert read == [[("tue", "us", 1)]]
    assert len(instance.get_materialized_partitions(AssetKey("sales"))) == 4


@pytest.mark.parametrize("key", ["*", "[ab]", "{a,b}", "a?", "a,b", "a\\b", "2026/01", "a b%é"])
def test_a_path_with_a_partition_in_it_is_no_pattern(
    spark: SparkSession, tmp_path: Path, key: str
) -> None:
    for name, n in ((key, 1), ("ab", 2), ("a", 3)):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": [n]}), tmp_path / name / "part.parquet")

    of_component = spark.read.parquet(path_of_partition(f"{tmp_path}/{{partition}}", key))
    landed = read_source_partition(spark, str(tmp_path / key), schema="n BIGINT", table="t")

    assert [row.n for row in of_component.collect()] == [1]
    assert [row.n for row in landed.collect()] == [1]


@pytest.mark.parametrize("key", ["../x", "..", "a/../b", "/etc", ""])
def test_a_key_that_leads_out_of_the_source_is_refused(key: str) -> None:
    with pytest.raises(SourceError, match="leads to another directory"):
        path_of_partition("/landing/{partition}", key)


def test_a_key_is_no_pattern_to_a_component_that_reads_delta_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("a*b", "axb"):
        spark.range(len(name)).write.format("delta").save(str(tmp_path / name))
    path = path_of_partition(f"{tmp_path}/{{partition}}", "a*b", is_pattern=False)
    assert path == f"{tmp_path}/a*b"
    assert spark.read.format("delta").load([path]).count() == 3
