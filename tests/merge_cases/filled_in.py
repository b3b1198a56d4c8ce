"""Columns the table fills in itself: generated from others, or given a default."""

from __future__ import annotations

import datetime as dt

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)

DEFAULTS = {"delta.feature.allowColumnDefaults": "supported"}
MONTHLY = (
    "k INT, at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), "
    "month INT GENERATED ALWAYS AS (month(at))"
)

CASES = (
    MergeCase(
        name="two_generated_columns_one_of_them_a_partition",
        target=[(1, dt.datetime(2024, 1, 31, 23, 0)), (2, dt.datetime(2024, 2, 1, 1, 0))],
        target_schema="k INT, at TIMESTAMP",
        target_ddl=MONTHLY,
        partition_by=("day",),
        source=[(1, dt.datetime(2024, 2, 1, 0, 0)), (3, None)],
        source_schema="k INT, at TIMESTAMP",
        clauses=(update({"at": "s.at"}), insert({"k": "s.k", "at": "s.at"})),
        expected=[
            (1, dt.datetime(2024, 2, 1, 0, 0), dt.date(2024, 2, 1), 2),  # updated, and moved
            (2, dt.datetime(2024, 2, 1, 1, 0), dt.date(2024, 2, 1), 2),
            (3, None, None, None),  # inserted: what comes of null is null
        ],
    ),
    MergeCase(
        name="generated_column_given_its_right_value",
        target=[(1, 10)],
        target_ddl="k INT, v INT, twice INT GENERATED ALWAYS AS (v * 2)",
        source=[(1, 100), (2, 200)],
        clauses=(
            update({"v": "s.v", "twice": "s.v + s.v"}),
            insert({"k": "s.k", "v": "s.v", "twice": "s.v * 2"}),
        ),
        expected=[
            (1, 100, 200),  # updated
            (2, 200, 400),  # inserted
        ],
    ),
    MergeCase(
        name="generated_column_updated_alone_to_a_wrong_value_is_an_error",
        target=[(1, 10)],
        target_ddl="k INT, v INT, twice INT GENERATED ALWAYS AS (v * 2)",
        source=[(1, 100)],
        clauses=(update({"twice": "s.v"}),),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="generated_column_set_to_null_is_an_error",
        target=[(1, 10)],
        target_ddl="k INT, v INT, twice INT GENERATED ALWAYS AS (v * 2)",
        source=[(1, 100)],
        clauses=(update({"twice": "NULL"}), by_source_update({"v": "0"})),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="generated_column_of_a_nested_field",
        target=[(1, (10, "x"))],
        target_schema="k INT, a STRUCT<b: INT, c: STRING>",
        target_ddl="k INT, a STRUCT<b: INT, c: STRING>, b INT GENERATED ALWAYS AS (a.b + 1)",
        source=[(1, 100), (2, 200)],
        clauses=(
            update({"a.b": "s.v"}),
            insert({"k": "s.k", "a": "named_struct('b', s.v, 'c', 'y')"}),
        ),
        expected=[
            (1, (100, "x"), 101),  # updated
            (2, (200, "y"), 201),  # inserted
        ],
    ),
    MergeCase(
        name="generated_column_of_two_others_of_which_one_is_inserted",
        target=[(1, "a", "b")],
        target_schema="k INT, x STRING, y STRING",
        target_ddl="k INT, x STRING, y STRING, "
        "both STRING GENERATED ALWAYS AS (concat_ws('-', x, y))",
        source=[(1, "c"), (2, "d")],
        source_schema="k INT, x STRING",
        clauses=(update({"y": "s.x"}), insert({"k": "s.k", "x": "s.x"})),
        expected=[
            (1, "a", "c", "a-c"),  # updated
            (2, "d", None, "d"),  # inserted
        ],
    ),
    MergeCase(
        name="generated_column_with_stars_that_leave_it_out",
        target=[(1, 10)],
        target_ddl="k INT, v INT, twice INT GENERATED ALWAYS AS (v * 2)",
        source=[(1, 100, "x"), (2, 200, "y")],
        source_schema="k INT, v INT, extra STRING",
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, 200, "x"),  # updated, with a new column
            (2, 200, 400, "y"),  # inserted
        ],
    ),
    MergeCase(
        name="null_given_for_a_column_with_a_default_stays_null",
        target=[(1, 10)],
        target_ddl="k INT, v INT DEFAULT 7",
        properties=DEFAULTS,
        source=[(1, None), (2, None)],
        clauses=(update_all(), insert_all()),
        expected=[
            (1, None),  # updated
            (2, None),  # inserted
        ],
    ),
    MergeCase(
        name="defaults_of_several_types",
        target=[(1, "x", dt.date(2024, 1, 1), [1])],
        target_schema="k INT, note STRING, day DATE, list ARRAY<INT>",
        target_ddl="k INT, note STRING DEFAULT concat('n', 'one'), "
        "day DATE DEFAULT DATE'1970-01-02', list ARRAY<INT> DEFAULT array(1, 2)",
        properties=DEFAULTS,
        source=[(1,), (2,)],
        source_schema="k INT",
        clauses=(update({"note": "'y'"}), insert({"k": "s.k"})),
        expected=[
            (1, "y", dt.date(2024, 1, 1), [1]),  # updated
            (2, "none", dt.date(1970, 1, 2), [1, 2]),  # inserted, all defaults
        ],
    ),
    MergeCase(
        name="default_given_to_a_column_after_its_rows",
        target=[(1, 10), (2, None)],
        properties=DEFAULTS,
        setup=("ALTER TABLE {target} ALTER COLUMN v SET DEFAULT -1",),
        source=[(1,), (3,)],
        source_schema="k INT",
        clauses=(insert({"k": "s.k"}), by_source_update({"k": "t.k + 10"})),
        expected=[
            (1, 10),
            (12, None),  # updated: the default is for inserts alone
            (3, -1),  # inserted
        ],
    ),
    MergeCase(
        name="default_of_a_column_missing_from_the_source_under_evolution",
        target=[(1, 10, "old")],
        target_schema="k INT, v INT, note STRING",
        target_ddl="k INT, v INT, note STRING DEFAULT 'none'",
        properties=DEFAULTS,
        source=[(1, 100), (2, 200)],
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "old"),  # updated, note kept
            (2, 200, "none"),  # inserted
        ],
    ),
    MergeCase(
        name="generated_column_of_a_column_with_a_default",
        target=[(1, 10)],
        target_ddl="k INT, v INT DEFAULT 7, twice INT GENERATED ALWAYS AS (v * 2)",
        properties=DEFAULTS,
        source=[(2, 0)],
        clauses=(insert({"k": "s.k"}),),
        expected=[
            (1, 10, 20),
            (2, 7, 14),  # inserted
        ],
    ),
)
