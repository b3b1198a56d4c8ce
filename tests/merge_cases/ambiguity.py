"""Duplicates: several source rows for one target row, several target rows for one source row."""

from __future__ import annotations

from tests.merge_cases.case import (
    AMBIGUOUS,
    MergeCase,
    by_source_delete,
    delete,
    insert_all,
    update,
    update_all,
)

TWICE = [(1, 100), (1, 101), (3, 300)]

CASES = (
    MergeCase(
        name="several_source_rows_for_an_updated_row_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(update_all(), insert_all()),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="equal_source_rows_for_an_updated_row_are_an_error_too",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (1, 100)],
        clauses=(update({"v": "7"}),),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="several_source_rows_for_a_conditionally_deleted_row_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(delete("s.v >= 100"),),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="several_source_rows_for_a_row_that_is_updated_or_deleted_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(update_all("s.v = 100"), delete()),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="several_source_rows_may_delete_one_row",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(delete(),),
        expected=[(2, 20)],  # (1, 10) deleted, and counted once
    ),
    MergeCase(
        name="several_source_rows_may_delete_several_rows_and_the_rest_is_inserted",
        oracle_loses_inserts=True,
        target=[(1, 10), (1, 11), (2, 20)],
        source=[*TWICE, (3, 301)],
        clauses=(delete(), insert_all()),
        expected=[
            (2, 20),  # both rows of key 1 deleted by both source rows
            (3, 300),  # inserted
            (3, 301),  # inserted
        ],
    ),
    MergeCase(
        name="several_source_rows_may_delete_one_row_beside_by_source_deletes",
        target=[(1, 10), (2, 20), (4, 40)],
        source=[*TWICE, (2, 200)],
        clauses=(delete(), by_source_delete()),
        expected=[],
    ),
    MergeCase(
        name="several_matches_of_which_a_clause_takes_one_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(update_all("s.v = 101"),),
        error=AMBIGUOUS,
        why="Delta counts matches before it asks the clauses",
    ),
    MergeCase(
        name="several_matches_of_which_no_clause_takes_any_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(update_all("s.v < 0"),),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="several_matches_beside_an_insert_of_which_a_clause_takes_one_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(update_all("s.v = 101"), insert_all()),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="several_matches_beside_by_source_without_a_matched_clause_are_an_error",
        target=[(1, 10), (2, 20)],
        source=TWICE,
        clauses=(by_source_delete(),),
        error=AMBIGUOUS,
    ),
    MergeCase(
        name="duplicates_in_the_target_are_all_updated",
        target=[(1, 10), (1, 11), (2, 20), (1, 12)],
        files=2,
        source=[(1, 100)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (1, 100), (1, 100), (2, 20)],
    ),
    MergeCase(
        name="duplicates_in_the_source_that_match_nothing_are_all_inserted",
        target=[(2, 20)],
        source=[(1, 100), (1, 100), (2, 200)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (1, 100), (2, 200)],
    ),
    MergeCase(
        name="non_equi_condition_that_matches_twice_is_an_error",
        target=[(1, 10), (5, 50)],
        source=[(2, 100), (3, 300)],
        on="t.k < s.k",
        clauses=(update({"v": "s.v"}),),
        error=AMBIGUOUS,
    ),
)
