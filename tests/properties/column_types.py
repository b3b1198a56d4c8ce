"""Column types with values and expressions to draw: few of each, so that rows meet."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, eq=False)
class Type:
    """A column type.

    Attributes:
        sql: Its name.
        values: Values as Python gives them to Spark.
        constants: Expressions of the type that read no column.
        terms: Expressions of the type, with `{}` for a column of it.
        tests: Conditions, with `{}` for a column of it.
        ordered: Whether values can be compared.
        partitions: Whether a table can be partitioned by it.
    """

    sql: str
    values: tuple[Any, ...]
    constants: tuple[str, ...]
    terms: tuple[str, ...]
    tests: tuple[str, ...]
    ordered: bool = True
    partitions: bool = True

    def __repr__(self) -> str:
        return self.sql


_NULL_TESTS = ("{} IS NOT NULL", "{} IS NULL")

INT = Type(
    "INT",
    (1, 2, 3, 4, 5, 0, -1, None),
    ("0", "7", "-1"),
    ("{} + 1", "coalesce({}, 9)", "-{}"),
    ("{} > 1", "{} = 2", "{} IN (1, 3, NULL)", "{} % 2 = 0", *_NULL_TESTS),
)
BIGINT = Type(
    "BIGINT",
    (1, 2, 3, 2**63 - 1, -(2**63), -(2**31) - 1, 2**53, 2**53 + 1, None),
    ("0", "9223372036854775807"),
    ("{} % 10", "coalesce({}, 9)"),
    ("{} > 1", "{} = 2", "{} BETWEEN 1 AND 2", *_NULL_TESTS),
)
DOUBLE = Type(
    "DOUBLE",
    (1.5, 0.0, -0.0, float("nan"), float("inf"), 2.0, 2.0**53, float("-inf"), -1e300, None),
    ("0D", "-0D", "CAST('NaN' AS DOUBLE)", "1.5D"),
    ("-{}", "{} * 0", "coalesce({}, 2D)"),
    ("{} > 0", "{} = 0", "{} <= 1.5", "isnan({})", "NOT isnan({})", *_NULL_TESTS),
)
DECIMAL = Type(
    "DECIMAL(6, 2)",
    (Decimal("1.50"), Decimal("0.00"), Decimal("-9999.99"), Decimal("2.00"), None),
    ("1.50", "0", "CAST(2 AS DECIMAL(6, 2))"),
    ("{} / 2", "-{}", "coalesce({}, 1)"),
    ("{} > 0", "{} = 1.5", "{} < 2", *_NULL_TESTS),
)
FLOAT = Type(
    "FLOAT",
    (1.5, 0.0, -0.0, float("nan"), float("-inf"), 2.0, 0.1, 3.4e38, 2.0**24, None),
    ("0F", "CAST(0.1 AS FLOAT)", "CAST('Infinity' AS FLOAT)"),
    ("-{}", "coalesce({}, 2F)"),
    ("{} > 0", "{} = 0", "{} <= 1.5", "isnan({})", *_NULL_TESTS),
)
DECIMAL_OF_CENTS = Type(
    "DECIMAL(10, 2)",
    (Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("0.01"), Decimal(0), None),
    ("-0.01", "CAST(0 AS DECIMAL(10, 2))"),
    ("-{}", "coalesce({}, 1)"),
    ("{} > 0", "{} = 0.01", *_NULL_TESTS),
)
# 17 digits and more are no double, nor are they exact in Python without care.
DECIMAL_OF_38_DIGITS = Type(
    "DECIMAL(38, 0)",
    (
        Decimal("9" * 38),
        Decimal("9" * 37 + "8"),
        Decimal("-" + "9" * 38),
        Decimal(2**53 + 1),
        Decimal(2**53),
        Decimal(1),
        None,
    ),
    ("CAST(1 AS DECIMAL(38, 0))", "99999999999999999999999999999999999997"),
    ("-{}", "coalesce({}, 1)"),
    ("{} > 9007199254740992", "{} = 1", *_NULL_TESTS),
)
DECIMAL_OF_38_DIGITS_IN_ALL = Type(
    "DECIMAL(38, 10)",
    (
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("9" * 28 + "." + "9" * 9 + "8"),
        Decimal("-" + "9" * 28 + "." + "9" * 10),
        Decimal("1234567.0123456789"),
        Decimal("1234567.0123456788"),
        Decimal(0),
        None,
    ),
    ("CAST(0 AS DECIMAL(38, 10))", "1234567.0123456789"),
    ("-{}", "coalesce({}, 1)"),
    ("{} > 1234567.0123456788", "{} = 0", *_NULL_TESTS),
)
# Statistics keep the first 32 characters of a string, and writers order them by their UTF-8.
STRING = Type(
    "STRING",
    (
        "a",
        "b",
        "",
        "A",
        "ü",
        "日本 %/=:",
        "it's",
        "x" * 40,
        "x" * 32 + "b",
        "x" * 31 + "\ufb01" + "x" * 8,
        "x" * 31 + "\U0001f600" + "x" * 8,
        "\U0010ffff" * 3,
        None,
    ),
    ("''", "'a'", "'ß\\n'"),
    ("{} || '!'", "upper({})", "coalesce({}, '')"),
    ("{} > 'a'", "{} = ''", "{} LIKE 'a%'", "{} <> 'b'", *_NULL_TESTS),
)
BOOLEAN = Type(
    "BOOLEAN",
    (True, False, None),
    ("true", "false"),
    ("NOT {}", "coalesce({}, true)"),
    ("{}", "NOT {}", *_NULL_TESTS),
)
# No term leads out of the years that Python has.
DATE = Type(
    "DATE",
    (
        dt.date(2024, 2, 29),
        dt.date(1970, 1, 1),
        dt.date(1582, 10, 4),
        dt.date(2024, 3, 1),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        None,
    ),
    ("DATE'2024-02-29'", "DATE'1969-12-31'"),
    ("date_add(trunc({}, 'MM'), 1)", "coalesce({}, DATE'1970-01-01')"),
    ("{} > DATE'2000-01-01'", "{} = DATE'1970-01-01'", *_NULL_TESTS),
)
TIMESTAMP = Type(
    "TIMESTAMP",
    (
        dt.datetime(2024, 3, 31, 2, 30, 0, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2024, 1, 1),
        dt.datetime(2024, 1, 1, 0, 0, 0, 999),
        dt.datetime(1, 1, 3, 0, 0, 0, 1),
        dt.datetime(9999, 12, 30, 23, 59, 59, 999999),
        None,
    ),
    ("TIMESTAMP'2024-01-01 00:00:00'", "TIMESTAMP'2024-01-01 00:00:00.000001Z'"),
    ("{} + INTERVAL 1 MICROSECOND", "date_trunc('DAY', {})"),
    ("{} > TIMESTAMP'2000-01-01 00:00:00'", "year({}) = 2024", *_NULL_TESTS),
)
TIMESTAMP_NTZ = Type(
    "TIMESTAMP_NTZ",
    (
        dt.datetime(2024, 3, 10, 2, 30, 0, 1),  # which no clock in New York shows
        dt.datetime(2024, 3, 10, 2, 30),
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        None,
    ),
    ("TIMESTAMP_NTZ'2024-03-10 02:30:00'", "TIMESTAMP_NTZ'1969-12-31 23:59:59.999999'"),
    ("coalesce({}, TIMESTAMP_NTZ'2024-03-10 02:30:00')",),
    ("{} > TIMESTAMP_NTZ'2000-01-01 00:00:00'", "year({}) = 2024", *_NULL_TESTS),
)
BINARY = Type(
    "BINARY",
    (b"a", b"", b"\x00\xff", None),
    ("X'00FF'", "X''"),
    ("{} || X'00'",),
    ("{} = X''", "length({}) > 0", *_NULL_TESTS),
    partitions=False,
)
STRUCT = Type(
    "STRUCT<a: INT, b: STRING>",
    ((1, "x"), (None, None), (2, ""), None),
    ("named_struct('a', 7, 'b', 'z')", "named_struct('b', '', 'a', CAST(NULL AS INT))"),
    ("named_struct('a', {0}.a + 1, 'b', {0}.b)",),
    ("{}.a = 1", "{}.b IS NULL", *_NULL_TESTS),
    partitions=False,
)
REORDERED_STRUCT = Type(
    "STRUCT<b: STRING, c: DATE, a: INT>",
    (("y", dt.date(2024, 2, 29), 1), (None, None, 3), None),
    ("named_struct('b', 'q', 'c', DATE'1970-01-01', 'a', 0)",),
    ("coalesce({}, NULL)",),
    ("{}.a = 1", "{}.c IS NOT NULL", *_NULL_TESTS),
    partitions=False,
)
ARRAY = Type(
    "ARRAY<INT>",
    ([1], [], [None, 2], None),
    ("array(1, NULL)", "CAST(array() AS ARRAY<INT>)"),
    ("array_append({}, 3)", "reverse({})"),
    ("size({}) > 0", "array_contains({}, 1)", "{} = array(1)", *_NULL_TESTS),
    partitions=False,
)
MAP = Type(
    "MAP<STRING, INT>",
    ({"a": 1}, {}, {"b": None, "ü": 2}, None),
    ("map('c', 3)", "map('', CAST(NULL AS INT))"),
    ("map_filter({}, (k, v) -> v > 1)",),
    ("size({}) > 0", "map_contains_key({}, 'a')", *_NULL_TESTS),
    ordered=False,
    partitions=False,
)

KEYS = (
    INT,
    INT,
    STRING,
    STRING,
    DATE,
    DECIMAL,
    DECIMAL_OF_CENTS,
    DECIMAL_OF_38_DIGITS,
    DECIMAL_OF_38_DIGITS_IN_ALL,
    DOUBLE,
    FLOAT,
    BIGINT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    BOOLEAN,
    BINARY,
)
# Keys that the driver compares.
# Types in which Spark compares whole numbers with those of the other column.
WIDER: dict[Type, tuple[Type, ...]] = {INT: (BIGINT, DOUBLE), BIGINT: (DOUBLE,)}
EXACT = tuple(key for key in KEYS if key not in (DOUBLE, FLOAT, BOOLEAN, BINARY))
ALL = (
    INT,
    STRING,
    BIGINT,
    DOUBLE,
    FLOAT,
    DECIMAL,
    DECIMAL_OF_38_DIGITS_IN_ALL,
    TIMESTAMP_NTZ,
    BOOLEAN,
    DATE,
    TIMESTAMP,
    BINARY,
    STRUCT,
    ARRAY,
    MAP,
)
# Other types, some of whose values can be stored as the type.
STORED_AS: dict[Type, tuple[Type, ...]] = {
    INT: (BIGINT, STRING),
    BIGINT: (INT, DOUBLE),
    DOUBLE: (INT, DECIMAL, BIGINT),
    FLOAT: (INT, DOUBLE),
    DECIMAL_OF_38_DIGITS: (BIGINT, DECIMAL_OF_CENTS),
    DECIMAL_OF_38_DIGITS_IN_ALL: (BIGINT, DECIMAL_OF_CENTS),
    DECIMAL: (INT, DOUBLE),
    STRING: (INT, DATE),
    DATE: (TIMESTAMP,),
    TIMESTAMP: (DATE,),
    TIMESTAMP_NTZ: (DATE,),
    STRUCT: (REORDERED_STRUCT,),
}
# A field of a struct that can be assigned by itself, and its type.
FIELDS: dict[Type, tuple[str, Type]] = {STRUCT: ("a", INT), REORDERED_STRUCT: ("c", DATE)}
