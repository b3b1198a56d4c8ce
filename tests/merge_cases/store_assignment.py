"""Store assignment: what each policy casts, refuses, or loses on its way into a column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)

POLICY = "spark.sql.storeAssignmentPolicy"
LEGACY = {POLICY: "LEGACY", "spark.sql.ansi.enabled": "false"}
STRICT = {POLICY: "STRICT"}
OVERFLOW = "DELTA_CAST_OVERFLOW_IN_TABLE_WRITE"


def stored(name: str, column: str, given: str, value: Any, **fields: Any) -> MergeCase:
    """A column of one type, null before, and a value of another type for it."""
    rows: dict[str, Any] = {"target": [(1, None)], "source": [(1, value)]}
    return MergeCase(
        name=name,
        target_schema=f"k INT, v {column}",
        source_schema=f"k INT, v {given}",
        clauses=(update_all(),),
        **{**rows, **fields},
    )


CASES = (
    stored(
        "ansi_refuses_a_decimal_with_too_many_digits",
        "DECIMAL(4, 2)",
        "DECIMAL(10, 2)",
        Decimal("123.45"),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    stored(
        "ansi_refuses_a_double_too_great_for_a_bigint",
        "BIGINT",
        "DOUBLE",
        1e19,
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    stored(
        "ansi_cuts_a_double_to_an_int",
        "INT",
        "DOUBLE",
        -2.9,
        expected=[(1, -2)],  # updated, towards zero
    ),
    stored(
        "ansi_cuts_a_timestamp_to_a_date",
        "DATE",
        "TIMESTAMP_NTZ",
        dt.datetime(2024, 2, 29, 23, 59),
        expected=[(1, dt.date(2024, 2, 29))],  # updated
    ),
    stored(
        "ansi_stores_a_boolean_as_an_int",
        "INT",
        "BOOLEAN",
        True,
        expected=[(1, 1)],  # updated
    ),
    stored(
        "ansi_refuses_text_that_is_no_date",
        "DATE",
        "STRING",
        "2024-02-30",
        error="CAST_INVALID_INPUT",
    ),
    stored(
        "ansi_refuses_an_overflow_inside_an_array",
        "ARRAY<TINYINT>",
        "ARRAY<INT>",
        [1, 300],
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    stored(
        "ansi_refuses_an_overflow_inside_a_struct",
        "STRUCT<a: SMALLINT>",
        "STRUCT<a: INT>",
        (40000,),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
    MergeCase(
        name="value_too_great_in_a_row_that_no_clause_takes",
        target=[(1, None)],
        target_schema="k INT, v TINYINT",
        source=[(1, 300), (2, 400), (3, 3)],
        clauses=(update_all("s.v < 128"), insert_all("s.v < 128")),
        expected=[
            (1, None),
            (3, 3),  # inserted; the others are never cast
        ],
    ),
    MergeCase(
        name="overflow_of_a_by_source_update_is_an_error",
        target=[(1, 100), (2, 20)],
        target_schema="k INT, v TINYINT",
        source=[(2, 0)],
        clauses=(by_source_update({"v": "t.v + 100"}),),
        error=OVERFLOW,
    ),
    stored(
        "legacy_wraps_an_int_that_is_too_great",
        "TINYINT",
        "INT",
        300,
        conf=LEGACY,
        expected=[(1, 44)],  # updated with the lowest byte of 300
    ),
    stored(
        "legacy_makes_null_of_text_that_is_no_number",
        "INT",
        "STRING",
        "ten",
        target=[(1, 10)],
        conf=LEGACY,
        expected=[(1, None)],  # updated
    ),
    stored(
        "legacy_stores_a_boolean_as_an_int",
        "INT",
        "BOOLEAN",
        True,
        conf=LEGACY,
        expected=[(1, 1)],  # updated
    ),
    stored(
        "legacy_makes_null_of_a_decimal_with_too_many_digits",
        "DECIMAL(4, 2)",
        "DECIMAL(10, 2)",
        Decimal("123.45"),
        target=[(1, Decimal("1.00"))],
        conf=LEGACY,
        expected=[(1, None)],  # updated
    ),
    stored(
        "strict_widens_an_int",
        "BIGINT",
        "INT",
        7,
        conf=STRICT,
        expected=[(1, 7)],  # updated
    ),
    stored(
        "strict_refuses_to_narrow_a_bigint",
        "INT",
        "BIGINT",
        7,
        conf=STRICT,
        error="CANNOT_UP_CAST_DATATYPE",
    ),
    stored(
        "strict_refuses_text_for_an_int",
        "INT",
        "STRING",
        "7",
        conf=STRICT,
        error="CANNOT_UP_CAST_DATATYPE",
    ),
    MergeCase(
        name="literals_are_cast_to_the_column",
        target=[(1, 1.5, Decimal("1.50"), "a", dt.date(2024, 1, 1))],
        target_schema="k INT, f FLOAT, m DECIMAL(6, 2), c STRING, d DATE",
        source=[(1, 0), (2, 0)],
        clauses=(
            update({"f": "1", "m": "2", "c": "3", "d": "'2024-05-06'"}),
            insert({"k": "2L", "f": "0.1", "m": "1.239", "c": "true", "d": "NULL"}),
        ),
        expected=[
            (1, 1.0, Decimal("2.00"), "3", dt.date(2024, 5, 6)),  # updated
            (2, 0.10000000149011612, Decimal("1.24"), "true", None),  # inserted
        ],
    ),
)
