"""No file is read for a clause whose condition contradicts itself, as built-in MERGE reads none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.merge_cases.case import MergeCase, update_all
from tests.support.oracles import Stage

# Two source rows match row 1, which is an error in a file that is read. Built-in MERGE reads no
# file where Spark's optimizer sees the contradiction.
CONDITIONS = {
    "of one part": "t.v = 10 AND NOT t.v = 10",
    "beside the source": "s.v > 0 AND NOT isnan(t.d) AND isnan(t.d)",
    "within a disjunction": "(t.v = 10 AND NOT t.v = 10) OR (isnan(t.d) AND NOT isnan(t.d))",
    "of a part that may be null": "t.d > 1 AND NOT (t.d > 1) AND s.v = 100",
    "of a part that is the other's opposite": "t.v > 10 AND t.v <= 10",
    "of distant parts": "isnan(t.d) AND t.v = 10 AND NOT isnan(t.d)",
    "of values": "t.v = 10 AND t.v = 20",
    "of conditional values": "CASE WHEN t.v = 10 THEN false ELSE false END",
    "with itself": "t.d <> t.d",
    "by a constant": "t.v = 10 AND 1 = 2",
    "of a negation at depth": "NOT (t.v = 10 OR NOT t.v = 10)",
    "of a null-safe part": "t.v <=> NULL AND t.v = 10",
    "none": "t.v = 10 AND NOT t.v = 20",
}


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(
            each, id=name, marks=[] if name == "beside the source" else pytest.mark.minutes
        )
        for name, each in CONDITIONS.items()
    ],
)
def test_matches_are_ambiguous_where_built_in_merge_reads_them(
    spark: SparkSession, tmp_path: Path, condition: str
) -> None:
    case = MergeCase(
        name="contradiction",
        target=[(1, 10, 0.5), (2, 20, float("nan")), (3, None, None)],
        source=[(1, 100, 1.0), (1, 101, 2.0)],
        clauses=(update_all(condition),),
        target_schema="k INT, v INT, d DOUBLE",
        source_schema="k INT, v INT, d DOUBLE",
        expected=(),
    )
    stage = Stage(spark, case, tmp_path)

    theirs, ours = stage.by_oracle(), stage.by_sql()

    assert ours.error_classes == theirs.error_classes[:1]
    assert ours.rows == theirs.rows
