"""Keys of 5 to 14 October 1582, which Spark's dates have and `java.sql.Date` lacks.

Spark passes dates to Parquet's filters as `java.sql.Date`, where each of these days is the 15th. A
scan with such a filter skips row groups that hold the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
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
