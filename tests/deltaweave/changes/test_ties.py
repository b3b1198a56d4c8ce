"""Upserts of a key with the same sequence: the same one wins, in whatever order they come."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.events import SEQUENCE, EventShape, read_events
from deltaweave.errors import SourceError

# Two values of a type; neither must count as the other.
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


@pytest.mark.minutes
def test_a_digest_depends_on_no_column_order_no_new_column_and_no_zone(
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
    one, other = (1, 7, None), (1, None, 7)
    orders = [[[one], [other], [one]], [[other], [one], [other]], [[one, other], [one, other], []]]
    path = str(tmp_path / "t")
    for batches in zip(*orders, strict=True):  # each order is a key
        rows = [(number, *event) for number, batch in enumerate(batches) for event in batch]
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame(rows, "k INT, at INT, v INT, w INT"),
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=kind,  # type: ignore[arg-type]
        )
    found = {row.k: (row.v, row.w) for row in Table(spark, path).read().collect()}
    assert found == dict.fromkeys(range(3), found[0])
    assert found[0] in ((7, None), (None, 7))
    assert Table(spark, path).read().count() == 3


@pytest.mark.minutes
def test_a_source_of_narrower_columns_ties_as_the_table_of_histories_does(
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


PARTIAL_EVENTS = "k INT, v INT, w INT, at INT, set ARRAY<STRING>"
# Events that each set other columns, at 2; the row before them has v = 1 and w = 1.
BEFORE = (1, 1, 1, 1, None)
TIED: dict[str, tuple[list[tuple[Any, ...]], set[tuple[Any, ...]]]] = {
    "two columns": ([(1, 2, None, 2, ["v"]), (1, None, 2, 2, ["w"])], {(2, 2)}),
    "names in other cases": ([(1, 2, None, 2, ["V"]), (1, None, 2, 2, ["W"])], {(2, 2)}),
    "a null that is set": ([(1, None, None, 2, ["v"]), (1, None, 2, 2, ["w"])], {(None, 2)}),
    "one column twice": ([(1, 2, None, 2, ["v"]), (1, 3, None, 2, ["v"])], {(2, 1), (3, 1)}),
    "three, one sets all": (
        [(1, 2, None, 2, ["v"]), (1, None, 2, 2, ["w"]), (1, 3, 3, 2, None)],
        set(itertools.product((2, 3), (2, 3))),  # of each column, the one with the greater digest
    ),
}


def in_orders(events: list[tuple[Any, ...]]) -> list[list[list[tuple[Any, ...]]]]:
    """Return three batches for each order in which tied events and the row before them come."""
    return [[[BEFORE], events[:1], events[1:]], [events[::-1], [BEFORE], events]]


@pytest.mark.minutes
@pytest.mark.parametrize("ignores", [False, pytest.param(True, marks=pytest.mark.minutes)])
def test_tied_events_that_set_different_columns_all_count_in_any_order(
    spark: SparkSession, tmp_path: Path, ignores: bool
) -> None:
    """This holds for tables of rows and of histories."""
    found: dict[str, list[Any]] = {tied: [] for tied in TIED}
    for kind in (1, 2):
        path = str(tmp_path / str(kind))
        for batch in range(3):
            rows = [
                (tied, number, *event)
                for tied, (events, _) in TIED.items()
                for number, batches in enumerate(in_orders(events))
                for event in batches[batch]
            ]
            deltaweave.apply_changes(
                spark,
                path,
                spark.createDataFrame(rows, f"tied STRING, number INT, {PARTIAL_EVENTS}"),
                keys=["tied", "number", "k"],
                sequence_by="at",
                present_columns="set",
                except_column_list=["at"],
                ignore_null_updates=ignores,
                stored_as_scd_type=kind,  # type: ignore[arg-type]
            )
        rows_now = Table(spark, path).read().where("__END_AT IS NULL" if kind == 2 else "true")
        for row in rows_now.collect():
            found[row.tied].append((row.v, row.w))
    for tied, (_, possible) in TIED.items():
        assert len(found[tied]) == 4, tied  # of two orders, in rows and in histories
        assert len(set(found[tied])) == 1, (tied, found[tied])
        assert set(found[tied]) <= possible, (tied, found[tied])


def test_events_that_set_a_missing_column_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    source = spark.createDataFrame([(1, 2, 2, 2, ["v", "x"])], PARTIAL_EVENTS)
    with pytest.raises(SourceError, match=r"k=1 at 2 has the name of a missing column: x"):
        deltaweave.apply_changes(
            spark,
            path,
            source,
            keys=["k"],
            sequence_by="at",
            present_columns="set",
            except_column_list=["at"],
        )
    assert not Table(spark, path).exists()


@pytest.mark.minutes
def test_a_view_takes_columns_that_events_set_in_the_bases_spelling(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = MergeOnReadTable(
        spark,
        str(tmp_path / "base"),
        keys=["k"],
        sequence_by="at",
        present_columns="set",
        except_column_list=["at"],
    )
    table.append(spark.createDataFrame([BEFORE], PARTIAL_EVENTS).withColumnsRenamed({"v": "V"}))
    table.append(spark.createDataFrame([(1, 2, None, 2, ["v"])], PARTIAL_EVENTS))
    for _ in range(2):
        assert [tuple(row) for row in table.read().select("v", "w").collect()] == [(2, 1)]
        table.rematerialize()


@pytest.mark.minutes
def test_remembered_events_are_read_by_the_names_of_their_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    for at, set_, names in [
        (1, None, ("v", "w")),
        (2, ["v"], ("w", "v")),
        (4, ["w"], ("w", "V")),
        (3, ["v"], ("v", "w")),
    ]:
        source = spark.createDataFrame([(1, 10 + at, 20 + at, at, set_)], PARTIAL_EVENTS)
        renamed = source.withColumnsRenamed({name.lower(): name for name in names})
        deltaweave.apply_changes(
            spark,
            path,
            renamed.select("k", *names, "at", "set"),
            keys=["k"],
            sequence_by="at",
            present_columns="set",
            except_column_list=["at"],
            stored_as_scd_type=2,
        )
    versions = Table(spark, path).read().select("v", "w", "__START_AT").orderBy("__START_AT")
    assert [tuple(row) for row in versions.collect()] == [
        (11, 21, 1),
        (12, 21, 2),
        (13, 21, 3),
        (13, 24, 4),
    ]
