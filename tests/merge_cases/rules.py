"""NOT NULL and CHECK where they are less plain: nested, of several columns, on what is copied."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)

NESTED = "k INT, a STRUCT<b: INT, c: STRING>"
NESTED_NOT_NULL = "k INT, a STRUCT<b: INT NOT NULL, c: STRING>"
BROKEN = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"
NULL = "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"

CASES = (
    MergeCase(
        name="nested_not_null_field_broken_by_an_update_of_it",
        target=[(1, (10, "x"))],
        target_schema=NESTED,
        target_ddl=NESTED_NOT_NULL,
        source=[(1, None)],
        clauses=(update({"a.b": "s.v"}),),
        error=NULL,
    ),
    MergeCase(
        name="struct_of_nullable_fields_for_one_with_a_not_null_field_is_an_error",
        target=[(1, (10, "x"))],
        target_schema=NESTED,
        target_ddl=NESTED_NOT_NULL,
        source=[(2, (20, "y"))],
        source_schema=NESTED,
        clauses=(insert_all(),),
        error="DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION",
        why="the cast is refused by the types, whatever the rows hold",
    ),
    MergeCase(
        name="nested_not_null_field_broken_by_a_struct_that_is_null",
        target=[(1, (10, "x")), (2, (20, "y"))],
        target_schema=NESTED,
        target_ddl=NESTED_NOT_NULL,
        source=[(1, 0), (3, 0)],
        clauses=(update({"a": "NULL"}),),
        error=NULL,
        why="Delta asks the field, whose struct is null, so that it is null",
    ),
    MergeCase(
        name="nested_not_null_field_kept_while_another_is_updated",
        target=[(1, (10, "x")), (2, (20, "y"))],
        target_schema=NESTED,
        target_ddl=NESTED_NOT_NULL,
        source=[(1, 0)],
        clauses=(update({"a.c": "NULL"}), by_source_update({"a.b": "t.a.b + 1"})),
        expected=[
            (1, (10, None)),  # updated
            (2, (21, "y")),  # updated, not matched by source
        ],
    ),
    MergeCase(
        name="not_null_broken_by_a_by_source_update",
        target=[(1, 10), (2, 20)],
        target_ddl="k INT, v INT NOT NULL",
        source=[(1, 100)],
        clauses=(update_all(), by_source_update({"v": "NULL"})),
        error=NULL,
    ),
    MergeCase(
        name="not_null_column_left_out_of_an_insert",
        target=[(1, 10)],
        target_ddl="k INT, v INT NOT NULL",
        source=[(2, 20)],
        clauses=(insert({"k": "s.k"}),),
        error=NULL,
    ),
    MergeCase(
        name="not_null_partition_column",
        target=[(1, "a"), (2, "b")],
        target_schema="k INT, p STRING",
        target_ddl="k INT, p STRING NOT NULL",
        partition_by=("p",),
        source=[(1, "b"), (2, None)],
        source_schema="k INT, p STRING",
        clauses=(update_all(),),
        error=NULL,
    ),
    MergeCase(
        name="check_of_several_columns_and_both_sides_of_a_row",
        target=[(1, 10, 20), (2, 20, 30)],
        target_schema="k INT, low INT, high INT",
        setup=("ALTER TABLE {target} ADD CONSTRAINT ordered CHECK (low <= high)",),
        source=[(1, 15), (2, 5)],
        clauses=(update({"low": "s.v", "high": "s.v + 1"}),),
        expected=[
            (1, 15, 16),  # updated
            (2, 5, 6),  # updated
        ],
    ),
    MergeCase(
        name="check_of_two_columns_of_which_one_is_updated",
        target=[(1, 10, 20), (2, 20, 30)],
        target_schema="k INT, low INT, high INT",
        setup=("ALTER TABLE {target} ADD CONSTRAINT ordered CHECK (low <= high)",),
        source=[(1, 15), (2, 31)],
        clauses=(update({"low": "s.v"}),),
        error=BROKEN,
    ),
    MergeCase(
        name="check_of_a_nested_field_takes_null",
        target=[(1, (10, "x"))],
        target_schema=NESTED,
        setup=("ALTER TABLE {target} ADD CONSTRAINT ten CHECK (a.b IS NULL OR a.b >= 10)",),
        source=[(1, None), (2, 11)],
        clauses=(
            update({"a.b": "s.v"}),
            insert({"k": "s.k", "a": "named_struct('b', s.v, 'c', 'y')"}),
        ),
        expected=[
            (1, (None, "x")),  # updated
            (2, (11, "y")),  # inserted
        ],
    ),
    MergeCase(
        name="check_that_is_null_is_broken",
        target=[(1, 10)],
        setup=("ALTER TABLE {target} ADD CONSTRAINT positive CHECK (v > 0)",),
        source=[(2, None)],
        clauses=(insert_all(),),
        error=BROKEN,
        why="the CHECK of standard SQL takes null, Delta's does not",
    ),
    MergeCase(
        name="two_checks_of_which_the_second_is_broken",
        target=[(1, 10)],
        setup=(
            "ALTER TABLE {target} ADD CONSTRAINT a CHECK (v > 0)",
            "ALTER TABLE {target} ADD CONSTRAINT b CHECK (v < 1000)",
        ),
        source=[(1, 2000)],
        clauses=(update_all(),),
        error=BROKEN,
    ),
    MergeCase(
        name="check_and_new_column_of_evolution",
        target=[(1, 10)],
        setup=("ALTER TABLE {target} ADD CONSTRAINT positive CHECK (v > 0)",),
        source=[(1, 100, "x"), (2, 200, "y")],
        source_schema="k INT, v INT, extra STRING",
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "x"),  # updated
            (2, 200, "y"),  # inserted
        ],
    ),
)
