"""Cases in which the engine does not yet do what built-in MERGE does; not part of the list."""

from __future__ import annotations

from tests.merge_cases.case import MergeCase, update_all

SOURCE = [(1, 100), (3, 300)]
UPSERT = (
    "MERGE INTO {target} t USING {source} s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
)

CASES = (
    MergeCase(
        name="target_by_a_view_that_renames_is_an_error",
        target=[(1, 10), (2, 20)],
        source=SOURCE,
        target_by="view",
        view="SELECT k, v AS w FROM {target}",
        sql="MERGE INTO {target} t USING {source} s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET w = s.v",
        error="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
        why="the engine looks for the view's names in the table, and fails with another class",
    ),
    MergeCase(
        name="target_by_a_view_in_another_order_of_columns_is_an_error",
        target=[(1, 10), (2, 20)],
        source=SOURCE,
        target_by="view",
        view="SELECT v, k FROM {target}",
        sql=UPSERT,
        error="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
        why="the engine merges where Delta meets an internal error",
    ),
    MergeCase(
        name="new_field_of_structs_in_an_array_of_arrays_is_an_error",
        target=[(1, [[(10,)], []]), (2, [None])],
        target_schema="k INT, a ARRAY<ARRAY<STRUCT<b: INT>>>",
        source=[(2, [[(200, 201)], None])],
        source_schema="k INT, a ARRAY<ARRAY<STRUCT<b: INT, c: INT>>>",
        with_schema_evolution=True,
        clauses=(update_all(),),
        error="DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION",
        why="the engine evolves the column, which Delta cannot cast",
    ),
)
