"""Upserts of a key with the same sequence: the same one wins, in whatever order they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import deltaweave
from deltaweave import Table
from deltaweave.changes.events import SEQUENCE, EventShape, read_events

# Two values of a type, of which neither must count as the other.
DIFFERENT = {
    "nulls of columns": ("a INT, b INT", "1, NULL", "NULL, 1"),
    "nulls in a struct": (
        "a STRUCT<x: INT, y: INT>",
        "named_struct('x', 1, 'y', CAST(NULL AS INT))",
        "named_struct('x', CAST(NULL AS INT), 'y', 1)",
    ),
    "a struct of nulls": (
        "a STRUCT<x: INT>",
        "named_struct('x', CAST(NULL AS INT))",
        "CAST(NULL AS STRUCT<x: INT>)",
    ),
    "nulls in an array": ("a ARRAY<INT>", "array(1, NULL)", "array(NULL, 1)"),
    "a null in an array": ("a ARRAY<INT>", "array(1, NULL)", "array(1)"),
    "no array": ("a ARRAY<INT>", "array()", "NULL"),
    "nested arrays": (
        "a ARRAY<ARRAY<INT>>",
        "array(array(1), array(2))",
        "array(array(1, 2))",
    ),
    "structs of arrays": (
        "a STRUCT<x: ARRAY<INT>, y: ARRAY<INT>>",
        "named_struct('x', array(1), 'y', array(2))",
        "named_struct('x', array(1, 2), 'y', CAST(array() AS ARRAY<INT>))",
    ),
    "strings side by side": ("a STRING, b STRING", "'ab', 'c'", "'a', 'bc'"),
    "no string": ("a STRING", "''", "NULL"),
    "cases": ("a STRING", "'A'", "'a'"),
    "a null in a map": ("a MAP<STRING, INT>", "map('x', NULL)", "map()"),
    "keys and values": (
        "a MAP<STRING, STRING>",
        "map('x', 'y', 'z', 'w')",
        "map('x', 'w', 'z', 'y')",
    ),
    "microseconds in a map": (
        "a MAP<STRING, TIMESTAMP>",
        "map('x', TIMESTAMP '2026-01-01 00:00:00.000001')",
        "map('x', TIMESTAMP '2026-01-01 00:00:00.000002')",
    ),
    "variants": ("a VARIANT", """parse_json('{"x": null}')""", "parse_json('{}')"),
    "zeros": ("a DOUBLE", "0.0D", "-0.0D"),
}
SAME = {
    "not a number": ("a DOUBLE", "double('NaN')", "double('NaN')"),
    "order of a map": ("a MAP<STRING, INT>", "map('x', 1, 'y', 2)", "map('y', 2, 'x', 1)"),
}


def digests(spark: SparkSession, schema: str, *said: str) -> list[int]:
    """The ties of events that say so."""
    wanted = StructType.fromDDL(schema)
    assert isinstance(wanted, StructType)
    names = wanted.names
    rows = " UNION ALL ".join(f"SELECT 1, {n}, {values}" for n, values in enumerate(said))
    source = spark.createDataFrame([], f"k INT, n INT, {schema}").union(spark.sql(rows))
    shape = EventShape(
        keys=("k",), sequence_by=F.lit(1), deletes=None, truncates=None, columns=tuple(names)
    )
    events = read_events(source, shape, table="t")
    found = [row.tie for row in events.rows.select(F.col(SEQUENCE)["tie"].alias("tie")).collect()]
    events.rows.unpersist()
    return found


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_events_have_different_digests(spark: SparkSession, what: str) -> None:
    one, other = digests(spark, *DIFFERENT[what])
    assert one != other


@pytest.mark.parametrize("what", SAME)
def test_equal_events_have_the_same_digest(spark: SparkSession, what: str) -> None:
    one, other = digests(spark, *SAME[what])
    assert one == other


def test_a_digest_depends_on_no_order_of_columns_nor_on_a_column_that_is_added_nor_on_a_zone(
    spark: SparkSession,
) -> None:
    at = "TIMESTAMP '2026-07-01 12:00:00 UTC'"
    [one] = digests(spark, "a INT, b MAP<STRING, TIMESTAMP>", f"1, map('x', {at})")
    [turned] = digests(spark, "b MAP<STRING, TIMESTAMP>, a INT", f"map('x', {at}), 1")
    [wider] = digests(
        spark, "a BIGINT, b MAP<STRING, TIMESTAMP>, aa INT", f"1, map('x', {at}), NULL"
    )
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "America/New_York")
    [there] = digests(elsewhere, "a INT, b MAP<STRING, TIMESTAMP>", f"1, map('x', {at})")
    assert one == turned == wider == there


@pytest.mark.minutes
@pytest.mark.parametrize("kind", [1, 2])
def test_of_tied_events_with_nulls_the_same_one_wins_in_any_order(
    spark: SparkSession, tmp_path: Path, kind: int
) -> None:
    one, other = (1, 1, 7, None), (1, 1, None, 7)
    found: list[Any] = []
    for number, batches in enumerate([[[one], [other]], [[other], [one]], [[one, other]]]):
        path = str(tmp_path / str(number))
        for rows in [*batches, batches[0]]:
            source = spark.createDataFrame(rows, "k INT, at INT, v INT, w INT")
            deltaweave.apply_changes(
                spark,
                path,
                source,
                keys=["k"],
                sequence_by="at",
                except_column_list=["at"],
                stored_as_scd_type=kind,  # type: ignore[arg-type]
            )
        found.append([tuple(row) for row in Table(spark, path).read().select("v", "w").collect()])
    assert found[0] == found[1] == found[2]
    assert found[0] in ([(7, None)], [(None, 7)])


@pytest.mark.minutes
def test_a_source_of_narrower_columns_than_the_table_of_histories_ties_as_the_table_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    found = []
    Table(spark, path).create_if_missing("k INT, v DOUBLE, __START_AT INT, __END_AT INT")
    for _ in range(2):
        for v in (0.1, 0.2, 0.3, 0.1):
            source = spark.createDataFrame([(1, 1, v)], "k INT, at INT, v FLOAT")
            deltaweave.apply_changes(
                spark,
                path,
                source,
                keys=["k"],
                sequence_by="at",
                except_column_list=["at"],
                stored_as_scd_type=2,
            )
        found.append(Table(spark, path).read().select("v").collect())
    assert found[0] == found[1]
