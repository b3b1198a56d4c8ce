"""Keys of 5 to 14 October 1582, which Spark's dates have and `java.sql.Date` lacks.

Spark passes dates to Parquet's filters as `java.sql.Date`, where each of these days is the 15th. A
scan with such a filter skips row groups that hold the row. So it is with a day that the time zone
of the JVM skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave.delta.statement import days_skipped_by_zone
from deltaweave.delta.statement.lost_days import skipped_midnights
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.support.settings import configured

DAYS = ("1582-10-04", "1582-10-05", "1582-10-10", "1582-10-14", "1582-10-15")
ALL = range(len(DAYS))
LISTED = ", ".join(f"DATE'{day}'" for day in DAYS)
INSERT = "WHEN NOT MATCHED THEN INSERT (k, d, v) VALUES (s.k, s.d, s.v)"
UPSERT = f"WHEN MATCHED THEN UPDATE SET v = s.v {INSERT}"
BY_SPARK = {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"}
TIMES_IN_MICROS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


@dataclass(frozen=True)
class Way:
    """How a merge finds and writes rows."""

    vectors: bool
    conf: Mapping[str, str]
    clauses: str = UPSERT


WAYS = {
    "vectors": Way(True, BY_SPARK),
    "insert_only": Way(False, BY_SPARK, INSERT),
    "copies": Way(False, BY_SPARK),
    "in_place": Way(False, {**BY_SPARK, REWRITE_IN_PLACE: "true"}),
    "driver": Way(True, {ON_DRIVER: "true"}),
}


@dataclass(frozen=True)
class Asked:
    """What ON asks for.

    Attributes:
        on: The ON condition.
        rows: The places of the target's rows that match. The source has these rows alone.
        source: The source, over `days` (dates as dates) and `texts` (as text).
    """

    on: str
    rows: Sequence[int]
    source: str = "SELECT k, d, {v} AS v FROM {days} WHERE k IN ({rows})"


ASKED = {
    "a literal": [Asked(f"t.k = s.k AND t.d = DATE'{DAYS[i]}'", [i]) for i in ALL],
    "conditions": [
        Asked("t.k = s.k AND t.d = make_date(1582, 10, 10)", [2]),
        Asked(f"t.k = s.k AND t.d IN ({LISTED})", ALL),
        Asked("t.k = s.k AND t.d BETWEEN DATE'1582-10-05' AND DATE'1582-10-14'", [1, 2, 3]),
        Asked("t.k = s.k AND t.d > DATE'1582-10-06'", [2, 3, 4]),
        # As java.sql.Date, it is the 15th.
        Asked("t.k = s.k AND t.d <> DATE'1582-10-14'", [0, 1, 2, 4]),
        Asked("t.k = s.k AND t.at = TIMESTAMP'1582-10-10 12:00:00'", [2]),
        Asked("t.k = s.k AND t.inner.d >= DATE'1582-10-14'", [3, 4]),
    ],
    "the source": [
        Asked("t.d = s.d", ALL),
        Asked("t.d = s.d", [2], "SELECT 2 AS k, DATE'1582-10-10' AS d, {v} AS v"),
        Asked("t.k = s.k AND s.d = DATE'1582-10-10'", [2]),
        Asked(
            "t.d = s.d",
            [1],
            "SELECT k, CAST(d AS DATE) AS d, {v} AS v FROM {texts} "
            "WHERE CAST(d AS DATE) = (SELECT min(CAST(d AS DATE)) FROM {texts} WHERE k > 0)",
        ),
    ],
}


# Vectors are asked for all, each other way by turns.
TELLING = [
    *[("vectors", what) for what in ASKED],
    ("insert_only", "the source"),
    ("copies", "conditions"),
    ("in_place", "a literal"),
    ("driver", "conditions"),
    ("driver", "the source"),
]


def ways_and_asked() -> Iterator[Any]:
    for name, way in WAYS.items():
        for what, asked in ASKED.items():
            mark = pytest.mark.minutes if (name, what) in TELLING else pytest.mark.full_matrix
            yield pytest.param(way, asked, id=f"{name}-{what}", marks=mark)


@pytest.mark.parametrize(("way", "asked"), list(ways_and_asked()))
def test_days_that_java_lacks_are_found(
    spark: SparkSession, tmp_path: Path, way: Way, asked: list[Asked]
) -> None:
    names = {name: f"delta.`{tmp_path / name}`" for name in ("target", "days", "texts")}
    write_days(spark, names, vectors=way.vectors)
    expected = dict.fromkeys(ALL, 0)
    for v, each in enumerate(asked, start=1):
        rows = ", ".join(map(str, each.rows))
        source = each.source.format(**names, rows=rows, v=v)
        with configured(spark, dict(way.conf)):
            deltaweave.merge(
                spark,
                f"MERGE INTO {names['target']} t USING ({source}) s ON {each.on} {way.clauses}",
            )
        if way.clauses == UPSERT:
            expected |= dict.fromkeys(each.rows, v)
        found = spark.sql(f"SELECT k, v FROM {names['target']}").collect()
        assert sorted(map(tuple, found)) == sorted(expected.items()), each


# Days that a zone passed over, as it changed sides of the date line.
SKIPPED = {
    "Pacific/Apia": date(2011, 12, 30),
    "Pacific/Kwajalein": date(1993, 8, 21),
    "Pacific/Kiritimati": date(1994, 12, 31),
}
AFTER = range(1, 13)  # the day that was skipped, and eleven more: too many to be pushed one by one
ASKED_OF_ZONES = [
    Asked("t.d = s.d", [1]),
    Asked("t.d = s.d AND t.v >= 0", AFTER),
    Asked("t.d = s.d", [1], "SELECT 1 AS k, DATE'{day}' AS d, {v} AS v"),
    Asked("t.k = s.k AND t.d = DATE'{day}'", [1]),
    Asked("t.k = s.k AND t.inner.d >= DATE'{day}'", AFTER),
]


@pytest.mark.minutes
@pytest.mark.parametrize("zone", SKIPPED)
@pytest.mark.parametrize("way", ["vectors", "insert_only", "driver"])
def test_days_that_the_zone_of_the_jvm_skipped_are_found(
    spark: SparkSession, tmp_path: Path, way: str, zone: str
) -> None:
    day, (target, days) = SKIPPED[zone], (f"delta.`{tmp_path / name}`" for name in ("t", "days"))
    numbered = f"SELECT INT(id) AS k, date_add(DATE'{day}', INT(id) - 1) AS d FROM range(13)"
    spark.sql(f"CREATE TABLE {days} USING delta AS {numbered}")
    vectors = str(WAYS[way].vectors).lower()
    spark.sql(
        f"CREATE TABLE {target} (k INT, d DATE, v INT, inner STRUCT<d: DATE>) USING delta "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')"
    )
    for rows in ("k = 1", "k <> 1"):  # the skipped day in a file of its own
        spark.sql(
            f"INSERT INTO {target} SELECT /*+ COALESCE(1) */ k, d, 0, struct(d) FROM {days} "
            f"WHERE {rows}"
        )
    expected = dict.fromkeys(range(13), 0)
    with jvm_in(spark, zone), configured(spark, dict(WAYS[way].conf)):
        for v, each in enumerate(ASKED_OF_ZONES, start=1):
            rows = ", ".join(map(str, each.rows))
            source = each.source.format(days=days, rows=rows, v=v, day=day)
            deltaweave.merge(
                spark,
                f"MERGE INTO {target} t USING ({source}) s ON {each.on.format(day=day)} "
                f"{WAYS[way].clauses}",
            )
            if WAYS[way].clauses == UPSERT:
                expected |= dict.fromkeys(each.rows, v)
            found = spark.sql(f"SELECT k, v FROM {target}").collect()
            assert sorted(map(tuple, found)) == sorted(expected.items()), each


@contextmanager
def jvm_in(spark: SparkSession, zone: str) -> Iterator[None]:
    """Make a time zone the JVM's default, as TZ does when it starts."""
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


