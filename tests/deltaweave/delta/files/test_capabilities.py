"""The table of what Arrow gives as Spark does: each type of Spark for each use, and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mypy import api
from pyspark.sql import types as T

from deltaweave._validation import Verdict
from deltaweave.delta.files import (
    Capable,
    Reading,
    Use,
    capabilities,
    capability,
    comparable,
)
from deltaweave.delta.files.capabilities import writable

ALL = "key read copy through_spark write partition identity"
KEY = "key read copy through_spark write identity"
TIME = "key read copy through_spark write"
VALUE = "read copy through_spark write identity"
FILES = "copy write"

# Every type of Spark 4.2, and the uses that are allowed.
MATRIX: dict[str, tuple[Any, str]] = {
    "byte": (T.ByteType(), ALL),
    "short": (T.ShortType(), ALL),
    "integer": (T.IntegerType(), ALL),
    "long": (T.LongType(), ALL),
    "date": (T.DateType(), ALL),
    "string": (T.StringType(), ALL),
    "decimal": (T.DecimalType(10, 2), KEY),  # partitions have several texts of a number
    "widest decimal": (T.DecimalType(38, 38), KEY),
    "timestamp": (T.TimestampType(), TIME),  # the session's zone decides how it is collected
    "timestamp_ntz": (T.TimestampNTZType(), TIME),
    "float": (T.FloatType(), VALUE),  # NaN equals NaN in Spark alone
    "double": (T.DoubleType(), VALUE),
    "boolean": (T.BooleanType(), VALUE),
    "binary": (T.BinaryType(), "read copy through_spark write"),
    "array": (T.ArrayType(T.StringType()), FILES),
    "map": (T.MapType(T.StringType(), T.DoubleType()), FILES),
    "struct": (T.StructType([T.StructField("a", T.LongType())]), f"{FILES} identity"),
    "struct of a time": (T.StructType([T.StructField("a", T.TimestampType())]), FILES),
    "deeply nested": (T.ArrayType(T.MapType(T.StringType(), T.ArrayType(T.DateType()))), FILES),
    # None of the others.
    "collated": (T.StringType("UNICODE_CI"), ""),
    "array of collated": (T.ArrayType(T.StringType("UTF8_LCASE")), ""),
    "char": (T.CharType(3), ""),  # tables have strings with metadata instead
    "varchar": (T.VarcharType(3), ""),
    "void": (T.NullType(), ""),
    "array of void": (T.ArrayType(T.NullType()), ""),
    "variant": (T.VariantType(), ""),
    "struct of variant": (T.StructType([T.StructField("a", T.VariantType())]), ""),
    "days": (T.DayTimeIntervalType(), ""),
    "months": (T.YearMonthIntervalType(), ""),
    "interval": (T.CalendarIntervalType(), ""),
}
# Types that older releases of Spark lack.
LATER = {"TimeType": (6,), "GeometryType": (4326,), "GeographyType": (4326,)}
MATRIX |= {
    name: (getattr(T, name)(*arguments), "")
    for name, arguments in LATER.items()
    if hasattr(T, name)
}


class UnknownType(T.DataType):
    """A type of a later release."""


class UnknownNumber(T.IntegralType):
    """A type of a later release that inherits from one that is known."""


class UnknownText(T.StringType):
    """Another one."""


UNKNOWN = [UnknownType(), UnknownNumber(), UnknownText(), T.ArrayType(UnknownNumber())]


def uses(kind: T.DataType, reading: Reading | None = None, **metadata: Any) -> str:
    """The uses that are allowed of a column, in their order."""
    column = T.StructField("c", kind, metadata=metadata)
    allowed = [use for use in Use if capability(column, use, reading or Reading()).ok]
    return " ".join(use.name.lower() for use in allowed)


@pytest.mark.parametrize("name", MATRIX)
def test_which_uses_a_type_has(name: str) -> None:
    kind, expected = MATRIX[name]
    assert uses(kind) == expected


def test_every_type_of_spark_is_in_the_matrix() -> None:
    known = {type(kind) for kind, _ in MATRIX.values()}
    abstract = {T.DataType, T.StructField, T.UserDefinedType}
    found = [each for each in vars(T).values() if isinstance(each, type)]
    of_spark = {each for each in found if issubclass(each, T.DataType)} - abstract
    leaves = {each for each in of_spark if not (set(each.__subclasses__()) & of_spark)}
    assert leaves <= known


@pytest.mark.parametrize("kind", UNKNOWN, ids=lambda kind: type(kind).__name__)
def test_an_unknown_type_has_no_use(kind: T.DataType) -> None:
    assert uses(kind) == ""
    for use in Use:
        verdict = capability(T.StructField("c", kind), use, Reading())
        assert "is of type" in verdict.reason


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("comment", ALL),
        ("delta.columnMapping.physicalName", ALL),
        ("delta.typeChanges", ALL),
        ("CURRENT_DEFAULT", ALL),
        ("scale", ALL),  # of a table that was read from a database
        ("__CHAR_VARCHAR_TYPE_STRING", "copy write identity"),  # Spark pads what it reads
        (
            "EXISTS_DEFAULT",
            "write partition identity",
        ),  # Spark gives it to rows that lack the column
        ("delta.columnMapping.nested.ids", ""),
        # Keys that a later release may give a meaning.
        ("delta.of a later release", ""),
        ("spark.sql.of a later release", ""),
        ("parquet.field.id", ""),  # Spark writes it to files
        ("identity.start", ""),
        ("generationExpression", ""),
        ("__OF_A_LATER_RELEASE", ""),
        ("_metadata", ""),
        ("LATER_DEFAULT", ""),
        ("COLLATION", ""),
        # Notes of users.
        ("pii", ALL),
        ("Owner", ALL),
        ("description of it", ALL),
        ("dbt.tag", ALL),
        ("deltaOf", ALL),
        ("sparkle", ALL),
    ],
)
def test_which_uses_metadata_leaves(key: str, expected: str) -> None:
    assert uses(T.StringType(), **{key: "x"}) == expected
    nested = T.StructType([T.StructField("a", T.StringType(), metadata={key: "x"})])
    left = [use for use in ("copy", "write", "identity") if use in expected.split()]
    assert uses(nested) == " ".join(left)
    in_arrays = [use for use in left if use != "identity"]
    assert uses(T.ArrayType(T.ArrayType(nested))) == " ".join(in_arrays)


def test_metadata_of_deeply_nested_fields_is_looked_at_once() -> None:
    kind: T.DataType = T.StringType()
    for depth in range(20):
        metadata = {"delta.of a later release": "x"} if depth == 0 else {"comment": "x"}
        kind = T.StructType([T.StructField(f"f{depth}", kind, metadata=metadata)])
    refused = capabilities.refused_metadata(T.StructField("c", kind), Use.COPY)
    assert list(refused) == [
        "delta.of a later release"
    ]  # once, where recursion found it 2^19 times


def test_columns_that_files_name_by_a_mapping_are_not_nested() -> None:
    mapped = Reading(nested=False)
    assert uses(T.StringType(), mapped) == ALL
    assert uses(T.ArrayType(T.StringType()), mapped) == ""


class Settings:
    """A session's settings."""

    def __init__(self, **settings: str) -> None:
        self.conf, self.get = self, settings.get


