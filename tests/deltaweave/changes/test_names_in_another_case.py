"""Columns that the declaration, the events or the table spell in another case than the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.parametrize("upper", ["declaration", "events", "table"]),
]

Event = tuple[int, str, int | None, int | None, int, str, list[str] | None]


def spelled(names: str, part: str, upper: str) -> list[str]:
    return (names.upper() if part == upper else names).split()


def arguments(part: str, upper: str) -> dict[str, Any]:
    *keys, at, op, said = spelled("k l at op said", part, upper)
    return {
        "keys": keys,
        "sequence_by": at,
        "apply_as_deletes": f"{op} = 'd'",
        "except_column_list": [at, op, said],
    }


def frame(spark: SparkSession, events: Sequence[Event], part: str, upper: str) -> DataFrame:
    schema = "k INT, l STRING, v INT, w INT, at INT, op STRING, said ARRAY<STRING>"
    made = spark.createDataFrame(events, schema)
    return made.toDF(*spelled(" ".join(made.columns), part, upper))


def check(rows: DataFrame, expected: set[tuple[Any, ...]], upper: str) -> None:
    columns = [name for name in rows.columns if not name.startswith("_")]
    assert columns == spelled("k l v w", "table", upper)
    found = [tuple(row) for row in rows.select("k", "l", "v", "w").collect()]
    assert len(found) == len(expected)
    assert set(found) == expected


FIRST: list[Event] = [
    (1, "x", 10, 10, 1, "", None),
    (2, "x", 20, 20, 1, "", None),
    (3, "x", 30, 30, 1, "", None),
]


def test_current_rows_take_names_in_another_case(
    spark: SparkSession, tmp_path: Path, upper: str
) -> None:
    path = str(tmp_path / "t")
    later: list[list[Event]] = [
        [(1, "x", 11, 0, 3, "", ["v"]), (2, "x", None, None, 3, "d", None)],
        [(1, "x", 0, 12, 2, "", ["W"]), (2, "x", 21, 21, 2, "", None)],
        [(4, "x", 40, 40, 2, "", None)],
    ]
    for number, batch in enumerate([FIRST, *later]):
        parts = ("table", "table") if number == 0 else ("declaration", "events")
        declared = arguments(parts[0], upper)
        [*left_out, present] = declared.pop("except_column_list")
        deltaweave.apply_changes(
            spark,
            path,
            frame(spark, batch, parts[1], upper),
            **declared,
            present_columns=present,
            except_column_list=left_out,
        )
    expected = {(1, "x", 11, 12), (3, "x", 30, 30), (4, "x", 40, 40)}
    check(Table(spark, path).read(), expected, upper)


def test_histories_take_names_in_another_case(
    spark: SparkSession, tmp_path: Path, upper: str
) -> None:
    path = str(tmp_path / "t")
    later: list[list[Event]] = [
        [(1, "x", 10, 12, 2, "", None), (1, "x", 11, 11, 4, "", None)],
        [(1, "x", 13, 13, 3, "", None), (2, "x", None, None, 3, "d", None)],
    ]
    for number, batch in enumerate([FIRST, *later]):
        parts = ("table", "table") if number == 0 else ("declaration", "events")
        deltaweave.apply_changes(
            spark,
            path,
            frame(spark, batch, parts[1], upper),
            **arguments(parts[0], upper),
            stored_as_scd_type=2,
            track_history_column_list=spelled("v", parts[0], upper),
        )
    rows = Table(spark, path).read()
    versions = {(1, 10, 12, 1, 3), (1, 13, 13, 3, 4), (1, 11, 11, 4, None)}
    others = {(2, 20, 20, 1, 3), (3, 30, 30, 1, None)}
    found = rows.select("k", "v", "w", "__START_AT", "__END_AT").collect()
    assert {tuple(row) for row in found} == versions | others
    assert len(found) == 5
    assert rows.columns[:4] == spelled("k l v w", "table", upper)


def test_merge_on_read_takes_names_in_another_case(
    spark: SparkSession, tmp_path: Path, upper: str
) -> None:
    path = str(tmp_path / "base")
    first = MergeOnReadTable(spark, path, **arguments("table", upper))
    first.append(frame(spark, FIRST, "table", upper))
    first.rematerialize("merge")
    table = MergeOnReadTable(spark, path, **arguments("declaration", upper))
    later: list[Event] = [
        (1, "x", 11, 11, 3, "", None),
        (1, "x", 12, 12, 2, "", None),
        (2, "x", None, None, 3, "d", None),
        (4, "x", 40, 40, 2, "", None),
    ]
    table.append(frame(spark, later, "events", upper))
    expected = {(1, "x", 11, 11), (3, "x", 30, 30), (4, "x", 40, 40)}
    for method in ("anti_join", "double_rank", "full_outer_join", "left_join_anti_join"):
        check(table.read(method, where="K < 9"), expected, upper)
    table.create_view(f"spelled_{upper}")
    check(spark.table(f"spelled_{upper}"), expected, upper)
    table.rematerialize("merge")
    # The delete is remembered, whatever its key is called.
    table.append(frame(spark, [(2, "x", 22, 22, 2, "", None)], "events", upper))
    check(table.read(), expected, upper)
    table.rematerialize("overwrite")
    check(table.read_optimized(), expected, upper)
