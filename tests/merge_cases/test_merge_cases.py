"""Every case of the shared list, with the engine and with Delta's own MERGE, on equal tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.engine import limits
from deltaweave.engine.write.strategy import REWRITE_IN_PLACE
from tests.big_source import collect_no_keys, keep_pairs_on_executors
from tests.merge_cases import CASES, CASES_BY_NAME
from tests.merge_cases.case import AMBIGUOUS, COPY_ON_WRITE, VECTORS_AND_FEED, Layout, MergeCase
from tests.merge_cases.recorded import oracle
from tests.oracles import (
    Outcome,
    Stage,
    assert_outcome,
    assert_same_rows,
    configured,
)

BY_BUILDER = [
    "update_from_both_sides_and_constants",
    "first_clause_that_holds_wins_delete_before_update",
    "two_updates_two_deletes_and_two_inserts",
    "five_clauses_of_all_kinds",
    "several_inserts_first_that_holds_wins",
    "by_source_several_clauses_first_that_holds_wins",
    "mirror_of_the_source",
    "several_source_rows_for_an_updated_row_are_an_error",
    "null_keys_match_under_null_safe_equality",
    "range_condition",
    "update_of_nested_fields_at_several_levels",
    "generated_column_follows_its_base",
    "new_column_by_explicit_assignment",
    "column_names_that_need_back_quotes",
    "path_with_spaces_and_special_characters",
]


# What a statement is refused for does not depend on how its table is kept. Every other case meets
# built-in MERGE on a table with vectors and a feed, and the engine runs it by copy on write too:
# for every fourth, built-in MERGE runs on such a table as well and the engine rewrites it in place;
# for the others, all that does not depend on the layout is compared. To run built-in MERGE on each
# layout for each case would take CI beyond its time.
REFUSED = [case for case in CASES if case.error not in (None, AMBIGUOUS)]
WITH_AN_OUTCOME = [case for case in CASES if case.error in (None, AMBIGUOUS)]
IN_BOTH_LAYOUTS = [c for i, c in enumerate(WITH_AN_OUTCOME) if i % 4 == 0 or c.without_vectors]
IN_ONE_LAYOUT = [case for case in WITH_AN_OUTCOME if case not in IN_BOTH_LAYOUTS]
MATRIX = [
    Layout(vectors=vectors, feed=feed, partitioned=partitioned)
    for partitioned in (False, True)
    for vectors in (False, True)
    for feed in (False, True)
]

Run = Callable[[MergeCase, Layout], tuple[Stage, Outcome]]


def case_id(case: MergeCase) -> str:
    return case.name


def runs(cases: Sequence[MergeCase], layouts: Sequence[Layout]) -> list[Any]:
    """The cases on every layout that they can be run on."""
    return [
        pytest.param(case, layout, id=f"{case.name}-{layout}")
        for case in cases
        for layout in layouts
        if not layout.refused_by(case)
    ]


@pytest.fixture(scope="module")
def run_with_oracle(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A case's stage and what Delta's MERGE does on it, once for all tests of the two."""
    known: dict[tuple[str, Layout], tuple[Stage, Outcome]] = {}

    def run(case: MergeCase, layout: Layout) -> tuple[Stage, Outcome]:
        key = case.name, layout
        if key not in known:
            folder: Path = tmp_path_factory.mktemp("case")
            stage = Stage(spark, case, folder, layout)
            known[key] = stage, oracle(case, layout, stage.by_oracle)
        return known[key]

    return run


@pytest.mark.parametrize(
    ("case", "layout"),
    runs(REFUSED + IN_BOTH_LAYOUTS, [COPY_ON_WRITE]) + runs(WITH_AN_OUTCOME, [VECTORS_AND_FEED]),
)
def test_sql_text_gives_what_built_in_merge_gives(
    case: MergeCase, layout: Layout, run_with_oracle: Run
) -> None:
    stage, theirs = run_with_oracle(case, layout)
    assert_outcome(case, stage.by_sql(), theirs)


# In the last one, a file that no clause touches has a match.
@pytest.mark.parametrize(
    "case", [*IN_ONE_LAYOUT, CASES_BY_NAME["mirror_of_the_source"]], ids=case_id
)
def test_copy_on_write_gives_the_rows_of_built_in_merge_with_vectors(
    case: MergeCase,
    run_with_oracle: Run,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_pairs_on_executors(monkeypatch)  # all other runs have them on the driver
    _, theirs = run_with_oracle(case, VECTORS_AND_FEED)
    assert_same_rows(case, Stage(spark, case, tmp_path, COPY_ON_WRITE).by_sql(), theirs)


@pytest.mark.parametrize("case", IN_BOTH_LAYOUTS, ids=case_id)
def test_rewriting_in_place_gives_what_built_in_merge_gives(
    case: MergeCase, run_with_oracle: Run, spark: SparkSession
) -> None:
    stage, theirs = run_with_oracle(case, COPY_ON_WRITE)
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        assert_outcome(case, stage.by_sql(), theirs)


@pytest.mark.parametrize("columns", [False, True], ids=["strings", "columns"])
@pytest.mark.parametrize("case", [CASES_BY_NAME[name] for name in BY_BUILDER], ids=case_id)
def test_the_builder_gives_what_built_in_merge_gives(
    case: MergeCase, columns: bool, run_with_oracle: Run
) -> None:
    stage, theirs = run_with_oracle(case, COPY_ON_WRITE)
    assert_outcome(case, stage.by_builder(columns=columns), theirs)


@pytest.mark.full_matrix
@pytest.mark.parametrize("shuffled", [False, True], ids=["broadcast", "shuffled"])
@pytest.mark.parametrize(("case", "layout"), runs(CASES, MATRIX))
def test_every_layout_and_join_gives_what_built_in_merge_gives(
    case: MergeCase,
    layout: Layout,
    shuffled: bool,
    run_with_oracle: Run,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, theirs = run_with_oracle(case, layout)
    if not shuffled:
        assert_outcome(case, stage.by_sql(), theirs)
        return
    monkeypatch.setattr(limits, "MAX_BROADCAST_SOURCE_BYTES", 0)
    keep_pairs_on_executors(monkeypatch)
    collect_no_keys(monkeypatch)
    with configured(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        assert_outcome(case, stage.by_sql(), theirs)
