"""Keys at the ends of their types, each in a file of its own that must be found by it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from tests.merge_cases.case import MergeCase, insert_all, update_all

LONG = "x" * 32

CASES = (
    MergeCase(
        name="dates_before_the_year_1000_and_at_the_end_of_the_calendar",
        target=[
            (dt.date(1, 1, 1), 10),
            (dt.date(999, 12, 31), 20),
            (dt.date(1582, 10, 10), 30),
            (dt.date(9999, 12, 31), 40),
        ],
        target_schema="k DATE, v INT",
        files=4,
        source=[
            (dt.date(1, 1, 1), 100),
            (dt.date(999, 12, 30), 190),
            (dt.date(1582, 10, 10), 300),
            (dt.date(9999, 12, 31), 400),
        ],
        source_schema="k DATE, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (dt.date(1, 1, 1), 100),  # updated
            (dt.date(999, 12, 30), 190),  # inserted
            (dt.date(999, 12, 31), 20),
            (dt.date(1582, 10, 10), 300),  # updated: no day of java.sql's calendar
            (dt.date(9999, 12, 31), 400),  # updated
        ],
    ),
    MergeCase(
        name="many_dates_from_the_first_of_all",
        target=[(dt.date(1, 1, 1), 10), (dt.date(2024, 1, 1), 20)],
        target_schema="k DATE, v INT",
        files=2,
        source=[(dt.date(1, 1, day), day) for day in range(1, 13)],
        source_schema="k DATE, v INT",
        clauses=(update_all(),),
        expected=[
            (dt.date(1, 1, 1), 1),  # updated
            (dt.date(2024, 1, 1), 20),
        ],
        why="of more than ten values, the lowest and the highest are told to Parquet",
    ),
    MergeCase(
        name="decimals_of_38_digits",
        target=[
            (Decimal("9" * 38), 10),
            (Decimal("9" * 37 + "8"), 20),
            (Decimal("-" + "9" * 38), 30),
            (Decimal(0), 40),
        ],
        target_schema="k DECIMAL(38, 0), v INT",
        files=4,
        source=[(Decimal("9" * 38), 100), (Decimal("-" + "9" * 38), 300), (Decimal(100), 500)],
        source_schema="k DECIMAL(38, 0), v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (Decimal("9" * 38), 100),  # updated
            (Decimal("9" * 37 + "8"), 20),
            (Decimal("-" + "9" * 38), 300),  # updated
            (Decimal(0), 40),
            (Decimal(100), 500),  # inserted
        ],
    ),
    MergeCase(
        name="whole_numbers_at_both_ends",
        target=[(2**63 - 1, 10), (-(2**63), 20), (2**53 + 1, 30), (2**53, 40)],
        target_schema="k BIGINT, v INT",
        files=4,
        source=[(2**63 - 1, 100), (-(2**63), 200), (2**53 + 1, 300)],
        source_schema="k BIGINT, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            (2**63 - 1, 100),  # updated
            (-(2**63), 200),  # updated
            (2**53 + 1, 300),  # updated
            (2**53, 40),
        ],
    ),
    MergeCase(
        name="texts_of_any_characters",
        target=[
            ("it's", 10),
            ("a\\b\nc", 20),
            (LONG + "a", 30),
            (LONG + "b", 40),
            ("\U0010ffff" * 33, 50),
            ("nul\x00l", 60),
        ],
        target_schema="k STRING, v INT",
        files=6,
        source=[
            ("it's", 100),
            ("a\\b\nc", 200),
            (LONG + "b", 400),
            ("\U0010ffff" * 33, 500),
            ("nul\x00l", 600),
            ('%`"', 700),
        ],
        source_schema="k STRING, v INT",
        clauses=(update_all(), insert_all()),
        expected=[
            ("it's", 100),  # updated
            ("a\\b\nc", 200),  # updated
            (LONG + "a", 30),
            (LONG + "b", 400),  # updated
            ("\U0010ffff" * 33, 500),  # updated
            ("nul\x00l", 600),  # updated
            ('%`"', 700),  # inserted
        ],
    ),
    MergeCase(
        name="times_of_no_zone_at_both_ends",
        target=[
            (dt.datetime(1, 1, 1, 0, 0, 0, 1), 10),
            (dt.datetime(2024, 3, 10, 2, 30), 20),
            (dt.datetime(9999, 12, 31, 23, 59, 59, 999999), 30),
        ],
        target_schema="k TIMESTAMP_NTZ, v INT",
        files=3,
        source=[
            (dt.datetime(1, 1, 1, 0, 0, 0, 1), 100),
            (dt.datetime(2024, 3, 10, 2, 30), 200),
            (dt.datetime(9999, 12, 31, 23, 59, 59, 999999), 300),
            (dt.datetime(9999, 12, 31, 23, 59, 59, 999998), 400),
        ],
        source_schema="k TIMESTAMP_NTZ, v INT",
        conf={"spark.sql.session.timeZone": "America/New_York"},
        clauses=(update_all(), insert_all()),
        expected=[
            (dt.datetime(1, 1, 1, 0, 0, 0, 1), 100),  # updated
            (dt.datetime(2024, 3, 10, 2, 30), 200),  # updated
            (dt.datetime(9999, 12, 31, 23, 59, 59, 999999), 300),  # updated
            (dt.datetime(9999, 12, 31, 23, 59, 59, 999998), 400),  # inserted
        ],
    ),
)
