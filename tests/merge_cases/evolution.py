"""Schema evolution: columns and fields of the source that the target gains."""

from __future__ import annotations

from typing import Any

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)


def evolving(name: str, **fields: Any) -> MergeCase:
    """(1, 10) and (2, 20), evolved by a source of (1, 100, 'x') and (3, 300, 'y')."""
    defaults: dict[str, Any] = {
        "target": [(1, 10), (2, 20)],
        "source": [(1, 100, "x"), (3, 300, "y")],
        "source_schema": "k INT, v INT, extra STRING",
        "with_schema_evolution": True,
    }
    return MergeCase(name=name, **{**defaults, **fields})


CASES = (
    evolving(
        "new_column_by_update_star",
        clauses=(update_all(),),
        expected=[
            (1, 100, "x"),  # updated
            (2, 20, None),
        ],
    ),
    evolving(
        "new_column_by_insert_star",
        clauses=(insert_all(),),
        expected=[
            (1, 10, None),
            (2, 20, None),
            (3, 300, "y"),  # inserted
        ],
    ),
    evolving(
        "new_column_by_both_stars",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "x"),  # updated
            (2, 20, None),
            (3, 300, "y"),  # inserted
        ],
    ),
    evolving(
        "new_column_by_session_configuration",
        with_schema_evolution=False,
        conf={"spark.databricks.delta.schema.autoMerge.enabled": "true"},
        clauses=(update_all(), insert_all()),
        expected=[(1, 100, "x"), (2, 20, None), (3, 300, "y")],
    ),
    evolving(
        "extra_column_without_evolution_is_ignored",
        with_schema_evolution=False,
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (2, 20), (3, 300)],
    ),
    evolving(
        "new_column_by_explicit_assignment",
        clauses=(update({"extra": "s.extra"}), insert({"k": "s.k", "extra": "s.extra"})),
        expected=[
            (1, 10, "x"),  # updated
            (2, 20, None),
            (3, None, "y"),  # inserted
        ],
    ),
    evolving(
        "new_column_by_insert_alone_beside_an_update_of_old_ones",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            (1, 100, None),  # updated
            (2, 20, None),
            (3, 300, "y"),  # inserted
        ],
    ),
    evolving(
        "new_column_beside_by_source_clauses",
        target=[(1, 10), (2, 20), (4, 40)],
        clauses=(update_all(), by_source_delete("t.k = 4"), by_source_update({"v": "-1"})),
        expected=[
            (1, 100, "x"),  # updated
            (2, -1, None),  # updated, not matched by source; (4, 40) deleted
        ],
    ),
    evolving(
        "new_column_though_no_row_changes",
        source=[(9, 900, "z")],
        clauses=(update_all(),),
        expected=[(1, 10, None), (2, 20, None)],
        why="the schema is the only change to commit",
    ),
    evolving(
        "new_column_of_an_empty_source",
        source=[],
        clauses=(update_all(), insert_all()),
        expected=[(1, 10, None), (2, 20, None)],
    ),
    evolving(
        "new_column_of_a_partitioned_table",
        target=[(1, 10, "a"), (2, 20, "b")],
        target_schema="k INT, v INT, p STRING",
        partition_by=("p",),
        source=[(1, 100, "a", "x"), (3, 300, "c", "y")],
        source_schema="k INT, v INT, p STRING, extra STRING",
        clauses=(update_all(), insert_all()),
        expected=[(1, 100, "a", "x"), (2, 20, "b", None), (3, 300, "c", "y")],
    ),
    evolving(
        "column_missing_from_the_source",
        target=[(1, 10, "old"), (2, 20, "old")],
        target_schema="k INT, v INT, note STRING",
        source=[(1, 100), (3, 300)],
        source_schema="k INT, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "old"),  # updated, note kept
            (2, 20, "old"),
            (3, 300, None),  # inserted
        ],
    ),
    evolving(
        "column_missing_from_the_source_without_evolution_is_an_error",
        target=[(1, 10, "old")],
        target_schema="k INT, v INT, note STRING",
        source=[(1, 100)],
        source_schema="k INT, v INT",
        with_schema_evolution=False,
        clauses=(update_all(),),
        error="DELTA_MERGE_UNRESOLVED_EXPRESSION",
    ),
    evolving(
        "column_that_differs_in_case_is_no_new_one",
        source=[(1, 100), (3, 300)],
        source_schema="K INT, V INT",
        clauses=(update_all(), insert_all()),
        expected=[(1, 100), (2, 20), (3, 300)],
    ),
    evolving(
        "new_field_of_a_struct",
        target=[(1, (10,)), (2, None), (4, (40,))],
        target_schema="k INT, a STRUCT<b: INT>",
        source=[(1, (100, "x")), (3, (300, "y"))],
        source_schema="k INT, a STRUCT<b: INT, c: STRING>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, (100, "x")),  # updated
            (2, None),  # a null struct stays null
            (3, (300, "y")),  # inserted
            (4, (40, None)),
        ],
    ),
    evolving(
        "new_field_of_structs_in_an_array_and_a_map",
        target=[(1, [(10,)], {"m": (11,)}), (2, [(20,), None], {})],
        target_schema="k INT, a ARRAY<STRUCT<b: INT>>, m MAP<STRING, STRUCT<b: INT>>",
        source=[(1, [("x", 100)], {"n": ("y", 110)}), (3, [], None)],
        source_schema="k INT, a ARRAY<STRUCT<c: STRING, b: INT>>, "
        "m MAP<STRING, STRUCT<c: STRING, b: INT>>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, [(100, "x")], {"n": (110, "y")}),  # updated
            (2, [(20, None), None], {}),
            (3, [], None),  # inserted
        ],
    ),
    evolving(
        "field_missing_from_the_source",
        target=[(1, (10, "old")), (2, (20, "old"))],
        target_schema="k INT, a STRUCT<b: INT, c: STRING>",
        source=[(1, (100,)), (3, (300,))],
        source_schema="k INT, a STRUCT<b: INT>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, (100, "old")),  # updated, a.c kept
            (2, (20, "old")),
            (3, (300, None)),  # inserted
        ],
    ),
    evolving(
        "new_column_read_by_a_condition_before_it_exists",
        clauses=(update_all("s.extra = 'no'"), insert({"k": "s.k"}, "s.extra = 'y'")),
        expected=[
            (1, 10, None),
            (2, 20, None),
            (3, None, None),  # inserted
        ],
    ),
)
