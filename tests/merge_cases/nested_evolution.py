"""Schema evolution inside structs, arrays and maps, and how it meets other features."""

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


def evolving(name: str, column: str, evolved: str, **fields: Any) -> MergeCase:
    """A target and a source of a key and one nested column each, under schema evolution."""
    return MergeCase(
        name=name,
        target_schema=f"k INT, a {column}",
        source_schema=f"k INT, a {evolved}",
        with_schema_evolution=True,
        **{"clauses": (update_all(), insert_all()), **fields},
    )


CASES = (
    evolving(
        "new_field_two_structs_down",
        "STRUCT<b: STRUCT<c: INT>, d: INT>",
        "STRUCT<b: STRUCT<e: STRING, c: INT>, d: INT>",
        target=[(1, ((10,), 11)), (2, (None, 21)), (3, None)],
        source=[(1, (("x", 100), 110)), (4, (None, 410))],
        expected=[
            (1, ((100, "x"), 110)),  # updated
            (2, (None, 21)),
            (3, None),
            (4, (None, 410)),  # inserted
        ],
    ),
    evolving(
        "new_fields_at_two_levels_at_once",
        "STRUCT<b: STRUCT<c: INT>>",
        "STRUCT<b: STRUCT<c: INT, d: INT>, e: INT>",
        target=[(1, ((10,),)), (2, ((20,),))],
        source=[(1, ((100, 101), 102)), (3, (None, 302))],
        expected=[
            (1, ((100, 101), 102)),  # updated
            (2, ((20, None), None)),
            (3, (None, 302)),  # inserted
        ],
    ),
    evolving(
        "new_field_of_structs_in_an_array_in_a_struct",
        "STRUCT<list: ARRAY<STRUCT<b: INT>>>",
        "STRUCT<list: ARRAY<STRUCT<b: INT, c: STRING>>>",
        target=[(1, ([(10,)],)), (2, ([(20,), (21,)],)), (3, (None,))],
        source=[(1, ([(100, "x"), None],)), (4, ([],))],
        expected=[
            (1, ([(100, "x"), None],)),  # updated
            (2, ([(20, None), (21, None)],)),
            (3, (None,)),
            (4, ([],)),  # inserted
        ],
    ),
    evolving(
        "new_field_of_structs_in_a_map_of_arrays",
        "MAP<STRING, ARRAY<STRUCT<b: INT>>>",
        "MAP<STRING, ARRAY<STRUCT<c: INT, b: INT>>>",
        target=[(1, {"x": [(10,)]}), (2, {"y": None})],
        source=[(1, {"z": [(101, 100)]}), (3, {})],
        expected=[
            (1, {"z": [(100, 101)]}),  # updated
            (2, {"y": None}),
            (3, {}),  # inserted
        ],
    ),
    evolving(
        "field_missing_from_the_source_in_an_array_of_structs",
        "ARRAY<STRUCT<b: INT, c: STRING>>",
        "ARRAY<STRUCT<b: INT>>",
        target=[(1, [(10, "old")]), (2, [(20, "old")])],
        source=[(1, [(100,)]), (3, [(300,)])],
        expected=[
            (1, [(100, None)]),  # updated: no element of old is the new one, so nothing is kept
            (2, [(20, "old")]),
            (3, [(300, None)]),  # inserted
        ],
    ),
    evolving(
        "field_new_to_the_target_and_another_missing_from_the_source",
        "STRUCT<b: INT, c: STRING>",
        "STRUCT<d: INT, b: INT>",
        target=[(1, (10, "old")), (2, None), (3, (30, "old"))],
        source=[(1, (101, 100)), (2, (201, 200)), (4, None)],
        expected=[
            (1, (100, "old", 101)),  # updated, a.c kept
            (2, (200, None, 201)),  # updated: of a null struct there is nothing to keep
            (3, (30, "old", None)),
            (4, None),  # inserted
        ],
    ),
    evolving(
        "new_struct_column",
        "INT",
        "INT, b STRUCT<c: INT, d: ARRAY<STRUCT<e: INT>>>",
        target=[(1, 10), (2, 20)],
        source=[(1, 100, (101, [(102,)])), (3, 300, None)],
        expected=[
            (1, 100, (101, [(102,)])),  # updated
            (2, 20, None),
            (3, 300, None),  # inserted
        ],
    ),
    evolving(
        "new_field_by_explicit_assignment_of_the_struct",
        "STRUCT<b: INT>",
        "STRUCT<b: INT, c: INT>",
        target=[(1, (10,)), (2, (20,))],
        source=[(1, (100, 101)), (3, (300, 301))],
        clauses=(update({"a": "s.a"}), insert({"k": "s.k", "a": "s.a"})),
        expected=[
            (1, (100, 101)),  # updated
            (2, (20, None)),
            (3, (300, 301)),  # inserted
        ],
    ),
    evolving(
        "new_field_by_explicit_assignment_of_it",
        "STRUCT<b: INT>",
        "STRUCT<b: INT, c: INT>",
        target=[(1, (10,)), (2, (20,))],
        source=[(1, (100, 101)), (3, (300, 301))],
        clauses=(update({"a.c": "s.a.c"}),),
        expected=[
            (1, (10, 101)),  # updated, a.b kept
            (2, (20, None)),
        ],
    ),
    evolving(
        "new_field_beside_by_source_clauses",
        "STRUCT<b: INT>",
        "STRUCT<b: INT, c: INT>",
        target=[(1, (10,)), (2, (20,)), (3, (30,))],
        source=[(1, (100, 101)), (4, (400, 401))],
        clauses=(
            update_all(),
            insert_all(),
            by_source_update({"a.b": "t.a.b + 1"}, "t.k = 2"),
            by_source_delete(),
        ),
        expected=[
            (1, (100, 101)),  # updated
            (2, (21, None)),  # updated, not matched by source; (3, …) deleted
            (4, (400, 401)),  # inserted
        ],
    ),
    evolving(
        "field_that_differs_in_case_is_no_new_one",
        "STRUCT<Bee: INT>",
        "STRUCT<bEE: INT>",
        target=[(1, (10,)), (2, (20,))],
        source=[(1, (100,)), (3, (300,))],
        expected=[
            (1, (100,)),  # updated
            (2, (20,)),
            (3, (300,)),  # inserted
        ],
    ),
    MergeCase(
        name="new_field_of_an_array_without_evolution_is_an_error",
        target=[(1, [(10,)])],
        target_schema="k INT, a ARRAY<STRUCT<b: INT>>",
        source=[(1, [(100, 101)])],
        source_schema="k INT, a ARRAY<STRUCT<b: INT, c: INT>>",
        clauses=(update_all(),),
        error="DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION",
    ),
    evolving(
        "struct_that_becomes_a_number_is_an_error",
        "STRUCT<b: INT>",
        "INT",
        target=[(1, (10,))],
        source=[(1, 100)],
        error="DELTA_FAILED_TO_MERGE_FIELDS",
    ),
    evolving(
        "columns_new_to_the_target_of_every_kind_at_once",
        "INT",
        "INT, d DATE, m MAP<STRING, INT>, b BINARY, z DECIMAL(30, 10)",
        target=[(1, 10)],
        source=[(2, 200, None, {"x": None}, bytearray(b"\x00"), None)],
        expected=[
            (1, 10, None, None, None, None),
            (2, 200, None, {"x": None}, bytearray(b"\x00"), None),  # inserted
        ],
    ),
)
