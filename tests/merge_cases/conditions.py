"""ON and AND: conditions of other shapes than those of plain keys."""

from __future__ import annotations

import datetime as dt

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    delete,
    insert_all,
    update,
    update_all,
)

NAN = float("nan")

CASES = (
    MergeCase(
        name="key_in_a_list_of_source_columns",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 3, 100)],
        source_schema="a INT, b INT, v INT",
        on="t.k IN (s.a, s.b)",
        clauses=(update({"v": "s.v"}),),
        expected=[
            (1, 100),  # updated
            (2, 20),
            (3, 100),  # updated by the same source row
        ],
    ),
    MergeCase(
        name="key_in_an_array_of_the_source",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20), (3, 30)],
        source=[([1, 2, None], 100), ([], 200)],
        source_schema="keys ARRAY<INT>, v INT",
        on="array_contains(s.keys, t.k)",
        clauses=(update({"v": "s.v"}), by_source_delete()),
        expected=[
            (1, 100),  # updated
            (2, 100),  # updated
        ],  # (3, 30) deleted: array_contains gives null for it
    ),
    MergeCase(
        name="pattern_of_the_source",
        oracle_overcounts=True,
        target=[("ab", 10), ("a%", 20), ("cd", 30)],
        target_schema="k STRING, v INT",
        source=[("a\\%", 100), ("c_", 300)],
        source_schema="k STRING, v INT",
        on="t.k LIKE s.k",
        clauses=(update({"v": "s.v"}),),
        expected=[
            ("ab", 10),
            ("a%", 100),  # updated: its percent sign was escaped
            ("cd", 300),  # updated
        ],
    ),
    MergeCase(
        name="condition_that_is_null",
        oracle_overcounts=True,
        target=[(1, 10)],
        source=[(1, 100)],
        on="CAST(NULL AS BOOLEAN)",
        clauses=(update_all(), insert_all(), by_source_delete()),
        expected=[(1, 100)],  # inserted; (1, 10) deleted, for nothing matches
    ),
    MergeCase(
        name="negated_equality_matches_no_null",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20), (None, 30)],
        source=[(1, 100)],
        on="NOT (t.k = s.k)",
        clauses=(delete(),),
        expected=[(1, 10), (None, 30)],  # (2, 20) deleted
    ),
    MergeCase(
        name="arrays_as_keys",
        target=[([1, None], 10), ([], 20), (None, 30)],
        target_schema="k ARRAY<INT>, v INT",
        source=[([1, None], 100), ([], 200), (None, 300)],
        source_schema="k ARRAY<INT>, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[
            ([1, None], 100),  # updated: nulls inside arrays are equal
            ([], 200),  # updated
            (None, 30),
        ],
    ),
    MergeCase(
        name="timestamp_against_timestamp_without_zone_and_date",
        target=[(dt.datetime(2024, 5, 1, 0, 0), 10), (dt.datetime(2024, 5, 2, 6, 0), 20)],
        target_schema="k TIMESTAMP_NTZ, v INT",
        files=2,
        source=[(dt.date(2024, 5, 1), 100), (dt.date(2024, 5, 2), 200)],
        source_schema="k DATE, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[
            (dt.datetime(2024, 5, 1, 0, 0), 100),  # updated: midnight of its date
            (dt.datetime(2024, 5, 2, 6, 0), 20),
        ],
    ),
    MergeCase(
        name="nan_is_greater_than_every_number",
        oracle_overcounts=True,
        target=[(1.0, 10), (NAN, 20), (None, 30)],
        target_schema="k DOUBLE, v INT",
        files=3,
        source=[(1e308, 100)],
        source_schema="k DOUBLE, v INT",
        on="t.k > s.k",
        clauses=(delete(),),
        expected=[(1.0, 10), (None, 30)],  # (NaN, 20) deleted
    ),
    MergeCase(
        name="interval_arithmetic_on_both_sides",
        oracle_overcounts=True,
        target=[(dt.date(2024, 1, 31), 10), (dt.date(2024, 3, 1), 20)],
        target_schema="k DATE, v INT",
        source=[(dt.date(2024, 2, 1), 100)],
        source_schema="k DATE, v INT",
        on="t.k BETWEEN s.k - INTERVAL '1' DAY AND s.k + INTERVAL '1' DAY",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            (dt.date(2024, 1, 31), 100),  # updated
            (dt.date(2024, 3, 1), 20),
        ],
    ),
    MergeCase(
        name="null_safe_key_of_two_columns",
        target=[(None, None, 10), (1, None, 20), (None, "a", 30)],
        target_schema="k INT, j STRING, v INT",
        source=[(None, None, 100), (None, "a", 300), (1, "a", 400)],
        source_schema="k INT, j STRING, v INT",
        on="t.k <=> s.k AND t.j <=> s.j",
        clauses=(update_all(), insert_all()),
        expected=[
            (None, None, 100),  # updated
            (1, None, 20),
            (None, "a", 300),  # updated
            (1, "a", 400),  # inserted
        ],
    ),
)
