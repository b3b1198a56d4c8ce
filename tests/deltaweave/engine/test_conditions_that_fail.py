"""A clause's condition is asked of the rows that the clause is for, and of no others.

Under ANSI rules a cast fails, so that a condition that is asked of other rows fails the merge.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.merge_cases.case import (
    COPY_ON_WRITE,
    VECTORS_AND_FEED,
    Clause,
    Layout,
    MergeCase,
    by_source_delete,
    delete,
    insert_all,
    update,
    update_all,
)
from tests.support.big_source import collect_no_keys, keep_pairs_on_executors
from tests.support.oracles import Stage, rows_as_text
from tests.support.settings import configured

TARGET = [("a", 1), ("b", 2), ("c", 3)]
# Only the last has no match, and only its k is a number.
SOURCE = [("a", 10), ("b", 20), ("7", 70)]
INSERTED = [*TARGET, ("7", 70)]
UPSERTED = [("a", 10), ("b", 20), ("c", 3), ("7", 70)]


def case(name: str, *clauses: Clause, expected: list[tuple[str, int]]) -> MergeCase:
    return MergeCase(
        name=name,
        target=TARGET,
        target_schema="k STRING, v INT",
        source=SOURCE,
        source_schema="k STRING, v INT",
        on="t.k <=> s.k",
        clauses=clauses,
        expected=expected,
        files=2,
    )


# They fail for the source row and the target row without a match.
FAILS_WITHOUT_MATCH = "1 / (s.v - 70) < 0 AND 1 / (t.v - 3) < 0"
IS_SEVEN, IS_NONE = "CAST(s.k AS INT) = 7", "CAST(s.k AS INT) = 1"
CASES = [
    case("inserts", insert_all(IS_NONE), insert_all(IS_SEVEN), expected=INSERTED),
    case("updates", update_all(), insert_all(IS_NONE), insert_all(IS_SEVEN), expected=UPSERTED),
    case(
        "mirror",
        update_all(),
        insert_all(IS_SEVEN),
        by_source_delete(),
        expected=[("a", 10), ("b", 20), ("7", 70)],
    ),
    case(
        "matched",
        update({"v": "t.v + s.v"}, FAILS_WITHOUT_MATCH),
        expected=[("a", 11), ("b", 22), ("c", 3)],
    ),
    case(
        "deletes_of_all_kinds",
        delete(f"{FAILS_WITHOUT_MATCH} AND t.v = 1"),
        by_source_delete(),
        expected=[("b", 2)],
    ),
    case(
        "updates_beside_deletes",
        update({"v": "t.v + s.v"}, FAILS_WITHOUT_MATCH),
        by_source_delete(),
        expected=[("a", 11), ("b", 22)],
    ),
]
MARKED = Layout(vectors=True)
LAYOUTS = (COPY_ON_WRITE, VECTORS_AND_FEED, COPY_ON_WRITE, MARKED, COPY_ON_WRITE, MARKED)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("case", "layout"),
    list(zip(CASES, LAYOUTS, strict=True)),
    ids=lambda each: each.name if isinstance(each, MergeCase) else str(each),
)
def test_a_condition_that_fails_for_rows_of_other_clauses_fails_nothing(
    spark: SparkSession,
    tmp_path: Path,
    case: MergeCase,
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, expected = Stage(spark, case, tmp_path, layout), rows_as_text(case.expected or ())
    # By hand: built-in MERGE asks all rows in an outer join, and fails.
    for on_driver, in_place in (("true", "false"), ("false", "false"), ("false", "true")):
        with configured(spark, {ON_DRIVER: on_driver, REWRITE_IN_PLACE: in_place}):
            assert stage.by_sql().rows == expected
    keep_pairs_on_executors(monkeypatch)
    assert stage.by_sql().rows == expected
    collect_no_keys(monkeypatch)
    assert stage.by_sql().rows == expected
