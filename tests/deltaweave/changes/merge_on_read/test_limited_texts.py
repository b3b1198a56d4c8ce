"""Conditions on CHAR and VARCHAR columns, whose texts Spark compares as their table pads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave import MergeOnReadTable
from tests.deltaweave.changes.merge_on_read.test_arguments import opened

pytestmark = pytest.mark.minutes

OF_KEYS = ("k = 'a'", "k = 'b'", "k = 'c'", "k IN ('a', 'c   ')", "k <> 'a'", "n = 'x'")
OF_VALUES = ("v = 'new'", "v = 'z  '", "v <> w", "w = 'new'", "p = 'q'", "upper(v) = 'NEW '")
METHODS = ("auto", "full_outer_join", "left_join_anti_join", "double_rank", "anti_join")

Rows = list[tuple[str, ...]]


def found(read: Callable[[str], DataFrame], conditions: Sequence[str]) -> Rows:
    """Return the rows that meet each condition, in one query."""
    each = [read(condition).select(F.lit(condition), "k", "v") for condition in conditions]
    return sorted(tuple(row) for row in reduce(DataFrame.union, each).collect())


def merged(table: MergeOnReadTable, conditions: Sequence[str]) -> Rows:
    """Merge what is pending; return the base's rows that meet each condition."""
    table.rematerialize("merge")
    expected = found(table.read_optimized().where, conditions)
    assert [row[1] for row in expected if row[0] in ("k = 'a'", "k = 'c'")] == ["a    ", "c    "]
    return expected


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> MergeOnReadTable:
    """A table with an update, an insert and a delete that are pending."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}/base` (k CHAR(5) COMMENT 'the key', n VARCHAR(3), "
        "v CHAR(4), w VARCHAR(4), p CHAR(3), _cdc_sequence STRUCT<at: INT, tie: BIGINT>) "
        "USING delta PARTITIONED BY (p)"
    )
    made = opened(
        spark,
        str(tmp_path / "base"),
        keys=["k", "n"],
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"],
    )

    def append(*events: tuple[str, int, str, str]) -> None:
        rows = spark.createDataFrame(list(events), "k STRING, seq INT, v STRING, op STRING")
        made.append(rows.selectExpr("*", "'x' AS n", "v AS w", "'q' AS p"))

    append(("a", 1, "x", "u"), ("b", 1, "y", "u"), ("d", 1, "z", "u"))
    made.rematerialize("merge")
    append(("a", 2, "new", "u"), ("c", 2, "z", "u"), ("b", 2, "y", "d"))
    return made


def test_conditions_of_keys_choose_the_same_changes_as_rows(table: MergeOnReadTable) -> None:
    by_method = {
        method: found(lambda condition, m=method: table.read(m, where=condition), OF_KEYS)
        for method in METHODS
    }
    expected = merged(table, OF_KEYS)
    for method, answer in by_method.items():
        assert answer == expected, method


def test_every_reader_finds_texts_as_the_base_does_after_a_merge(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    conditions, by_reader = OF_KEYS + OF_VALUES, {}
    for method in METHODS:
        read = table.read(method)
        assert read.schema == table.read_optimized().schema, method
        by_reader[method] = found(read.where, conditions)
    table.create_view("of_limited")
    view = "SELECT * FROM of_limited WHERE "
    by_reader["the view"] = found(lambda condition: spark.sql(view + condition), conditions)
    expected = merged(table, conditions)
    for reader, answer in by_reader.items():
        assert answer == expected, reader
