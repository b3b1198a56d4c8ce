"""WHEN MATCHED: which rows are updated and deleted, by which clause, and by which condition."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

TWO_FILES = [(1, 10), (2, 20), (3, 30), (4, 40)]  # (1, …), (2, …) in one file of two

CASES = (
    MergeCase(
        name="update_from_the_source",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (3, 300)],
        clauses=(update({"v": "s.v"}),),
        expected=[
            (1, 100),  # (1, 10) updated
            (2, 20),
        ],
    ),
    MergeCase(
        name="update_star",
        target=[(1, 10), (2, 20)],
        source=[(2, 200)],
        clauses=(update_all(),),
        expected=[
            (1, 10),
            (2, 200),  # (2, 20) updated
        ],
    ),
    MergeCase(
        name="update_from_both_sides_and_constants",
        target=[(1, 10, "a"), (2, 20, "b")],
        target_schema="k INT, v INT, note STRING",
        source=[(1, 5)],
        clauses=(update({"v": "t.v + s.v", "note": "upper(t.note) || '!'"}),),
        expected=[
            (1, 15, "A!"),  # (1, 10, 'a') updated
            (2, 20, "b"),
        ],
    ),
    MergeCase(
        name="update_swaps_columns_without_seeing_its_own_result",
        target=[(1, 10, 11), (2, 20, 21)],
        target_schema="k INT, a INT, b INT",
        source=[(1, 0)],
        clauses=(update({"b": "t.a", "a": "t.b"}),),
        expected=[
            (1, 11, 10),  # (1, 10, 11) updated
            (2, 20, 21),
        ],
    ),
    MergeCase(
        name="update_of_the_key_column_itself",
        target=[(1, 10), (2, 20)],
        source=[(1, 0), (2, 0)],
        clauses=(update({"k": "s.k + 1"}),),
        expected=[
            (2, 10),  # (1, 10) updated
            (3, 20),  # (2, 20) updated, by its key from before
        ],
    ),
    MergeCase(
        name="update_to_the_same_value_counts_as_an_update",
        target=[(1, 10), (2, 20)],
        source=[(1, 10)],
        clauses=(update_all(),),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="conditional_update_over_both_sides",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 5), (2, 25), (3, 35)],
        clauses=(update({"v": "s.v"}, "s.v > t.v"),),
        expected=[
            (1, 10),
            (2, 25),  # (2, 20) updated
            (3, 35),  # (3, 30) updated
        ],
    ),
    MergeCase(
        name="clause_condition_on_the_target_alone",
        target=TWO_FILES,
        files=2,
        source=[(1, 100), (4, 400)],
        clauses=(update_all("t.v >= 40"),),
        expected=[(1, 10), (2, 20), (3, 30), (4, 400)],  # (4, 40) updated
        why="its file statistics leave one file, and only its rows may be looked at",
    ),
    MergeCase(
        name="condition_that_is_null_takes_no_row",
        target=[(1, 10), (2, None), (3, 30)],
        source=[(1, None), (2, 200), (3, 300)],
        clauses=(update_all("s.v > t.v"),),
        expected=[
            (1, 10),  # null > 10
            (2, None),  # 200 > null
            (3, 300),  # (3, 30) updated
        ],
    ),
    MergeCase(
        name="matches_of_which_no_clause_takes_any",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        clauses=(update_all("s.v < 0"), delete("t.v < 0")),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="delete",
        target=[(1, 10), (2, 20)],
        source=[(1, 0), (3, 0)],
        clauses=(delete(),),
        expected=[(2, 20)],  # (1, 10) deleted
    ),
    MergeCase(
        name="conditional_delete",
        target=[(1, 10), (2, 20)],
        source=[(1, 0), (2, 1)],
        clauses=(delete("s.v = 1"),),
        expected=[(1, 10)],  # (2, 20) deleted
    ),
    MergeCase(
        name="delete_of_every_row_leaves_an_empty_table",
        target=[(1, 10), (2, 20)],
        source=[(1, 0), (2, 0)],
        clauses=(delete(),),
        expected=[],
    ),
    MergeCase(
        name="delete_of_every_row_of_one_file",
        target=TWO_FILES,
        files=2,
        source=[(1, 0), (2, 0)],
        clauses=(delete(),),
        expected=[(3, 30), (4, 40)],  # the first file was removed, the second untouched
    ),
    MergeCase(
        name="first_clause_that_holds_wins_delete_before_update",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 1), (2, 2), (3, 3)],
        clauses=(delete("s.v >= 2"), update_all("s.v <= 2")),
        expected=[
            (1, 1),  # (1, 10) updated
        ],  # (2, 20) deleted though the update holds too; (3, 30) deleted
    ),
    MergeCase(
        name="first_clause_that_holds_wins_update_before_delete",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 1), (2, 2), (3, 3)],
        clauses=(update_all("s.v <= 2"), delete("s.v >= 2")),
        expected=[
            (1, 1),  # (1, 10) updated
            (2, 2),  # (2, 20) updated though the delete holds too
        ],  # (3, 30) deleted
    ),
    MergeCase(
        name="several_updates_of_different_columns",
        target=[(1, 10, 11), (2, 20, 21), (3, 30, 31)],
        target_schema="k INT, a INT, b INT",
        source=[(1, 1), (2, 2), (3, 3)],
        clauses=(
            update({"a": "s.v"}, "s.v = 1"),
            update({"b": "s.v"}, "s.v = 2"),
            update({"a": "0", "b": "0"}),
        ),
        expected=[
            (1, 1, 11),  # by the first
            (2, 20, 2),  # by the second
            (3, 0, 0),  # by the last
        ],
    ),
    MergeCase(
        name="two_updates_two_deletes_and_two_inserts",
        target=[(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)],
        source=[(1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (7, 7), (8, 8)],
        clauses=(
            update({"v": "s.v * 10"}, "s.v = 1"),
            delete("s.v = 2"),
            update({"v": "s.v * 100"}, "s.v = 3"),
            delete(),
            insert({"k": "s.k", "v": "-s.v"}, "s.v = 6"),
            insert_all("s.v = 7"),
        ),
        expected=[
            (1, 10),  # (1, 10) updated to what it was
            (3, 300),  # (3, 30) updated
            (5, 50),
            (6, -6),  # inserted by the first insert
            (7, 7),  # inserted by the second
        ],  # (2, 20) and (4, 40) deleted; (8, 8) taken by no clause
    ),
    MergeCase(
        name="five_clauses_of_all_kinds",
        target=TWO_FILES,
        files=2,
        source=[(1, 1), (2, 2), (5, 5), (6, 6)],
        clauses=(
            delete("s.v = 1"),
            update({"v": "s.v"}),
            insert({"k": "s.k"}, "s.v = 5"),
            insert_all(),
            by_source_update({"v": "t.v + 1"}, "t.k = 3"),
        ),
        expected=[
            (2, 2),  # (2, 20) updated; (1, 10) deleted
            (3, 31),  # (3, 30) updated, not matched by source
            (4, 40),
            (5, None),  # inserted with its key alone
            (6, 6),  # inserted
        ],
    ),
    MergeCase(
        name="upsert",
        target=[(1, 10), (2, 20)],
        source=[(2, 200), (3, 300)],
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 10),
            (2, 200),  # (2, 20) updated
            (3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="upsert_with_everything_matched",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (2, 200)],
    ),
    MergeCase(
        name="upsert_with_nothing_matched",
        target=[(1, 10), (2, 20)],
        source=[(3, 300), (4, 400)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 10), (2, 20), (3, 300), (4, 400)],  # two inserted
    ),
    MergeCase(
        name="upsert_into_an_empty_table",
        source=[(1, 10), (2, 20)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 10), (2, 20)],  # two inserted
    ),
    MergeCase(
        name="upsert_from_an_empty_source",
        target=[(1, 10), (2, 20)],
        clauses=(update_all(), insert_all()),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="upsert_of_an_empty_table_from_an_empty_source",
        clauses=(update_all(), insert_all()),
        expected=[],
    ),
    MergeCase(
        name="inserts_do_not_depend_on_whether_a_matched_clause_takes_the_match",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200), (3, 300)],
        clauses=(update_all("s.v > 150"), insert_all()),
        expected=[
            (1, 10),  # matched, so not inserted, though no clause takes it
            (2, 200),  # (2, 20) updated
            (3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="no_match_taken_but_rows_inserted",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (3, 300)],
        clauses=(update_all("s.v < 0"), insert_all()),
        expected=[(1, 10), (2, 20), (3, 300)],  # one inserted, no file rewritten
    ),
)