@pytest.mark.parametrize(
    ("setting", "value", "is_left"),
    [
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY", False),
        ("spark.sql.parquet.int96RebaseModeInRead", "legacy", False),
        ("spark.sql.parquet.int96TimestampConversion", "true", False),
        ("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION", True),
    ],
)
def test_settings_by_which_spark_reads_times_differently(
    setting: str, value: str, is_left: bool
) -> None:
    reading = Reading(Settings(**{setting: value}))  # type: ignore[arg-type]
    left = "copy write partition identity"
    assert uses(T.DateType(), reading) == (ALL if is_left else left)
    assert uses(T.TimestampType(), reading) == (TIME if is_left else FILES)
    assert uses(T.TimestampNTZType(), reading) == TIME
    assert uses(T.StringType(), reading) == ALL


@pytest.mark.parametrize(
    ("kind", "compared_as", "is_same"),
    [
        (T.IntegerType(), T.IntegerType(), True),
        (T.IntegerType(), T.LongType(), True),
        (T.LongType(), T.DoubleType(), True),  # `keys_of_source` refuses what is not exact
        (T.IntegerType(), T.FloatType(), False),
        (T.IntegerType(), T.DecimalType(10, 0), False),
        (T.IntegerType(), UnknownNumber(), False),
        (T.DecimalType(10, 2), T.DecimalType(10, 2), True),
        (T.DecimalType(10, 2), T.DecimalType(12, 2), False),
        (T.StringType(), T.StringType("UNICODE_CI"), False),
        (T.DateType(), T.TimestampType(), False),
        (T.TimestampNTZType(), T.TimestampType(), False),
        (T.DoubleType(), T.DoubleType(), False),
    ],
)
def test_in_which_types_keys_are_compared(
    kind: T.DataType, compared_as: T.DataType, is_same: bool
) -> None:
    found = comparable(T.StructField("c", kind), compared_as, Reading())
    assert isinstance(found, Capable) is is_same
    assert isinstance(found, Verdict) is not is_same


def test_nothing_else_makes_capable_columns() -> None:
    column = T.StructField("c", T.VariantType())
    with pytest.raises(TypeError, match="makes capable columns"):
        Capable(column, object())  # type: ignore[arg-type]
    assert isinstance(writable(column, Reading()), Verdict)


UNCHECKED = """
from pyspark.sql.types import StructField
from deltaweave.delta.files.capabilities import *
from deltaweave.delta.files.capabilities import Capable
from deltaweave._validation import Verdict
def compare(column: ComparableColumn) -> None: ...
def write(column: WritableColumn) -> None: ...

def use(column: StructField, reading: Reading) -> None:
    key = comparable(column, column.dataType, reading)
    compare(column)  # line 11: not looked at
    compare(key)  # line 12: its verdict is not looked at
    compare(Capable(column))  # line 13: made elsewhere
    if not isinstance(key, Verdict):
        compare(key)
        write(key)  # line 16: allowed for another use
"""


@pytest.mark.minutes
def test_a_column_that_was_not_checked_for_its_use_does_not_type_check(tmp_path: Path) -> None:
    (tmp_path / "unchecked.py").write_text(UNCHECKED)
    said, problems, _ = api.run(
        [
            "--strict",
            "--follow-imports=silent",
            "--hide-error-context",
            str(tmp_path / "unchecked.py"),
        ]
    )
    assert not problems
    wrong = [line.split(":")[1] for line in said.splitlines() if ": error:" in line]
    assert wrong == ["11", "12", "13", "16"], said
