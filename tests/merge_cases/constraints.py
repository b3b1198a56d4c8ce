"""Columns with rules: generated, default, NOT NULL, CHECK, and tables that only take appends."""

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

GENERATED = "k INT, v INT, twice INT GENERATED ALWAYS AS (v * 2)"
DEFAULT = "k INT, v INT DEFAULT 7"
ALLOW_DEFAULTS = {"delta.feature.allowColumnDefaults": "supported"}
POSITIVE = ("ALTER TABLE {target} ADD CONSTRAINT positive CHECK (v > 0)",)
NOT_NULL = "k INT NOT NULL, v INT"

CASES = (
    MergeCase(
        name="generated_column_follows_its_base",
        target=[(1, 10), (2, 20)],
        target_ddl=GENERATED,
        source=[(1, 100), (3, 300)],
        clauses=(update({"v": "s.v"}), insert({"k": "s.k", "v": "s.v"})),
        expected=[
            (1, 100, 200),  # updated
            (2, 20, 40),
            (3, 300, 600),  # inserted
        ],
    ),
    MergeCase(
        name="generated_column_follows_by_source_updates",
        target=[(1, 10), (2, 20)],
        target_ddl=GENERATED,
        source=[(1, 100)],
        clauses=(by_source_update({"v": "t.v + 1"}),),
        expected=[
            (1, 10, 20),
            (2, 21, 42),  # (2, 20, 40) updated
        ],
    ),
    MergeCase(
        name="generated_column_given_a_wrong_value_is_an_error",
        target=[(1, 10)],
        target_ddl=GENERATED,
        source=[(2, 20)],
        clauses=(insert({"k": "s.k", "v": "s.v", "twice": "41"}),),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="generated_partition_column",
        target=[(1, 10), (2, 25)],
        target_ddl="k INT, v INT, tens INT GENERATED ALWAYS AS (CAST(v / 10 AS INT))",
        partition_by=("tens",),
        source=[(1, 31), (3, 27)],
        clauses=(update({"v": "s.v"}), insert({"k": "s.k", "v": "s.v"})),
        expected=[
            (1, 31, 3),  # (1, 10, 1) updated, and moved to another partition
            (2, 25, 2),
            (3, 27, 2),  # inserted
        ],
    ),
    MergeCase(
        name="default_of_a_column_left_out",
        target=[(1, 10)],
        target_ddl=DEFAULT,
        properties=ALLOW_DEFAULTS,
        source=[(1, 0), (2, 0)],
        clauses=(insert({"k": "s.k"}),),
        expected=[
            (1, 10),
            (2, 7),  # inserted with the default
        ],
    ),
    MergeCase(
        name="default_asked_for_by_its_keyword_is_an_error",
        target=[(1, 10), (2, 20)],
        target_ddl=DEFAULT,
        properties=ALLOW_DEFAULTS,
        source=[(1, 0), (3, 0)],
        clauses=(update({"v": "DEFAULT"}), insert({"k": "s.k", "v": "DEFAULT"})),
        error="DELTA_MERGE_UNRESOLVED_EXPRESSION",
        why="Delta 4.4 takes the word for a column",
    ),
    MergeCase(
        name="check_that_holds",
        target=[(1, 10), (2, 20)],
        setup=POSITIVE,
        source=[(1, 1), (3, None)],
        clauses=(update_all(), insert_all("s.v > 0")),
        expected=[(1, 1), (2, 20)],  # (1, 10) updated
    ),
    MergeCase(
        name="check_broken_by_an_update",
        target=[(1, 10), (2, 20)],
        setup=POSITIVE,
        source=[(1, -1)],
        clauses=(update_all(),),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="check_broken_by_an_insert",
        target=[(1, 10)],
        setup=POSITIVE,
        source=[(2, -1)],
        clauses=(insert_all(),),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="check_broken_by_a_by_source_update",
        target=[(1, 10)],
        setup=POSITIVE,
        source=[(2, 20)],
        clauses=(insert_all(), by_source_update({"v": "-t.v"})),
        error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    ),
    MergeCase(
        name="not_null_broken_by_an_update",
        target=[(1, 10)],
        target_ddl=NOT_NULL,
        source=[(1, 0)],
        clauses=(update({"k": "NULL"}),),
        error="DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    ),
    MergeCase(
        name="not_null_broken_by_an_insert",
        target=[(1, 10)],
        target_ddl=NOT_NULL,
        source=[(None, 5), (2, 20)],
        clauses=(update_all(), insert_all()),
        error="DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    ),
    MergeCase(
        name="not_null_columns_are_kept_when_rows_are_copied_updated_and_inserted",
        target=[(1, 10), (2, 20)],
        target_ddl="k INT NOT NULL, v INT NOT NULL",
        source=[(1, 100), (3, 300)],
        clauses=(update_all(), insert_all(), by_source_update({"v": "t.v + 1"})),
        expected=[(1, 100), (2, 21), (3, 300)],
    ),
    MergeCase(
        name="append_only_table_refuses_updates",
        target=[(1, 10)],
        properties={"delta.appendOnly": "true"},
        source=[(1, 100)],
        clauses=(update_all(),),
        error="DELTA_CANNOT_MODIFY_APPEND_ONLY",
    ),
    MergeCase(
        name="append_only_table_refuses_deletes",
        target=[(1, 10)],
        properties={"delta.appendOnly": "true"},
        source=[(1, 100)],
        clauses=(delete(),),
        error="DELTA_CANNOT_MODIFY_APPEND_ONLY",
    ),
    MergeCase(
        name="append_only_table_takes_inserts",
        target=[(1, 10)],
        properties={"delta.appendOnly": "true"},
        source=[(1, 100), (2, 200)],
        clauses=(insert_all(),),
        expected=[(1, 10), (2, 200)],  # inserted
    ),
)
