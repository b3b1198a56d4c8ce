"""Values: nested ones, times, decimals and variants, and what store assignment casts or refuses."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)

STRUCT = "k INT, a STRUCT<b: INT, c: STRUCT<d: INT, e: STRING>>"
PEOPLE = "k INT, people ARRAY<STRUCT<name: STRING, age: INT>>"

CASES = (
    MergeCase(
        name="update_of_a_nested_field",
        target=[(1, (10, (11, "x"))), (2, (20, (21, "y")))],
        target_schema=STRUCT,
        source=[(1, 100)],
        clauses=(update({"a.b": "s.v"}),),
        expected=[
            (1, (100, (11, "x"))),  # a.b updated, a.c kept
            (2, (20, (21, "y"))),
        ],
    ),
    MergeCase(
        name="update_of_nested_fields_at_several_levels",
        target=[(1, (10, (11, "x"))), (2, None), (3, (30, None))],
        target_schema=STRUCT,
        source=[(1, 100), (2, 200), (3, 300)],
        clauses=(update({"t.a.b": "s.v", "a.c.e": "t.a.c.e || '!'"}),),
        expected=[
            (1, (100, (11, "x!"))),  # updated
            (2, (200, (None, None))),  # a null struct comes to be
            (3, (300, (None, None))),  # and so does an inner one
        ],
    ),
    MergeCase(
        name="struct_from_the_source_by_name",
        target=[(1, (10, (11, "x")))],
        target_schema=STRUCT,
        source=[(1, (("z", 110), 100)), (2, (("n", 220), 200))],
        source_schema="k INT, a STRUCT<c: STRUCT<e: STRING, d: INT>, b: INT>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, (100, (110, "z"))),  # updated, fields by name
            (2, (200, (220, "n"))),  # inserted
        ],
    ),
    MergeCase(
        name="struct_set_to_null",
        target=[(1, (10, (11, "x"))), (2, (20, (21, "y")))],
        target_schema=STRUCT,
        source=[(1, 0)],
        clauses=(update({"a": "NULL"}), insert({"k": "s.k", "a": "NULL"})),
        expected=[(1, None), (2, (20, (21, "y")))],
    ),
    MergeCase(
        name="arrays_and_maps",
        target=[(1, [1, 2], {"a": 1}), (2, [], {}), (3, None, None)],
        target_schema="k INT, list ARRAY<INT>, map MAP<STRING, INT>",
        source=[(1, [3, None], {"b": 2}), (4, [], {"x": None}), (3, [7], {})],
        source_schema="k INT, list ARRAY<INT>, map MAP<STRING, INT>",
        clauses=(
            update({"list": "s.list", "map": "map_concat(t.map, s.map)"}, "t.k = 1"),
            update_all(),
            insert_all(),
        ),
        expected=[
            (1, [3, None], {"a": 1, "b": 2}),  # updated
            (2, [], {}),
            (3, [7], {}),  # updated
            (4, [], {"x": None}),  # inserted
        ],
    ),
    MergeCase(
        name="array_of_structs_by_name",
        target=[(1, [("ann", 30)]), (2, [])],
        target_schema=PEOPLE,
        source=[(1, [(31, "ann"), (7, "bob")]), (3, [None])],
        source_schema="k INT, people ARRAY<STRUCT<age: INT, name: STRING>>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, [("ann", 31), ("bob", 7)]),  # updated
            (2, []),
            (3, [None]),  # inserted
        ],
    ),
    MergeCase(
        name="times_decimals_and_bytes_are_kept_and_replaced_exactly",
        target=[
            (1, dt.date(1970, 1, 1), dt.datetime(2024, 3, 31, 2, 30, 0, 1), Decimal("0.01"), b"a"),
            (2, dt.date(9999, 12, 31), dt.datetime(1969, 12, 31, 23, 59), Decimal("-99.99"), b""),
        ],
        target_schema="k INT, d DATE, ts TIMESTAMP_NTZ, m DECIMAL(4, 2), b BINARY",
        source=[
            (1, dt.date(2000, 2, 29), dt.datetime(2024, 1, 1, 0, 0, 0, 7), Decimal("1.23"), b"z"),
            (3, None, None, None, None),
        ],
        source_schema="k INT, d DATE, ts TIMESTAMP_NTZ, m DECIMAL(4, 2), b BINARY",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, dt.date(2000, 2, 29), dt.datetime(2024, 1, 1, 0, 0, 0, 7), Decimal("1.23"), b"z"),
            (2, dt.date(9999, 12, 31), dt.datetime(1969, 12, 31, 23, 59), Decimal("-99.99"), b""),
            (3, None, None, None, None),  # inserted
        ],
    ),
    MergeCase(
        name="numbers_of_every_size",
        target=[(1, 1, 2, 3, 4, 5.5, 6.5), (2, -128, -32768, -1, -(2**63), -0.0, 1e300)],
        target_schema="k INT, a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE",
        source=[(1, 127, 32767, 2147483647, 2**63 - 1, float("inf"), float("nan"))],
        source_schema="k INT, a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE",
        clauses=(update_all(),),
        expected=[
            (1, 127, 32767, 2147483647, 2**63 - 1, float("inf"), float("nan")),  # updated
            (2, -128, -32768, -1, -(2**63), -0.0, 1e300),  # copied exactly
        ],
    ),
    MergeCase(
        name="store_assignment_casts_what_fits",
        target=[(1, 10, "x")],
        target_schema="k INT, v INT, note STRING",
        source=[(1, 100, 7), (2, 200, 8)],
        source_schema="k BIGINT, v BIGINT, note INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, "7"),  # updated, bigint as int and int as string
            (2, 200, "8"),  # inserted
        ],
    ),
    MergeCase(
        name="store_assignment_rounds_decimals",
        target=[(1, Decimal("1.00"))],
        target_schema="k INT, m DECIMAL(5, 2)",
        source=[(1, 2.005), (2, 3.999)],
        source_schema="k INT, m DOUBLE",
        clauses=(update_all(), insert_all()),
        expected=[(1, Decimal("2.01")), (2, Decimal("4.00"))],
    ),
    MergeCase(
        name="value_too_great_for_its_column_is_an_error",
        target=[(1, 10)],
        source=[(1, 2**31)],
        source_schema="k INT, v BIGINT",
        clauses=(update_all(),),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    MergeCase(
        name="inserted_value_too_great_for_its_column_is_an_error",
        target=[(1, 10)],
        source=[(2, 2**31)],
        source_schema="k INT, v BIGINT",
        clauses=(insert_all(),),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    MergeCase(
        name="string_that_is_no_number_is_an_error",
        target=[(1, 10)],
        source=[(1, "ten")],
        source_schema="k INT, v STRING",
        clauses=(update_all(),),
        error="CAST_INVALID_INPUT",
    ),
    MergeCase(
        name="type_that_cannot_be_stored_is_an_error",
        target=[(1, dt.date(2024, 1, 1))],
        target_schema="k INT, v DATE",
        source=[(1, True)],
        source_schema="k INT, v BOOLEAN",
        clauses=(update_all(),),
        error="DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION",
    ),
    MergeCase(
        name="text_longer_than_varchar_is_an_error",
        target=[(1, "abc")],
        target_schema="k INT, v STRING",
        target_ddl="k INT, v VARCHAR(3)",
        source=[(1, "abcd")],
        source_schema="k INT, v STRING",
        clauses=(update_all(),),
        error="DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    ),
    MergeCase(
        name="text_is_padded_to_char_and_fits_varchar",
        target=[(1, "a", "b"), (2, "c", "d")],
        target_schema="k INT, c STRING, v STRING",
        target_ddl="k INT, c CHAR(3), v VARCHAR(3)",
        source=[(1, "xy", "xyz"), (3, "z", "")],
        source_schema="k INT, c STRING, v STRING",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, "xy ", "xyz"),  # updated
            (2, "c  ", "d"),
            (3, "z  ", ""),  # inserted
        ],
    ),
    MergeCase(
        name="variants_made_and_read",
        target_schema="k INT",
        target_ddl="k INT, v VARIANT",
        setup=("INSERT INTO {target} VALUES (1, parse_json('[1, null]')), (2, parse_json('2'))",),
        source=[(1, '{"a": 1.5}'), (3, None)],
        source_schema="k INT, v STRING",
        clauses=(
            update({"v": "parse_json(s.v)"}),
            insert({"k": "s.k", "v": "parse_json(s.v)"}),
            by_source_update({"v": "parse_json(to_json(t.v) || '0')"}),
        ),
        expected=[
            (1, '{"a":1.5}'),  # updated
            (2, "20"),  # updated, not matched by source
            (3, None),  # inserted
        ],
    ),
)
