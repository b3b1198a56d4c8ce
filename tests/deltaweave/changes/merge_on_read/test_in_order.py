"""Changes that are newer than all of the base are read by an anti join; others never are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from deltaweave import MergeOnReadTable
from deltaweave.changes.merge_on_read.merged_view import with_other_keys
from deltaweave.errors import StatementError

Rows = list[tuple[Any, ...]]


def table(spark: SparkSession, path: Path, **arguments: Any) -> MergeOnReadTable:
    return MergeOnReadTable(
        spark,
        str(path),
        keys=["k", "name"],
        sequence_by="at",
        apply_as_deletes="op = 'delete'",
        except_column_list=["op", "at"],
        **arguments,
    )


def events(spark: SparkSession, rows: Rows, at_type: str) -> DataFrame:
    made = spark.createDataFrame(rows, "k INT, name STRING, v INT, at STRING, op STRING")
    return made.selectExpr("k", "name", "v", f"CAST(at AS {at_type}) AS at", "op")


def found(read: DataFrame) -> set[tuple[Any, ...]]:
    rows = [tuple(row) for row in read.collect()]
    assert len(rows) == len(set(rows))
    return set(rows)


def scans(read: DataFrame) -> int:
    return str(read._jdf.queryExecution().optimizedPlan().toString()).count("Relation [")


# Logs hold the lowest and highest values of these types, exactly or nearly.
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("at_type", "first", "later"),
    [
        ("INT", "1", "2"),
        ("BIGINT", "1", "9000000000"),
        ("DATE", "2026-01-01", "2026-01-02"),
        ("TIMESTAMP", "2026-01-01 00:00:00.0001", "2026-01-01 00:00:00.0021"),
        ("DECIMAL(38,0)", "20240101000000000001", "20240101000000000002"),
        *[
            pytest.param(*each, marks=pytest.mark.full_matrix)
            for each in (
                ("DECIMAL(38,0)", "1", "99999999999999999999"),
                ("DECIMAL(10,2)", "1", "2"),
            )
        ],
        ("STRING", "2026-01-01 00:00", "2026-01-02 00:00"),
    ],
)
def test_newer_changes_take_the_place_of_rows(
    spark: SparkSession, tmp_path: Path, at_type: str, first: str, later: str
) -> None:
    orders = table(spark, tmp_path / "base")
    orders.append(events(spark, [(k, "x", k, first, "") for k in range(4)], at_type))
    orders.rematerialize()
    changes = [
        (1, "x", 10, later, ""),
        (2, "x", None, later, "delete"),
        (1, "y", 20, later, ""),  # another key, which is new
    ]
    orders.append(events(spark, changes, at_type))
    expected = {
        (0, "x", 0),  # as it was
        (1, "x", 10),  # updated
        (1, "y", 20),  # inserted
        (3, "x", 3),  # as it was
    }
    read = orders.read("anti_join")
    assert found(read) == found(orders.read()) == found(orders.read("full_outer_join")) == expected
    # The base once, the changes' keys and the changes.
    assert scans(read) == scans(orders.read()) == 3
    orders.rematerialize("overwrite")
    assert found(orders.read_optimized()) == expected


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("at_type", "first", "later", "why"),
    [
        ("INT", "2", "2", "one of the same time may be the newer"),
        ("INT", "2", "1", "the change is older"),
        ("TIMESTAMP", "2026-01-01 00:00:00.0002", "2026-01-01 00:00:00.0004", "cut off alike"),
        ("STRING", "a" * 40 + "1", "a" * 40 + "2", "bounds of strings are cut off"),
        ("DECIMAL(38,0)", "20240101000000001", "20240101000000002", "may have been doubles"),
        pytest.param("DOUBLE", "1", "2", "NaN is in no bounds", marks=pytest.mark.full_matrix),
    ],
)
def test_changes_not_newer_by_bounds_are_compared_row_by_row(
    spark: SparkSession, tmp_path: Path, at_type: str, first: str, later: str, why: str
) -> None:
    orders = table(spark, tmp_path / "base")
    orders.append(events(spark, [(1, "x", 10, first, "")], at_type))
    orders.rematerialize()
    orders.append(events(spark, [(1, "x", 20, later, ""), (2, "x", 30, later, "")], at_type))
    with pytest.raises(StatementError, match="newer than all of the base"):
        orders.read("anti_join")
    assert found(orders.read()) == found(orders.read("full_outer_join")), why
    assert scans(orders.read()) > 3, why


@pytest.mark.minutes
def test_a_late_change_among_newer_ones_does_not_undo_a_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders = table(spark, tmp_path / "base")
    orders.append(events(spark, [(1, "x", 10, "5", ""), (2, "x", 20, "5", "")], "INT"))
    orders.rematerialize()
    orders.append(events(spark, [(1, "x", 11, "6", "")], "INT"))
    orders.append(events(spark, [(2, "x", 19, "4", "")], "INT"))  # late, in a batch of its own
    assert found(orders.read()) == {(1, "x", 11), (2, "x", 20)}
    orders.rematerialize()
    # With nothing pending, or a base of nothing, there is nothing to compare.
    assert found(orders.read("anti_join")) == {(1, "x", 11), (2, "x", 20)}
    fresh = table(spark, tmp_path / "fresh")
    fresh.append(events(spark, [(1, "x", 10, "5", "")], "INT"))
    assert found(fresh.read("anti_join")) == {(1, "x", 10)}


@pytest.mark.minutes
def test_events_that_leave_columns_out_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    orders = table(spark, tmp_path / "base", ignore_null_updates=True)
    orders.append(events(spark, [(1, "x", 10, "1", "")], "INT"))
    orders.rematerialize()
    orders.append(events(spark, [(1, "x", None, "2", "")], "INT"))
    with pytest.raises(StatementError, match="whole rows"):
        orders.read("anti_join")
    assert found(orders.read()) == {(1, "x", 10)}


@pytest.mark.parametrize("types", ["a INT, b STRING", "a BIGINT, b DATE", "a DOUBLE, b DOUBLE"])
@pytest.mark.parametrize("broadcasts", [True, False], ids=["broadcast", "shuffled"])
def test_keys_of_several_columns_are_compared_by_each(
    spark: SparkSession, types: str, broadcasts: bool
) -> None:
    b_type = types.split()[-1]
    one, other = (f"CAST('{at}' AS {b_type})" for at in ("2026-01-01", "2026-01-02"))
    if b_type == "DOUBLE":
        one, other = "0.0D", "1.0D"
    a_type = types.split()[1].rstrip(",")
    rows = spark.sql(
        f"SELECT CAST(a AS {a_type}) AS a, b, n FROM VALUES "
        f"(1, {one}, 1), (1, {other}, 2), (2, {one}, 3), (NULL, {one}, 4) AS t(a, b, n)"
    )
    # A double's zeros are one key, whatever their signs.
    minus = "-0.0D" if b_type == "DOUBLE" else one
    known = spark.sql(
        f"SELECT CAST(a AS {a_type}) AS a, b FROM VALUES "
        f"(1, {minus}), (1, {minus}), (NULL, {one}), (3, {other}) AS t(a, b)"
    )
    left = with_other_keys(rows, known, ["a", "b"], broadcasts=broadcasts)
    assert left.columns == ["a", "b", "n"]
    # 1 is known, twice; a null equals nothing.
    assert sorted(row.n for row in left.collect()) == [2, 3, 4]


@pytest.mark.minutes
def test_names_are_no_patterns(spark: SparkSession, tmp_path: Path) -> None:
    spark = spark.newSession()
    orders = MergeOnReadTable(spark, str(tmp_path), keys=["k"], sequence_by="k")
    columns = ["k", "axb", "a.b", "amount (EUR)"]
    orders.append(spark.createDataFrame([(1, 2, 3, 4)], columns))
    orders.rematerialize("overwrite")
    spark.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    assert orders.read_optimized().columns == columns
