"""Partitioned tables: values of every type, and rows that move from one partition to another."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

PARTITIONED = "k INT, v INT, p STRING"

CASES = (
    MergeCase(
        name="row_moves_into_the_partition_of_null_and_another_out_of_it",
        target=[(1, 10, "a"), (2, 20, None), (3, 30, None)],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, None), (2, "a")],
        source_schema="k INT, p STRING",
        clauses=(update({"p": "s.p"}),),
        expected=[
            (1, 10, None),  # updated, from a to null
            (2, 20, "a"),  # updated, from null to a
            (3, 30, None),
        ],
    ),
    MergeCase(
        name="inserted_empty_string_is_null_as_a_partition_value",
        target=[(1, 10, "a")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 100, ""), (2, 200, ""), (3, 300, " ")],
        source_schema=PARTITIONED,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 100, None),  # updated, into the partition of null
            (2, 200, None),  # inserted
            (3, 300, " "),  # inserted: a space is a value
        ],
    ),
    MergeCase(
        name="partitions_swap_their_rows",
        target=[(1, 10, "a=b"), (2, 20, "c/d%"), (3, 30, "c/d%")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 0), (2, 0), (3, 0)],
        clauses=(update({"p": "CASE t.p WHEN 'a=b' THEN 'c/d%' ELSE 'a=b' END"}),),
        expected=[
            (1, 10, "c/d%"),  # updated
            (2, 20, "a=b"),  # updated
            (3, 30, "a=b"),  # updated
        ],
    ),
    MergeCase(
        name="by_source_update_moves_rows_to_another_partition",
        target=[(1, 10, "new"), (2, 20, "new"), (3, 30, "old")],
        target_schema=PARTITIONED,
        partition_by=("p",),
        source=[(1, 100)],
        clauses=(by_source_update({"p": "'old \u00fc'"}, "t.p = 'new'"),),
        expected=[
            (1, 10, "new"),
            (2, 20, "old \u00fc"),  # updated, into a new partition
            (3, 30, "old"),
        ],
    ),
    MergeCase(
        name="partition_column_is_the_only_key",
        target=[(1, "a"), (2, "a"), (3, "b"), (4, None)],
        target_schema="v INT, p STRING",
        partition_by=("p",),
        source=[("a",), ("c",), (None,)],
        source_schema="p STRING",
        on="t.p = s.p",
        clauses=(delete(), insert({"v": "0", "p": "s.p"})),
        expected=[
            (3, "b"),  # both rows of a are deleted
            (4, None),
            (0, "c"),  # inserted
            (0, None),  # inserted: null equals no null
        ],
    ),
    MergeCase(
        name="partition_of_null_matched_under_null_safe_equality",
        target=[(1, "a"), (4, None)],
        target_schema="v INT, p STRING",
        partition_by=("p",),
        source=[(40, None), (50, "b")],
        source_schema="v INT, p STRING",
        on="t.p <=> s.p",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, "a"),
            (40, None),  # updated
            (50, "b"),  # inserted
        ],
    ),
    MergeCase(
        name="partitioned_by_decimal",
        target=[(1, Decimal("1.50")), (2, Decimal("-0.25")), (3, None)],
        target_schema="k INT, p DECIMAL(10, 2)",
        partition_by=("p",),
        source=[(1, Decimal("2.499")), (4, Decimal("-0.25"))],
        source_schema="k INT, p DECIMAL(10, 3)",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, Decimal("2.50")),  # updated, rounded to the column's scale
            (2, Decimal("-0.25")),
            (3, None),
            (4, Decimal("-0.25")),  # inserted
        ],
    ),
    MergeCase(
        name="partitioned_by_boolean_with_a_condition_on_it",
        target=[(1, 10, True), (2, 20, False), (3, 30, None)],
        target_schema="k INT, v INT, p BOOLEAN",
        partition_by=("p",),
        source=[(1, 100), (2, 200), (3, 300)],
        on="t.k = s.k AND t.p",
        clauses=(update({"v": "s.v", "p": "NOT t.p"}),),
        expected=[
            (1, 100, False),  # updated, and moved
            (2, 20, False),
            (3, 30, None),
        ],
    ),
    MergeCase(
        name="partitioned_by_timestamp_without_zone",
        target=[
            (1, dt.datetime(2024, 3, 31, 2, 30)),
            (2, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ],
        target_schema="k INT, p TIMESTAMP_NTZ",
        partition_by=("p",),
        source=[(1, dt.datetime(2024, 3, 31, 2, 30)), (3, dt.datetime(2024, 10, 27, 2, 30))],
        source_schema="k INT, p TIMESTAMP_NTZ",
        on="t.p = s.p",
        clauses=(update({"k": "t.k + 10"}), insert_all()),
        expected=[
            (11, dt.datetime(2024, 3, 31, 2, 30)),  # updated: no zone, no gap in spring
            (2, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)),
            (3, dt.datetime(2024, 10, 27, 2, 30)),  # inserted
        ],
    ),
    MergeCase(
        name="partitioned_by_numbers_of_several_sizes",
        target=[(1, -128, 2**63 - 1, 0.5), (2, 127, -(2**63), 1e300)],
        target_schema="k INT, a TINYINT, b BIGINT, c DOUBLE",
        partition_by=("a", "b", "c"),
        source=[(1, -128, 2**63 - 1, 0.5), (2, 127, 0, 1e300)],
        source_schema="k INT, a TINYINT, b BIGINT, c DOUBLE",
        on="t.a = s.a AND t.b = s.b AND t.c = s.c",
        clauses=(update({"k": "-1"}), insert_all()),
        expected=[
            (-1, -128, 2**63 - 1, 0.5),  # updated
            (2, 127, -(2**63), 1e300),
            (2, 127, 0, 1e300),  # inserted
        ],
    ),
    MergeCase(
        name="one_of_two_partition_columns_is_updated",
        target=[(1, "a", 1), (2, "a", 2), (3, "b", 1)],
        target_schema="k INT, p STRING, q INT",
        partition_by=("p", "q"),
        source=[(2,), (3,)],
        source_schema="k INT",
        clauses=(update({"q": "t.q + 1"}),),
        expected=[
            (1, "a", 1),
            (2, "a", 3),  # updated, into a new partition
            (3, "b", 2),  # updated, into a new partition
        ],
    ),
    MergeCase(
        name="partitions_of_a_range_of_dates",
        target=[(day, dt.date(2024, 1, day)) for day in (1, 2, 3, 4)],
        target_schema="k INT, p DATE",
        partition_by=("p",),
        source=[(2,), (9,)],
        source_schema="k INT",
        on="t.k = s.k AND t.p BETWEEN DATE'2024-01-02' AND DATE'2024-01-03'",
        clauses=(
            delete(),
            insert({"k": "s.k", "p": "'2024-01-09'"}),
            by_source_delete("t.p >= DATE'2024-01-04'"),
        ),
        expected=[
            (1, dt.date(2024, 1, 1)),
            (3, dt.date(2024, 1, 3)),  # (2, …) deleted as matched, (4, …) as not matched by source
            (9, dt.date(2024, 1, 9)),  # inserted, a string cast to a date
        ],
    ),
    MergeCase(
        name="partitioned_by_text_that_looks_like_something_else",
        target=[(i, p) for i, p in enumerate(("1", "01", "true", "NULL", "2024-01-01", "1.0"))],
        target_schema="k INT, p STRING",
        partition_by=("p",),
        source=[("01", 10), ("null", 30), ("1.0", 50)],
        source_schema="p STRING, k INT",
        on="t.p = s.p",
        clauses=(update_all(), insert_all()),
        expected=[
            (0, "1"),
            (10, "01"),  # updated
            (2, "true"),
            (3, "NULL"),
            (4, "2024-01-01"),
            (50, "1.0"),  # updated
            (30, "null"),  # inserted
        ],
    ),
    MergeCase(
        name="value_too_great_for_its_partition_column_is_an_error",
        target=[(1, 10)],
        target_schema="k INT, p TINYINT",
        partition_by=("p",),
        source=[(1, 128)],
        source_schema="k INT, p INT",
        clauses=(update_all(),),
        error="DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
    ),
)