def test_which_days_the_zone_of_the_jvm_skipped(spark: SparkSession) -> None:
    for zone in (*SKIPPED, "UTC", "GMT+05:30", "Europe/Berlin", "America/Sao_Paulo"):
        with jvm_in(spark, zone):
            skipped = days_skipped_by_zone(spark)
        assert skipped == {SKIPPED[each] for each in SKIPPED if each == zone}, zone


def test_which_midnights_are_in_a_gap_of_a_zone() -> None:
    """Read by Python 3.10, too."""
    gaps = (
        "1916-05-21T02:00Z to +01:00",
        "1941-01-01T00:00Z to +02:00",
        "2011-12-30T00:00-10:00 to +14:00",
    )
    printed = f"[{', '.join(f'Transition[Gap at {gap}]' for gap in gaps)}]"
    found = list(skipped_midnights(printed))
    assert found == [date(1941, 1, 1), date(2011, 12, 30)]


def write_days(spark: SparkSession, names: Mapping[str, str], *, vectors: bool) -> None:
    """Write tables of the days, numbered from 0, each in a file of its own, with v = 0."""
    values = ", ".join(f"({place}, '{day}')" for place, day in enumerate(DAYS))
    spark.sql(f"SELECT * FROM VALUES {values} AS t(k, d)").write.format("delta").save(
        names["texts"].split("`")[1]
    )
    columns = "k, CAST(d AS DATE) AS d"
    for name, further in (
        ("days", ""),
        (
            "target",
            ", 0 AS v, CAST(concat(d, ' 12:00:00') AS TIMESTAMP) AS at, "
            "named_struct('d', CAST(d AS DATE)) AS inner",
        ),
    ):
        with configured(spark, TIMES_IN_MICROS):
            spark.sql(
                f"CREATE TABLE {names[name]} USING delta "
                f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(vectors).lower()}') "
                f"AS SELECT /*+ REPARTITION_BY_RANGE(5, k) */ {columns}{further} "
                f"FROM {names['texts']}"
            )
