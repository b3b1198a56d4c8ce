"""WHEN NOT MATCHED BY SOURCE: target rows that no source row matches."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

CASES = (
    MergeCase(
        name="by_source_delete",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 100), (4, 400)],
        clauses=(by_source_delete(),),
        expected=[(1, 10)],  # (2, 20) and (3, 30) deleted
    ),
    MergeCase(
        name="by_source_conditional_delete",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 100)],
        clauses=(by_source_delete("t.v > 25"),),
        expected=[(1, 10), (2, 20)],  # (3, 30) deleted
    ),
    MergeCase(
        name="by_source_update",
        target=[(1, 10), (2, 20)],
        source=[(1, 100)],
        clauses=(by_source_update({"v": "t.v * 10"}),),
        expected=[
            (1, 10),
            (2, 200),  # (2, 20) updated
        ],
    ),
    MergeCase(
        name="by_source_update_of_all_columns_to_constants",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 100), (4, 400)],
        clauses=(update_all(), insert_all(), by_source_update({"k": "0", "v": "0"})),
        expected=[
            (1, 100),
            (0, 0),  # (2, 20) updated
            (0, 0),  # (3, 30) updated
            (4, 400),
        ],
    ),
    MergeCase(
        name="by_source_conditional_update",
        target=[(1, 10), (2, 20), (3, None)],
        source=[(1, 100)],
        clauses=(by_source_update({"v": "0"}, "t.v > 15"),),
        expected=[
            (1, 10),
            (2, 0),  # (2, 20) updated
            (3, None),  # null > 15 takes no row
        ],
    ),
    MergeCase(
        name="by_source_several_clauses_first_that_holds_wins",
        target=[(1, 10), (2, 20), (3, 30), (4, 40)],
        source=[(1, 100)],
        clauses=(
            by_source_delete("t.k = 2"),
            by_source_update({"v": "-1"}, "t.k <= 3"),
            by_source_update({"v": "-2"}),
        ),
        expected=[
            (1, 10),
            (3, -1),  # by the second; (2, 20) deleted by the first
            (4, -2),  # by the last
        ],
    ),
    MergeCase(
        name="by_source_with_an_empty_source_deletes_everything",
        target=[(1, 10), (2, 20)],
        clauses=(update_all(), by_source_delete()),
        expected=[],
    ),
    MergeCase(
        name="by_source_into_an_empty_table",
        source=[(1, 10)],
        clauses=(insert_all(), by_source_delete()),
        expected=[(1, 10)],  # inserted
    ),
    MergeCase(
        name="by_source_with_everything_matched",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        clauses=(by_source_delete(),),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="by_source_of_which_no_clause_takes_any",
        target=[(1, 10), (2, 20)],
        source=[(1, 100)],
        clauses=(by_source_update({"v": "0"}, "t.v < 0"),),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="mirror_of_the_source",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(2, 200), (3, 30), (4, 400)],
        clauses=(update_all("t.v <> s.v"), insert_all(), by_source_delete()),
        expected=[
            (2, 200),  # (2, 20) updated; (1, 10) deleted
            (3, 30),  # equal already: no clause takes it
            (4, 400),  # inserted
        ],
    ),
    MergeCase(
        name="delete_matched_and_not_matched_by_source",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (3, 300)],
        clauses=(delete(), insert({"k": "s.k", "v": "1"}), by_source_delete()),
        expected=[(3, 1)],  # inserted; all others deleted
    ),
    MergeCase(
        name="by_source_with_null_keys",
        target=[(None, 10), (1, 11), (2, 20)],
        source=[(None, 100), (1, 110)],
        clauses=(update({"v": "s.v"}), by_source_delete()),
        expected=[(1, 110)],  # (null, 10) matches nothing under =, so it is deleted, as (2, 20)
    ),
    MergeCase(
        name="by_source_with_a_conjunct_on_the_target_alone",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(1, 100), (2, 200), (3, 300)],
        on="t.k = s.k AND t.v >= 20",
        clauses=(update_all(), by_source_delete()),
        expected=[
            (2, 200),  # (2, 20) updated
            (3, 300),  # (3, 30) updated
        ],  # (1, 10) deleted: it satisfies no match condition, yet its file must be read
    ),
    MergeCase(
        name="by_source_with_a_conjunct_on_the_source_alone",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        on="t.k = s.k AND s.v > 150",
        clauses=(update_all(), insert_all(), by_source_update({"v": "-1"})),
        expected=[
            (1, -1),  # (1, 10) updated, not matched by source
            (1, 100),  # inserted, not matched either
            (2, 200),  # (2, 20) updated
        ],
    ),
    MergeCase(
        name="by_source_narrowed_by_its_condition_to_one_partition",
        target=[(1, "a"), (2, "a"), (3, "b"), (4, "b")],
        target_schema="k INT, p STRING",
        partition_by=("p",),
        source=[(1, "a"), (5, "a")],
        source_schema="k INT, p STRING",
        on="t.k = s.k AND t.p = 'a'",
        clauses=(insert_all(), by_source_delete("t.p = 'a'")),
        expected=[
            (1, "a"),
            (3, "b"),
            (4, "b"),
            (5, "a"),  # inserted; (2, 'a') deleted
        ],
    ),
)
