"""What Arrow may do with a column in place of Spark, by its type and metadata: the only table.

The table lists what is allowed. A type or a use that is not in it is left to Spark, and so is a key
of a column's metadata that is not in it, if Spark or Delta may give it a meaning. Readers and
writers take columns as `Capable`, which only this module makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Generic, Literal, TypeAlias, TypeVar, final

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.statement import OF_LIMITED_LENGTH


class Use(Enum):
    """A use of a column by Arrow, in place of Spark."""

    KEY = "compared as a key"
    READ = "read from the files of a source"
    COPY = "copied from file to file"
    THROUGH_SPARK = "passed from a file to Spark and back"
    WRITE = "written with statistics"
    PARTITION = "the name of a partition"
    IDENTITY = "collected to identify a source row, and passed back to Spark"


_EVERY_USE = frozenset(Use)
_AS_VALUE = frozenset({Use.READ, Use.COPY, Use.THROUGH_SPARK, Use.WRITE})
_AS_KEY = _AS_VALUE | {Use.KEY}
_IN_FILES = frozenset({Use.COPY, Use.WRITE})
_WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType)

# By the exact type, so that a type that inherits from one of these is not taken for it.
_USES_OF_TYPES: Mapping[type[DataType], frozenset[Use]] = {
    **dict.fromkeys(_WHOLE_NUMBERS, _EVERY_USE),
    DateType: _EVERY_USE,
    StringType: _EVERY_USE,  # with the default collation
    DecimalType: _AS_KEY | {Use.IDENTITY},
    TimestampType: _AS_KEY,
    TimestampNTZType: _AS_KEY,
    # In Arrow, NaN differs from NaN, and -0.0 from 0.0.
    FloatType: _AS_VALUE | {Use.IDENTITY},
    DoubleType: _AS_VALUE | {Use.IDENTITY},
    BooleanType: _AS_VALUE | {Use.IDENTITY},
    BinaryType: _AS_VALUE,
    # If all their parts may.
    ArrayType: _IN_FILES,
    MapType: _IN_FILES,
    StructType: _IN_FILES | {Use.IDENTITY},
}

# Spark pads texts of limited length where it reads and compares them, and gives a default to rows
# of files that lack the column.
_USES_OF_METADATA: Mapping[str, frozenset[Use]] = {
    OF_LIMITED_LENGTH: _IN_FILES | {Use.IDENTITY},
    "EXISTS_DEFAULT": frozenset({Use.WRITE, Use.PARTITION, Use.IDENTITY}),
    **dict.fromkeys(
        (
            "CURRENT_DEFAULT",
            "comment",
            "delta.columnMapping.id",
            "delta.columnMapping.physicalName",
            "delta.generationExpression",  # see `written_columns`
            "delta.identity.allowExplicitInsert",
            "delta.identity.highWaterMark",
            "delta.identity.start",
            "delta.identity.step",
            "delta.invariants",
            "delta.typeChanges",
            # By Spark's reader of JDBC sources, and by its library for machine learning.
            "isSigned",
            "isTimestampNTZ",
            "logicalTimeType",
            "ml_attr",
            "scale",
        ),
        _EVERY_USE,
    ),
}

# Keys that a release of Spark, Delta or a file format may give a meaning; users note other ones.
_MAY_HAVE_MEANING = re.compile(
    r"(delta|spark|parquet|orc|hive|iceberg|identity)\.|_|[A-Z][A-Z0-9_]*$|generationExpression$"
)

# Types whose values settings of the session may change as Spark reads them.
_OF_CALENDARS = (DateType, TimestampType)
_CALENDARS_OF_READS = (
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.int96RebaseModeInRead",
)
SHIFTS_INT96 = "spark.sql.parquet.int96TimestampConversion"
"""The setting by which Spark shifts times of other writers by the session's time zone."""
# Settings by which Spark reads dates and times differently, and the value by which they do.
_READ_DIFFERENTLY = (
    *((setting, "LEGACY") for setting in _CALENDARS_OF_READS),
    (SHIFTS_INT96, "TRUE"),
)
_READING = frozenset({Use.KEY, Use.READ, Use.THROUGH_SPARK})


def calendar_modes(spark: SparkSession) -> list[str]:
    """Return how Spark reads dates and times of files without a calendar."""
    return [(spark.conf.get(setting) or "").upper() for setting in _CALENDARS_OF_READS]


@dataclass(frozen=True)
class Reading:
    """The session's settings that decide uses of columns, beside types and metadata.

    Attributes:
        spark: The session; None where nothing depends on its settings.
        nested: Whether files name nested fields as the table does.
    """

    spark: SparkSession | None = None
    nested: bool = True

    @cached_property
    def times_differ(self) -> str:
        """Why Spark may read dates and times otherwise than Arrow; empty if it does not."""
        for setting, value in _READ_DIFFERENTLY if self.spark is not None else ():
            assert self.spark is not None
            if (self.spark.conf.get(setting) or "").upper() == value:
                return f"{setting} is {value}"
        return ""


