"""Every case of the shared list, with the engine and with Delta's own MERGE, on equal tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.engine import limits
from deltaweave.engine.merge_run import ON_DRIVER as ON_DRIVER_SETTING
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from tests.merge_cases import CASES, CASES_BY_NAME
from tests.merge_cases.case import AMBIGUOUS, COPY_ON_WRITE, VECTORS_AND_FEED, Layout, MergeCase
from tests.merge_cases.recorded import oracle
from tests.support.big_source import collect_no_keys, keep_pairs_on_executors
from tests.support.on_driver import written_on_driver
from tests.support.oracles import (
    Outcome,
    Stage,
    assert_outcome,
    assert_same_files,
    assert_same_rows,
)
from tests.support.settings import configured

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
# built-in MERGE once: by turns by copy on write and on a table with vectors and a feed, unless it
# can be kept in one of these ways alone. Some cases do so in `make test`, the others in
# `make test-slow` (`tests/support/turns.py`). There, some rewrite files in place, and some of the
# others have their pairs on executors. `make test-all` runs each case in each of these ways, and in
# the matrix below.
REFUSED = [case for case in CASES if case.error not in (None, AMBIGUOUS)]
WITH_AN_OUTCOME = [case for case in CASES if case.error in (None, AMBIGUOUS)]
IN_PLACE = WITH_AN_OUTCOME[16::64]
# In the last one, a file that no clause touches has a match.
ON_EXECUTORS = [*WITH_AN_OUTCOME[1::64], CASES_BY_NAME["mirror_of_the_source"]]
# Cases that are certainly done on the driver; what others test may keep them from it.
ON_DRIVER = [
    "upsert",
    "insert_of_duplicates_in_the_source",
    "several_inserts_first_that_holds_wins",
    "first_clause_that_holds_wins_delete_before_update",
    "key_of_two_columns",
    "delete_of_every_row_of_one_file",
    "upsert_of_an_empty_table_from_an_empty_source",
    "several_source_rows_may_delete_several_rows_and_the_rest_is_inserted",
    "null_keys_match_under_null_safe_equality",
    "update_from_both_sides_and_constants",
    "clause_condition_on_the_target_alone",
    "conditional_update_over_both_sides",
]
MATRIX = [
    Layout(vectors=vectors, feed=feed, partitioned=partitioned)
    for partitioned in (False, True)
    for vectors in (False, True)
    for feed in (False, True)
]

Run = Callable[[MergeCase, Layout], tuple[Stage, Outcome]]


def runs(
    cases: Sequence[MergeCase],
    layouts: Sequence[Layout],
    *,
    further: Sequence[MergeCase] | None = None,
) -> list[Any]:
    """The cases on every layout that they can be run on.

    Args:
        cases: The cases.
        layouts: The layouts.
        further: The cases of `make test-slow`, where the others are for `make test-all` alone. All
            are for `make test` if it is not given.
    """
    return [
        pytest.param(case, layout, id=f"{case.name}-{layout}", marks=_beside(case, further))
        for case in cases
        for layout in layouts
        if not layout.refused_by(case)
    ]


def runs_by_turns(cases: Sequence[MergeCase], layouts: Sequence[Layout]) -> Iterator[Any]:
    """The same; in `make test` each case on one of its layouts, by turns."""
    for place, case in enumerate(cases):
        possible = [layout for layout in layouts if not layout.refused_by(case)]
        for layout in possible:
            is_its_turn = layout == possible[place % len(possible)]
            marks = [] if is_its_turn else [pytest.mark.full_matrix]
            yield pytest.param(case, layout, id=f"{case.name}-{layout}", marks=marks)


def _beside(case: MergeCase, further: Sequence[MergeCase] | None) -> Sequence[pytest.MarkDecorator]:
    if further is None:
        return ()
    return [pytest.mark.minutes if case in further else pytest.mark.full_matrix]


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
    [
        *runs(REFUSED, [COPY_ON_WRITE]),
        *runs_by_turns(WITH_AN_OUTCOME, [COPY_ON_WRITE, VECTORS_AND_FEED]),
    ],
)
def test_sql_text_gives_what_built_in_merge_gives(
    case: MergeCase, layout: Layout, run_with_oracle: Run
) -> None:
    stage, theirs = run_with_oracle(case, layout)
    assert_outcome(case, stage.by_sql(), theirs)


# All other runs have the pairs on the driver.
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=_beside(c, ON_EXECUTORS)) for c in WITH_AN_OUTCOME],
)
def test_pairs_on_executors_give_what_built_in_merge_gives(
    case: MergeCase, run_with_oracle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, theirs = run_with_oracle(case, COPY_ON_WRITE)
    keep_pairs_on_executors(monkeypatch)
    assert_outcome(case, stage.by_sql(), theirs)


@pytest.mark.parametrize(
    ("case", "layout"),
    runs(WITH_AN_OUTCOME, [COPY_ON_WRITE, Layout(feed=True)], further=IN_PLACE),
)
def test_rewriting_in_place_gives_what_built_in_merge_gives(
    case: MergeCase, layout: Layout, run_with_oracle: Run, spark: SparkSession
) -> None:
    stage, theirs = run_with_oracle(case, layout)
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        assert_outcome(case, stage.by_sql(), theirs)


def runs_on_driver() -> Iterator[Any]:
    """Each case in eight layouts; in `make test` a few of those that qualify, in two of them.

    Without vectors and feed, and with both, outcomes are recorded; rows do not depend on the feed.
    """
    layouts = [
        (COPY_ON_WRITE, COPY_ON_WRITE),
        (VECTORS_AND_FEED, VECTORS_AND_FEED),
        (Layout(vectors=True), VECTORS_AND_FEED),
        (Layout(feed=True), Layout(feed=True)),
        *[(each, each) for each in MATRIX if each.partitioned],
    ]
    for case in WITH_AN_OUTCOME:
        for number, (layout, recorded) in enumerate(layouts):
            place = ON_DRIVER.index(case.name) if case.name in ON_DRIVER else -1
            marks = () if place >= 0 and place % 2 == number else [pytest.mark.full_matrix]
            if not layout.refused_by(case) and not recorded.refused_by(case):
                yield pytest.param(case, layout, recorded, id=f"{case.name}-{layout}", marks=marks)


@pytest.mark.parametrize(("case", "layout", "recorded"), list(runs_on_driver()))
def test_merges_on_the_driver_give_what_built_in_merge_gives(
    case: MergeCase,
    layout: Layout,
    recorded: Layout,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = oracle(
        case, recorded, lambda: Stage(spark, case, tmp_path / "theirs", recorded).by_oracle()
    )
    written = written_on_driver(monkeypatch)
    with configured(spark, {ON_DRIVER_SETTING: "true"}):
        ours = Stage(spark, case, tmp_path / "ours", layout).by_sql()
    assert written or case.name not in ON_DRIVER
    assert_same_rows(case, ours, theirs)
    if case.error is None:
        assert_same_files(ours, theirs)
        if layout.feed and ours.version is not None and theirs.version is not None:
            assert ours.changes == theirs.changes


def runs_by_builder() -> Iterator[Any]:
    """Each case in both ways; in `make test` in one of them by turns."""
    for place, name in enumerate(BY_BUILDER):
        for columns in (False, True):
            marks = [] if place % 2 == columns else [pytest.mark.full_matrix]
            way = "columns" if columns else "strings"
            yield pytest.param(CASES_BY_NAME[name], columns, id=f"{name}-{way}", marks=marks)


@pytest.mark.parametrize(("case", "columns"), list(runs_by_builder()))
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
