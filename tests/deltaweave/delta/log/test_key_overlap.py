"""How ranges of keys overlap in files, on real tables and beside a count of each pair of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from deltaweave import Table
from deltaweave.delta.log.statistics import Bounds, KeyOverlap, key_overlap
from deltaweave.errors import StatementError
from tests.builders import Rows, write_table

CASES: dict[str, tuple[Rows, tuple[int, int, int, float, int]]] = {
    # files, without bounds, overlapping, mean and most of the files that a key may be in
    "in order": ([(1,), (2,), (3,), (4,), (5,), (6,)], (3, 0, 0, 1.0, 1)),
    "one key in two files": ([(1,), (2,), (2,), (4,), (5,), (6,)], (3, 0, 2, 1.33, 2)),
    "one file spans the others": ([(1,), (9,), (2,), (4,), (5,), (6,)], (3, 0, 3, 1.67, 2)),
    "all alike": ([(1,), (9,), (1,), (9,), (1,), (9,)], (3, 0, 3, 3.0, 3)),
    "a file of nulls holds no key": ([(1,), (2,), (None,), (None,), (5,), (6,)], (2, 0, 0, 1.0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_files_that_may_hold_a_key_are_counted(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    rows, expected = CASES[name]
    write_table(spark, str(tmp_path / "t"), rows, "k INT", files=3)
    assert Table(spark, str(tmp_path / "t")).key_overlaps(["K"]) == [KeyOverlap("k", *expected)]


def test_partition_values_are_ranges_and_missing_statistics_give_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    rows = [(1, "x", 1), (2, "x", 2), (1, "y", 3), (2, "y", 4)]
    write_table(
        spark,
        path,
        rows,
        "k INT, day STRING, n INT",
        files=2,
        partition_by=["day"],
        properties={"delta.dataSkippingStatsColumns": "n"},
    )
    overlaps = Table(spark, path).key_overlaps(["day", "k", "n"])
    assert [each.files for each in overlaps] == [2, 2, 2]
    assert overlaps[0].most_files_per_key == 1
    assert (overlaps[1].files_without_bounds, overlaps[1].mean_files_per_key) == (2, 2.0)
    assert overlaps[2].overlapping_files == 0


@pytest.mark.parametrize("column", ["no_such", "tags", "flag"])
def test_a_column_without_ranges_is_refused(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    path = str(tmp_path / "t")
    schema = "k INT, tags ARRAY<STRING>, flag BOOLEAN"
    write_table(spark, path, [(1, ["a"], True)], schema)
    with pytest.raises(StatementError, match=column):
        Table(spark, path).key_overlaps([column])


def test_an_empty_table_has_no_files_to_look_in(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_table(spark, path, [(1,)], "k INT")
    spark.sql(f"DELETE FROM delta.`{path}`")
    assert Table(spark, path).key_overlaps(["k"]) == [KeyOverlap("k", 0, 0, 0, 0.0, 0)]


ENDS = st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)).map(
    lambda ends: tuple(sorted(ends)) if None not in ends else ends
)


@given(st.lists(ENDS, min_size=1, max_size=8))
def test_counts_equal_those_of_each_pair_of_files(files: list[tuple[Any, Any]]) -> None:
    lows, highs = map(list, zip(*files, strict=True))
    nothing = [False] * len(files)
    found = key_overlap("k", Bounds(lows, highs, nothing, nothing))

    def may_hold(file: tuple[Any, Any], key: int) -> bool:
        low, high = file
        return (low is None or low <= key) and (high is None or key <= high)

    def meet(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
        return any(may_hold(one, key) and may_hold(other, key) for key in range(-1, 11))

    holding = [sum(may_hold(file, key) for file in files) for key in range(-1, 11)]
    assert found.most_files_per_key == max(holding)
    assert found.overlapping_files == sum(
        any(meet(file, other) for at, other in enumerate(files) if at != place)
        for place, file in enumerate(files)
    )