def capability(
    column: StructField, use: Use, reading: Reading, *, compared_as: DataType | None = None
) -> Verdict:
    """Return whether Arrow and Spark have the same result for a use of a column.

    Args:
        compared_as: The type in which a key is compared; its own by default.
    """
    kind = column.dataType
    if compared_as is not None and not _are_compared_alike(kind, compared_as):
        return no(f"{column.name!r} is compared as {compared_as.simpleString()}")
    if not _is_of_allowed_type(kind, use, reading):
        return no(f"column {column.name!r} is of type {kind.simpleString()}")
    unknown = next(refused_metadata(column, use), None)
    if unknown == OF_LIMITED_LENGTH:
        return no(f"{column.name!r} is of limited length")
    if unknown is not None:
        return no(f"the metadata of {column.name!r} has {unknown!r}")
    if use in _READING and isinstance(kind, _OF_CALENDARS) and reading.times_differ:
        return no(reading.times_differ)
    return YES


def _are_compared_alike(kind: DataType, compared_as: DataType) -> bool:
    """Return whether Arrow finds equal values of a type that Spark compares as another type."""
    if type(kind) in _WHOLE_NUMBERS:
        return type(compared_as) in (*_WHOLE_NUMBERS, DoubleType)
    return kind == compared_as


def _is_of_allowed_type(kind: DataType, use: Use, reading: Reading) -> bool:
    if use not in _USES_OF_TYPES.get(type(kind), ()):
        return False
    if isinstance(kind, StringType):
        return kind.simpleString() == "string"  # with the default collation
    parts = _parts(kind)
    if parts and use in _IN_FILES and not reading.nested:
        return False
    return all(_is_of_allowed_type(part, use, reading) for part in parts)


def _parts(kind: DataType) -> list[DataType]:
    """Return the types within a nested type."""
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []


def refused_metadata(column: StructField, use: Use) -> Iterator[str]:
    """Yield the keys of a column's metadata, and of fields within it, that are not allowed."""
    yield from _refused_keys(column, use)
    found = [column.dataType]
    while found:
        kind = found.pop()
        found += _parts(kind)
        for field in kind.fields if isinstance(kind, StructType) else ():
            yield from _refused_keys(field, use)


def _refused_keys(column: StructField, use: Use) -> Iterator[str]:
    """Yield the keys of a column's own metadata that are not allowed."""
    for key in column.metadata or {}:
        uses = _USES_OF_METADATA.get(key)
        if use not in uses if uses is not None else _MAY_HAVE_MEANING.match(key):
            yield key


class _Seal:
    """A token that only this module passes to `Capable`."""


_SEAL = _Seal()
_AUse = TypeVar("_AUse", bound=Use)


@final
@dataclass(frozen=True)
class Capable(Generic[_AUse]):
    """A column that Arrow may use for one purpose; only the functions of this module make it."""

    column: StructField
    seal: _Seal

    def __post_init__(self) -> None:
        if self.seal is not _SEAL:
            raise TypeError("only deltaweave.delta.files.capabilities makes capable columns")

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.column.name


ComparableColumn: TypeAlias = Capable[Literal[Use.KEY]]
ReadableColumn: TypeAlias = Capable[Literal[Use.READ]]
PassableColumn: TypeAlias = Capable[Literal[Use.THROUGH_SPARK]]
WritableColumn: TypeAlias = Capable[Literal[Use.WRITE]]
PartitioningColumn: TypeAlias = Capable[Literal[Use.PARTITION]]


def comparable(
    column: StructField, compared_as: DataType, reading: Reading
) -> ComparableColumn | Verdict:
    """Return the column as a key, or why it is none."""
    verdict = capability(column, Use.KEY, reading, compared_as=compared_as)
    return Capable(column, _SEAL) if verdict.ok else verdict


def readable(column: StructField, reading: Reading) -> ReadableColumn | Verdict:
    """Return the column as one that is read from a source's files, or why it is not."""
    verdict = capability(column, Use.READ, reading)
    return Capable(column, _SEAL) if verdict.ok else verdict


def passable(column: StructField, reading: Reading) -> PassableColumn | Verdict:
    """Return the column as one that passes through Spark, or why it does not."""
    verdict = capability(column, Use.THROUGH_SPARK, reading)
    return Capable(column, _SEAL) if verdict.ok else verdict


def writable(column: StructField, reading: Reading) -> WritableColumn | Verdict:
    """Return the column as one that is copied and written, or why it is not."""
    for use in (Use.COPY, Use.WRITE):
        verdict = capability(column, use, reading)
        if not verdict.ok:
            return verdict
    return Capable(column, _SEAL)


def partitioning(column: StructField, reading: Reading) -> PartitioningColumn | Verdict:
    """Return the column as one that names partitions, or why it does not."""
    verdict = capability(column, Use.PARTITION, reading)
    return Capable(column, _SEAL) if verdict.ok else verdict
