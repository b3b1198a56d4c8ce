"""Type widening: columns and fields that take a wider type of the source under evolution."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert_all,
    update,
    update_all,
)

WIDENING = {"delta.enableTypeWidening": "true"}


def widened(name: str, column: str, given: str, **fields: Any) -> MergeCase:
    """A column of one type and a source of a wider one, on a table that may widen it."""
    return MergeCase(
        name=name,
        target_schema=f"k INT, v {column}",
        source_schema=f"k INT, v {given}",
        with_schema_evolution=True,
        **{"properties": WIDENING, "clauses": (update_all(), insert_all()), **fields},
    )


CASES = (
    widened(
        "byte_column_becomes_int",
        "TINYINT",
        "INT",
        target=[(1, 10), (2, -128)],
        source=[(1, 300), (3, 2147483647)],
        expected=[
            (1, 300),  # updated
            (2, -128),
            (3, 2147483647),  # inserted
        ],
    ),
    widened(
        "int_column_becomes_bigint",
        "INT",
        "BIGINT",
        target=[(1, 10), (2, 20)],
        source=[(1, 2**40), (3, -(2**63))],
        expected=[
            (1, 2**40),  # updated
            (2, 20),
            (3, -(2**63)),  # inserted
        ],
    ),
    widened(
        "float_column_becomes_double",
        "FLOAT",
        "DOUBLE",
        target=[(1, 0.5), (2, 0.25)],
        source=[(1, 1e300), (3, 0.1)],
        expected=[
            (1, 1e300),  # updated
            (2, 0.25),
            (3, 0.1),  # inserted
        ],
    ),
    widened(
        "decimal_column_gets_more_digits",
        "DECIMAL(4, 2)",
        "DECIMAL(10, 4)",
        target=[(1, Decimal("1.25")), (2, Decimal("-99.99"))],
        source=[(1, Decimal("123456.7891")), (3, None)],
        expected=[
            (1, Decimal("123456.7891")),  # updated
            (2, Decimal("-99.9900")),
            (3, None),  # inserted
        ],
    ),
    widened(
        "date_column_becomes_timestamp_without_zone",
        "DATE",
        "TIMESTAMP_NTZ",
        properties={**WIDENING, "delta.feature.timestampNtz": "supported"},
        target=[(1, dt.date(2024, 1, 31)), (2, dt.date(1969, 12, 31))],
        source=[(1, dt.datetime(2024, 2, 1, 12, 30)), (3, dt.datetime(2024, 2, 2))],
        expected=[
            (1, dt.datetime(2024, 2, 1, 12, 30)),  # updated
            (2, dt.datetime(1969, 12, 31)),
            (3, dt.datetime(2024, 2, 2)),  # inserted
        ],
    ),
    widened(
        "wider_type_of_a_feature_that_the_table_has_not_is_an_error",
        "DATE",
        "TIMESTAMP_NTZ",
        target=[(1, dt.date(2024, 1, 31))],
        source=[(1, dt.datetime(2024, 2, 1, 12, 30))],
        error="DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT",
    ),
    widened(
        "narrower_source_widens_nothing",
        "BIGINT",
        "INT",
        target=[(1, 10), (2, 2**40)],
        source=[(1, 100), (3, 300)],
        expected=[
            (1, 100),  # updated
            (2, 2**40),
            (3, 300),  # inserted
        ],
    ),
    widened(
        "fields_of_structs_in_an_array_and_a_map_become_wider",
        "STRUCT<a: SMALLINT, list: ARRAY<INT>, map: MAP<STRING, FLOAT>>",
        "STRUCT<a: INT, list: ARRAY<BIGINT>, map: MAP<STRING, DOUBLE>>",
        target=[(1, (1, [2, None], {"x": 0.5})), (2, None)],
        source=[(1, (70000, [2**40], {"y": 1e300})), (3, (3, [], None))],
        expected=[
            (1, (70000, [2**40], {"y": 1e300})),  # updated
            (2, None),
            (3, (3, [], None)),  # inserted
        ],
    ),
    widened(
        "wider_column_beside_a_new_one_and_a_by_source_update",
        "INT",
        "BIGINT, extra STRING",
        target=[(1, 10), (2, 20)],
        source=[(1, 2**40, "x")],
        clauses=(update_all(), by_source_update({"v": "t.v + 1"})),
        expected=[
            (1, 2**40, "x"),  # updated
            (2, 21, None),  # updated, not matched by source
        ],
    ),
    widened(
        "explicit_assignment_widens_too",
        "INT",
        "BIGINT",
        target=[(1, 10), (2, 20)],
        source=[(1, 2**40)],
        clauses=(update({"v": "s.v"}),),
        expected=[
            (1, 2**40),  # updated
            (2, 20),
        ],
    ),
    MergeCase(
        name="column_widened_by_a_statement_before_the_merge",
        target=[(1, 10), (2, 20)],
        properties=WIDENING,
        setup=("ALTER TABLE {target} ALTER COLUMN v TYPE BIGINT",),
        source=[(1, 2**40)],
        source_schema="k INT, v BIGINT",
        clauses=(update_all(), by_source_update({"v": "t.v * 2"})),
        expected=[
            (1, 2**40),  # updated
            (2, 40),  # updated: its file holds an INT still
        ],
    ),
    MergeCase(
        name="wider_value_without_evolution_is_an_error",
        target=[(1, 10)],
        properties=WIDENING,
        source=[(1, 2**40)],
        source_schema="k INT, v BIGINT",
        clauses=(update_all(),),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
)
