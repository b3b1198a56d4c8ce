"""ON: null and odd keys, keys of several types, conditions that are no plain equality."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from tests.merge_cases.case import (
    MergeCase,
    by_source_delete,
    delete,
    insert_all,
    update,
    update_all,
)

NAN = float("nan")

# Delta keeps the first 32 characters of a string in a file's statistics.
LONG = "x" * 40

CASES = (
    MergeCase(
        name="null_keys_never_match_under_equality",
        target=[(None, 10), (1, 11)],
        source=[(None, 100), (1, 110)],
        clauses=(update_all(), insert_all()),
        expected=[
            (None, 10),
            (None, 100),  # inserted
            (1, 110),  # (1, 11) updated
        ],
    ),
    MergeCase(
        name="null_keys_match_under_null_safe_equality",
        target=[(None, 10), (1, 11)],
        files=2,
        source=[(None, 100), (2, 200)],
        on="t.k <=> s.k",
        clauses=(update_all(), insert_all()),
        expected=[
            (None, 100),  # (null, 10) updated
            (1, 11),
            (2, 200),  # inserted
        ],
        why="a file of null keys has no smallest and no greatest key",
    ),
    MergeCase(
        name="insert_only_with_null_keys",
        target=[(None, 10), (1, 11)],
        source=[(None, 100), (1, 110)],
        clauses=(insert_all(),),
        expected=[(None, 10), (None, 100), (1, 11)],  # (null, 100) inserted
    ),
    MergeCase(
        name="insert_only_under_null_safe_equality",
        target=[(None, 10), (1, 11)],
        source=[(None, 100), (2, 200)],
        on="t.k <=> s.k",
        clauses=(insert_all(),),
        expected=[(None, 10), (1, 11), (2, 200)],  # (2, 200) inserted
    ),
    MergeCase(
        name="null_keys_matched_by_is_null",
        target=[(None, 10), (1, 11), (2, 20)],
        source=[(None, 100), (1, 110)],
        on="t.k = s.k OR (t.k IS NULL AND s.k IS NULL)",
        clauses=(update_all(),),
        expected=[
            (None, 100),  # (null, 10) updated
            (1, 110),  # (1, 11) updated
            (2, 20),
        ],
    ),
    MergeCase(
        name="key_of_two_columns",
        target=[(1, "a", 10), (1, "b", 11), (2, "a", 20)],
        target_schema="k INT, j STRING, v INT",
        source=[(1, "b", 110), (2, "b", 210)],
        source_schema="k INT, j STRING, v INT",
        on="t.k = s.k AND t.j = s.j",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, "a", 10),
            (1, "b", 110),  # (1, 'b', 11) updated
            (2, "a", 20),
            (2, "b", 210),  # inserted
        ],
    ),
    MergeCase(
        name="conjunct_on_the_target_alone",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(1, 100), (3, 300)],
        on="t.k = s.k AND t.v > 15",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 10),
            (1, 100),  # inserted: (1, 10) does not satisfy t.v > 15
            (2, 20),
            (3, 300),  # (3, 30) updated
        ],
    ),
    MergeCase(
        name="conjunct_on_the_source_alone",
        target=[(1, 10), (2, 20)],
        source=[(1, 100), (2, 200)],
        on="t.k = s.k AND s.v > 150",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, 10),
            (1, 100),  # inserted: it does not satisfy s.v > 150
            (2, 200),  # (2, 20) updated
        ],
    ),
    MergeCase(
        name="condition_on_the_target_alone_matches_every_source_row",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20)],
        source=[(7, 70)],
        on="t.k = 2",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[(1, 10), (2, 70)],  # (2, 20) updated
    ),
    MergeCase(
        name="condition_that_is_always_true",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20)],
        source=[(7, 70)],
        on="true",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[(1, 70), (2, 70)],  # both updated
    ),
    MergeCase(
        name="condition_that_is_never_true",
        target=[(1, 10), (2, 20)],
        source=[(1, 100)],
        on="1 = 0",
        clauses=(update_all(), insert_all()),
        expected=[(1, 10), (1, 100), (2, 20)],  # (1, 100) inserted
    ),
    MergeCase(
        name="inequality",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(2, 0)],
        on="t.k < s.k",
        clauses=(delete(), insert_all()),
        expected=[(2, 20), (3, 30)],  # (1, 10) deleted
    ),
    MergeCase(
        name="range_condition",
        oracle_overcounts=True,
        target=[(1, 10), (5, 50), (15, 150), (25, 250)],
        source=[(0, 9, 1), (20, 29, 3), (40, 49, 5)],
        source_schema="low INT, high INT, v INT",
        on="t.k BETWEEN s.low AND s.high",
        clauses=(update({"v": "s.v"}), by_source_delete()),
        expected=[
            (1, 1),  # (1, 10) updated
            (5, 1),  # (5, 50) updated by the same source row
            (25, 3),  # (25, 250) updated
        ],  # (15, 150) deleted
    ),
    MergeCase(
        name="disjunction",
        oracle_overcounts=True,
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 99), (9, 30)],
        on="t.k = s.k OR t.v = s.v",
        clauses=(update({"v": "s.v + 1"}), insert_all()),
        expected=[
            (1, 100),  # (1, 10) updated, by its key
            (2, 20),
            (3, 31),  # (3, 30) updated, by its value
        ],
    ),
    MergeCase(
        name="expressions_of_the_keys",
        target=[(-1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(0, 100), (2, 300)],
        on="abs(t.k) = s.k + 1",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            (-1, 100),  # (-1, 10) updated
            (2, 20),
            (3, 300),  # (3, 30) updated
        ],
    ),
    MergeCase(
        name="string_key_against_int_key",
        target=[("1", 10), ("02", 20), (" 3", 30)],
        target_schema="k STRING, v INT",
        files=3,
        source=[(1, 100), (2, 200), (3, 300), (4, 400)],
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            ("1", 100),  # ('1', 10) updated
            ("02", 200),  # ('02', 20) updated: compared as a number
            (" 3", 300),  # (' 3', 30) updated
            ("4", 400),  # inserted
        ],
        why="order of strings is not order of numbers: statistics of the one say nothing of "
        "the other",
    ),
    MergeCase(
        name="int_key_against_bigint_key_beyond_its_range",
        target=[(1, 10), (2147483647, 20)],
        source=[(2147483647, 200), (2147483648, 300)],
        source_schema="k BIGINT, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[(1, 10), (2147483647, 200)],  # the greatest int updated
    ),
    MergeCase(
        name="int_key_against_double_key",
        target=[(1, 10), (2, 20), (3, 30)],
        files=3,
        source=[(1.0, 100), (2.5, 250)],
        source_schema="k DOUBLE, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[(1, 100), (2, 20), (3, 30)],  # (1, 10) updated
    ),
    MergeCase(
        name="decimal_keys_of_different_scale",
        target=[(Decimal("1.50"), 10), (Decimal("2.25"), 20)],
        target_schema="k DECIMAL(10, 2), v INT",
        files=2,
        source=[(Decimal("1.5000"), 100), (Decimal("2.2501"), 200)],
        source_schema="k DECIMAL(20, 4), v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[
            (Decimal("1.50"), 100),  # updated
            (Decimal("2.25"), 20),
        ],
    ),
    MergeCase(
        name="nan_keys_match_each_other",
        target=[(NAN, 10), (1.0, 11)],
        target_schema="k DOUBLE, v INT",
        files=2,
        source=[(NAN, 100), (2.0, 200)],
        source_schema="k DOUBLE, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (NAN, 100),  # (NaN, 10) updated
            (1.0, 11),
            (2.0, 200),  # inserted
        ],
    ),
    MergeCase(
        name="negative_zero_matches_zero",
        target=[(-0.0, 10), (0.0, 11), (1.0, 12)],
        target_schema="k DOUBLE, v INT",
        files=3,
        source=[(0.0, 100)],
        source_schema="k DOUBLE, v INT",
        clauses=(update({"v": "s.v"}), insert_all()),
        expected=[
            (-0.0, 100),  # (-0.0, 10) updated
            (0.0, 100),  # (0.0, 11) updated
            (1.0, 12),
        ],
    ),
    MergeCase(
        name="strings_equal_to_the_end",
        target=[("a", 10), ("a ", 11), ("A", 12), ("", 13), (None, 14)],
        target_schema="k STRING, v INT",
        source=[("a", 100), ("", 130), ("null", 140)],
        source_schema="k STRING, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            ("a", 100),  # ('a', 10) updated
            ("a ", 11),
            ("A", 12),
            ("", 130),  # ('', 13) updated: empty is not null
            (None, 14),
            ("null", 140),  # inserted
        ],
    ),
    MergeCase(
        name="strings_longer_than_the_statistics",
        target=[(LONG + "a", 10), (LONG + "b", 20), ("\U0001f680" * 40, 30)],
        target_schema="k STRING, v INT",
        files=3,
        source=[(LONG + "b", 200), ("\U0001f680" * 40, 300), (LONG, 400)],
        source_schema="k STRING, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (LONG + "a", 10),
            (LONG + "b", 200),  # updated
            ("\U0001f680" * 40, 300),  # updated
            (LONG, 400),  # inserted
        ],
        why="the greatest value is cut and made greater: pruning must widen, never narrow",
    ),
    MergeCase(
        name="timestamps_finer_than_the_statistics",
        target=[
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123456), 10),
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123999), 20),
        ],
        target_schema="k TIMESTAMP, v INT",
        files=2,
        source=[
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123456), 100),
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123999), 200),
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123000), 300),
        ],
        source_schema="k TIMESTAMP, v INT",
        clauses=(update_all(),),
        expected=[
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123456), 100),  # updated
            (dt.datetime(2024, 5, 1, 12, 0, 0, 123999), 200),  # updated
        ],
        why="statistics hold milliseconds: both files' bounds lie below their own value",
    ),
    MergeCase(
        name="date_key_against_string_key",
        target=[(dt.date(2024, 1, 31), 10), (dt.date(1066, 10, 14), 20)],
        target_schema="k DATE, v INT",
        files=2,
        source=[("2024-01-31", 100), ("1066-10-14", 200)],
        source_schema="k STRING, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[(dt.date(2024, 1, 31), 100), (dt.date(1066, 10, 14), 200)],  # both updated
    ),
    MergeCase(
        name="boolean_and_binary_keys",
        target=[(True, bytearray(b"\x00\xff"), 10), (False, bytearray(b""), 20)],
        target_schema="k BOOLEAN, b BINARY, v INT",
        source=[(True, bytearray(b"\x00\xff"), 100), (True, bytearray(b""), 300)],
        source_schema="k BOOLEAN, b BINARY, v INT",
        on="t.k = s.k AND t.b = s.b",
        clauses=(update_all(), insert_all()),
        expected=[
            (True, bytearray(b"\x00\xff"), 100),  # updated
            (False, bytearray(b""), 20),
            (True, bytearray(b""), 300),  # inserted
        ],
    ),
    MergeCase(
        name="keys_inside_a_struct",
        target=[((1, "a"), 10), ((2, "b"), 20), (None, 30)],
        target_schema="id STRUCT<n: INT, c: STRING>, v INT",
        source=[(1, 100), (3, 300)],
        on="t.id.n = s.k",
        clauses=(update({"v": "s.v"}), by_source_delete("t.v > 25")),
        expected=[
            ((1, "a"), 100),  # updated
            ((2, "b"), 20),
        ],  # (null, 30) deleted
    ),
    MergeCase(
        name="whole_structs_as_keys",
        target=[((1, "a"), 10), ((1, None), 20), (None, 30)],
        target_schema="k STRUCT<n: INT, c: STRING>, v INT",
        source=[((1, "a"), 100), ((1, None), 200), (None, 300)],
        source_schema="k STRUCT<n: INT, c: STRING>, v INT",
        clauses=(update({"v": "s.v"}), by_source_delete()),
        expected=[
            ((1, "a"), 100),  # updated
            ((1, None), 200),  # updated: nulls inside structs are equal
        ],  # (null, 30) deleted: a null struct is not
    ),
    MergeCase(
        name="keys_that_cannot_be_cast_into_an_empty_table",
        source=[("a", 100)],
        source_schema="k STRING, v INT",
        clauses=(update({"v": "s.v"}),),
        expected=[],
        why="Casting the key fails, but with nothing to join it is never cast.",
    ),
)
