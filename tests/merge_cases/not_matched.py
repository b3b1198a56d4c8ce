"""Insert-only merges: WHEN NOT MATCHED clauses alone, which take a path of their own."""

from __future__ import annotations

from tests.merge_cases.case import MergeCase, insert, insert_all

CASES = (
    MergeCase(
        name="insert_star",
        target=[(1, 10)],
        source=[(1, 100), (2, 200)],
        clauses=(insert_all(),),
        expected=[
            (1, 10),
            (2, 200),  # inserted
        ],
    ),
    MergeCase(
        name="insert_some_columns_in_another_order",
        target=[(1, 10, "a")],
        target_schema="k INT, v INT, note STRING",
        source=[(2, 200)],
        clauses=(insert({"note": "'new'", "k": "s.k"}),),
        expected=[
            (1, 10, "a"),
            (2, None, "new"),  # inserted without a value for v
        ],
    ),
    MergeCase(
        name="conditional_insert",
        target=[(1, 10)],
        source=[(2, 200), (3, 300), (4, None)],
        clauses=(insert_all("s.v > 250"),),
        expected=[
            (1, 10),
            (3, 300),  # inserted; null > 250 takes no row
        ],
    ),
    MergeCase(
        name="several_inserts_first_that_holds_wins",
        target=[(1, 10)],
        source=[(1, 1), (2, 2), (3, 3), (4, 4)],
        clauses=(
            insert({"k": "s.k", "v": "s.v + 100"}, "s.v <= 2"),
            insert({"k": "s.k", "v": "s.v + 200"}, "s.v <= 3"),
            insert({"k": "s.k"}),
        ),
        expected=[
            (1, 10),
            (2, 102),  # by the first
            (3, 203),  # by the second
            (4, None),  # by the last
        ],
    ),
    MergeCase(
        name="several_conditional_inserts_that_leave_rows_out",
        target=[(1, 10)],
        source=[(2, 2), (3, 3), (4, 4)],
        clauses=(insert_all("s.v = 2"), insert({"k": "s.k"}, "s.v = 4")),
        expected=[(1, 10), (2, 2), (4, None)],  # (3, 3) taken by no clause
    ),
    MergeCase(
        name="insert_of_nothing_because_all_match",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        clauses=(insert_all(),),
        expected=[(1, 10), (2, 20)],
    ),
    MergeCase(
        name="insert_of_nothing_because_no_condition_holds",
        target=[(1, 10)],
        source=[(2, 200)],
        clauses=(insert_all("s.v < 0"),),
        expected=[(1, 10)],
    ),
    MergeCase(
        name="insert_from_an_empty_source",
        target=[(1, 10)],
        clauses=(insert_all(),),
        expected=[(1, 10)],
    ),
    MergeCase(
        name="insert_into_an_empty_table",
        source=[(1, 10), (2, 20)],
        clauses=(insert_all(),),
        expected=[(1, 10), (2, 20)],  # two inserted
    ),
    MergeCase(
        name="insert_of_duplicates_in_the_source",
        target=[(1, 10)],
        source=[(1, 1), (1, 2), (2, 3), (2, 3)],
        clauses=(insert_all(),),
        expected=[
            (1, 10),  # matched twice, which is no error without a matched clause
            (2, 3),  # inserted
            (2, 3),  # and inserted again
        ],
    ),
    MergeCase(
        name="insert_with_duplicates_in_the_target",
        target=[(1, 10), (1, 11)],
        source=[(1, 100), (2, 200)],
        clauses=(insert_all(),),
        expected=[(1, 10), (1, 11), (2, 200)],  # one inserted
    ),
    MergeCase(
        name="insert_only_with_a_conjunct_on_the_target_alone",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(1, 100), (3, 300)],
        on="t.k = s.k AND t.v > 15",
        clauses=(insert_all(),),
        expected=[
            (1, 10),
            (1, 100),  # inserted: (1, 10) does not satisfy t.v > 15
            (2, 20),
            (3, 30),
        ],
    ),
    MergeCase(
        name="insert_only_with_a_condition_that_is_never_true_appends",
        target=[(1, 10)],
        source=[(1, 100), (2, 200)],
        on="false",
        clauses=(insert_all(),),
        expected=[(1, 10), (1, 100), (2, 200)],  # two inserted
    ),
    MergeCase(
        name="insert_only_with_a_condition_on_null",
        target=[(1, 10)],
        source=[(1, 100)],
        on="t.k = s.k AND NULL",
        clauses=(insert_all(),),
        expected=[(1, 10), (1, 100)],  # inserted: null is no match
    ),
    MergeCase(
        name="insert_only_without_its_own_path",
        target=[(1, 10)],
        source=[(1, 100), (2, 200), (2, 201)],
        clauses=(insert_all("s.v <> 201"),),
        conf={"spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled": "false"},
        expected=[(1, 10), (2, 200)],  # one inserted
    ),
)
