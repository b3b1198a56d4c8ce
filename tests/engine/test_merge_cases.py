"""Every case of the shared list, with the engine and with Delta's own MERGE, on equal tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave.errors import DeltaweaveError
from tests.merge_cases import CASES, CASES_BY_NAME
from tests.merge_cases.case import MergeCase
from tests.oracles import Outcome, Stage, assert_same_metrics, rows_as_text

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


Run = Callable[[MergeCase], tuple[Stage, Outcome]]


def case_id(case: MergeCase) -> str:
    return case.name


@pytest.fixture(scope="module")
def run_with_oracle(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A case's stage and the oracle's outcome on it, run once for all tests of the case."""
    known: dict[str, tuple[Stage, Outcome]] = {}

    def run(case: MergeCase) -> tuple[Stage, Outcome]:
        if case.name not in known:
            folder: Path = tmp_path_factory.mktemp("case")
            stage = Stage(spark, case, folder)
            known[case.name] = stage, stage.by_oracle()
        return known[case.name]

    return run


def assert_outcome(case: MergeCase, ours: Outcome, theirs: Outcome) -> None:
    """The case's own outcome for both, and the same outcome from both."""
    if case.error is not None:
        assert case.error in theirs.error_classes, theirs.error
        assert isinstance(ours.error, DeltaweaveError)
        assert ours.error_classes == (case.error,)
        assert ours.version is None
        assert ours.rows == theirs.rows
        return
    for outcome in (theirs, ours):
        if outcome.error is not None:
            raise outcome.error
    expected = rows_as_text(case.expected or ())
    assert theirs.rows == expected, "the oracle's rows"
    assert ours.rows == expected, "the engine's rows"
    assert ours.schema == theirs.schema
    assert_same_metrics(case, ours, theirs)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_sql_text_gives_what_built_in_merge_gives(case: MergeCase, run_with_oracle: Run) -> None:
    stage, theirs = run_with_oracle(case)
    assert_outcome(case, stage.by_sql(), theirs)


@pytest.mark.parametrize("columns", [False, True], ids=["strings", "columns"])
@pytest.mark.parametrize("case", [CASES_BY_NAME[name] for name in BY_BUILDER], ids=case_id)
def test_the_builder_gives_what_built_in_merge_gives(
    case: MergeCase, columns: bool, run_with_oracle: Run
) -> None:
    stage, theirs = run_with_oracle(case)
    assert_outcome(case, stage.by_builder(columns=columns), theirs)
