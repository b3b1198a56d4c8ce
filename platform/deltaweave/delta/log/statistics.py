"""The bounds of a column's values in each file, and their overlap; the only reader of statistics.

Merges prune files by these bounds, so they are never narrower than the values. What writers round
or truncate is widened, and what is not understood counts as unknown. Writers differ (Delta
protocol, section "Per-file Statistics"): Delta truncates strings to 32 characters and times to
milliseconds, and delta-rs writes decimals as doubles.

`engine/tasks/file_statistics.py` writes statistics.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from deltaweave.delta.jvm import collected
from deltaweave.delta.log.actions import LogAction, TableMetadata
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.log.snapshot import TableSnapshot
from deltaweave.delta.log.statistic_bounds import (
    MEANINGS,
    NUM_RECORDS,
    Meaning,
    Statistics,
    are_bounded,
    bound,
    itself,
    num_physical_rows,
    parsed,
)
from deltaweave.errors import NOTHING_DONE, StatementError

if TYPE_CHECKING:
    import pyarrow


def python_values(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any] | None:
    """Convert values to Python's; None if Python cannot hold one (dates after the year 9999).

    Timestamps become microseconds since 1970: in UTC, or as written if they have no time zone.
    Python's own timestamps end with the year 9999, whatever the time zone.
    """
    column = _times_as_numbers(column)
    if not column.null_count and _is_number(column.type):
        return list(column.to_numpy().tolist())  # many times faster
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return None


def sorted_values(column: pyarrow.ChunkedArray) -> Sequence[Any] | None:
    """Sort a column's distinct values, without nulls; None if Python cannot hold one."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.types as types

    column = _times_as_numbers(column)
    if _is_number(column.type):  # 8 bytes each instead of the 40 in a list
        code = "d" if types.is_floating(column.type) else "q"
        values = np.sort(column.to_numpy()).astype(code)
        # np.unique builds a hash table first, which takes a hundred times longer.
        is_new = np.append(True, values[1:] != values[:-1])[: len(values)]
        return array(code, values[is_new].tobytes())
    return python_values(pc.unique(column).sort())


def _times_as_numbers(
    column: pyarrow.Array | pyarrow.ChunkedArray,
) -> pyarrow.Array | pyarrow.ChunkedArray:
    """Convert timestamps of a column to whole numbers; other columns stay."""
    import pyarrow.types as types

    return column.cast("int64") if types.is_timestamp(column.type) else column


def _is_number(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind))


_KINDS = ("minValues", "maxValues", "nullCount")


@dataclass(frozen=True)
class Bounds:
    """The bounds of a column in each of some files; NaN is not bounded.

    Values are as `python_values` returns them.

    Attributes:
        lows: No value in the file is below this; None if unknown.
        highs: No value in the file is above this; None if unknown.
        may_be_null: Whether a value in the file can be null.
        are_null: Whether all are known to be null.
    """

    lows: list[Any]
    highs: list[Any]
    may_be_null: list[bool]
    are_null: list[bool]


def bounds(
    table: TableSnapshot, files: FileList, columns: Sequence[tuple[Sequence[str], DataType]]
) -> list[Bounds]:
    """Return the bounds of some columns in each of the files.

    Statistics of a few files that are already in the driver are read without Spark.

    Args:
        table: The version of the table that the files are of.
        columns: The path of each column or nested field, and the type in which to read it: its own
            or a wider one, for which `are_bounded` holds.
    """
    known = [_known_column(table.metadata, *column) for column in columns]
    found = None
    if files.adds is not None and files.statistics is not None and files.have_statistics:
        found = statistics_in_text(files.adds, files.statistics, known)
    if found is None:
        found = _queried(table, files, known)
    return [column.bounds(each) for column, each in zip(known, found, strict=True)]


def bounds_in_log(
    metadata: TableMetadata,
    adds: Sequence[LogAction],
    columns: Sequence[tuple[Sequence[str], DataType]],
) -> list[Bounds] | None:
    """Return the bounds of some columns by AddFiles alone; None if Spark has to read them."""
    known = [_known_column(metadata, *column) for column in columns]
    found = statistics_in_text(adds, [parsed(add.get("stats")) for add in adds], known)
    if found is None:
        return None
    return [column.bounds(each) for column, each in zip(known, found, strict=True)]


def are_without_nulls(table: TableSnapshot, files: FileList, columns: Sequence[str]) -> bool:
    """Return whether by the statistics no row of the files has a null in these columns.

    False if the files are many, for partition columns and structs, and for names that the table
    does not have in this spelling.
    """
    statistics, physical = files.statistics, table.physical_names
    if statistics is None or not files.have_statistics:
        return False
    if not set(columns) <= set(physical) - set(table.partition_columns):
        return False
    names = [physical[name] for name in columns]
    counts = [value_at(each.get("nullCount"), (name,)) for each in statistics for name in names]
    return all(type(count) is int and count == 0 for count in counts)


@dataclass(frozen=True)
class RawStatistics:
    """The statistics of a column in each of some files, as written; None if missing."""

    lows: list[Any]
    highs: list[Any]
    nulls: list[Any]
    rows: list[Any]


@dataclass(frozen=True)
class KnownColumn:
    """A column as the log has it.

    Attributes:
        path: The physical names down to it.
        data_type: The type in which it is read.
        is_partition: Whether each file has one value of it, which the log holds.
        was_single: Whether some files may have been written when its type was FLOAT.
    """

    path: tuple[str, ...]
    data_type: DataType
    is_partition: bool
    was_single: bool

    @property
    def meaning(self) -> Meaning:
        """What a bound in the log means for the column's values."""
        if self.is_partition:
            return Meaning(MEANINGS[type(self.data_type)].read)  # of exact values
        return MEANINGS[FloatType if self.was_single else type(self.data_type)]

    @property
    def is_cast_by_spark(self) -> bool:
        """Whether Spark reads its values in the session's time zone, as Delta does."""
        return self.is_partition and isinstance(self.data_type, TimestampType)

    def bounds(self, raw: RawStatistics) -> Bounds:
        """Convert the statistics to bounds of the column's values."""
        read, below, above = self.meaning.read, self.meaning.below, self.meaning.above
        if self.is_cast_by_spark:
            read = itself
        lows = [bound(low, read, below) for low in raw.lows]
        highs = [bound(high, read, above) for high in raw.highs]
        # For nested fields, not all writers count the nulls of structs that are null.
        is_field = len(self.path) > 1
        return Bounds(
            lows,
            highs,
            [is_field or type(nulls) is not int or nulls != 0 for nulls in raw.nulls],
            [
                type(nulls) is int and nulls == rows
                for nulls, rows in zip(raw.nulls, raw.rows, strict=True)
            ],
        )


def _known_column(metadata: TableMetadata, path: Sequence[str], data_type: DataType) -> KnownColumn:
    field = metadata.fields_at(path)[-1]
    changes = (field.metadata or {}).get("delta.typeChanges", [])
    was_single = isinstance(field.dataType, FloatType) or any(
        change.get("fromType") == "float" for change in changes
    )
    is_partition = path[0] in metadata.partition_columns
    return KnownColumn(metadata.physical_path(path), data_type, is_partition, was_single)


def statistics_in_text(
    adds: Sequence[LogAction], statistics: Sequence[Statistics], columns: Sequence[KnownColumn]
) -> list[RawStatistics] | None:
    """Read the statistics in the log's text; None if Spark has to read them."""
    if any(column.is_cast_by_spark for column in columns):
        return None
    rows = [num_physical_rows(each) for each in statistics]
    found = []
    for column in columns:
        if column.is_partition:
            name = column.path[0]
            found.append(_partition_bounds([add["partitionValues"].get(name) for add in adds]))
            continue
        lows, highs, nulls = (
            [value_at(each.get(kind), column.path) for each in statistics] for kind in _KINDS
        )
        found.append(RawStatistics(lows, highs, nulls, rows))
    return found


def _partition_bounds(values: list[Any]) -> RawStatistics:
    """Return the statistics of a partition column; "" may mean null (Delta protocol)."""
    nulls = [None if value == "" else int(value is None) for value in values]
    return RawStatistics(values, values, nulls, [1] * len(values))


def value_at(found: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in statistics, or None."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _queried(
    table: TableSnapshot, files: FileList, columns: Sequence[KnownColumn]
) -> list[RawStatistics]:
    """Read the statistics by a Spark query of the log."""
    asked = {"statistics": F.from_json("stats", _schema(columns))}
    for i, column in enumerate(columns):
        if column.is_partition:
            value = F.col("partitionValues").getItem(column.path[0])
            if column.is_cast_by_spark:
                value = F.unix_micros(value.try_cast(column.data_type))
            asked[f"partition_{i}"] = value
    if files.have_statistics:
        found = files.rows_with(asked)
    else:
        named = [column.alias(name) for name, column in asked.items()]
        found = collected(table.files.select("path", *named))
    index_of = {path: i for i, path in enumerate(found["path"].to_pylist())}
    indexes = [index_of.get(path) for path in files.paths]

    def in_order(values: pyarrow.ChunkedArray) -> list[Any]:
        known = python_values(values)
        assert known is not None, "numbers and texts"
        return [None if at is None else known[at] for at in indexes]

    statistics = found["statistics"]
    rows = in_order(_field(statistics, ("numRecords",)))
    raw = []
    for i, column in enumerate(columns):
        if column.is_partition:
            raw.append(_partition_bounds(in_order(found[f"partition_{i}"])))
            continue
        lows, highs, nulls = (in_order(_field(statistics, (kind, *column.path))) for kind in _KINDS)
        raw.append(RawStatistics(lows, highs, nulls, rows))
    return raw


def _schema(columns: Sequence[KnownColumn]) -> StructType:
    """Build Delta's schema of statistics, with these columns alone.

    Dates and times are read as text, so that the session's settings for parsing do not matter.
    """
    of_data = [column for column in columns if not column.is_partition]
    if not of_data:
        return StructType([NUM_RECORDS])
    values = _nested([(column.path, _spelled(column)) for column in of_data])
    nulls = _nested([(column.path, LongType()) for column in of_data])
    kinds = zip(_KINDS, (values, values, nulls), strict=True)
    return StructType([NUM_RECORDS, *[StructField(*kind) for kind in kinds]])


def _spelled(column: KnownColumn) -> DataType:
    """Return the type of a bound in JSON."""
    if isinstance(column.data_type, DecimalType):
        return column.data_type
    if isinstance(column.data_type, FloatType | DoubleType):
        return DoubleType()
    return LongType() if isinstance(column.data_type, IntegralType) else StringType()


def _nested(leaves: Sequence[tuple[tuple[str, ...], DataType]]) -> StructType:
    """Build a struct with these fields at these paths."""
    names = dict.fromkeys(path[0] for path, _ in leaves)
    fields = []
    for name in names:
        within = [(path[1:], data_type) for path, data_type in leaves if path[0] == name]
        is_leaf = not within[0][0]
        fields.append(StructField(name, within[0][1] if is_leaf else _nested(within)))
    return StructType(fields)


def _field(column: pyarrow.ChunkedArray, path: Sequence[str]) -> pyarrow.ChunkedArray:
    """Return a field within a column of structs; null where one of these is null."""
    import pyarrow.compute as pc

    for name in path:
        # By its place: Arrow reads names that begin with a dot or a bracket as paths.
        column = pc.struct_field(column, column.type.get_field_index(name))
    return column


@dataclass(frozen=True)
class KeyOverlap:
    """In how many files of a version a merge has to look for a key of a column.

    The ranges are those by which merges skip files: what writers round or truncate is widened.

    Attributes:
        files: Files that may hold a key: all but those where the column is null in every row.
        files_without_bounds: Those whose lowest or highest value is not known.
        overlapping_files: Those whose range overlaps the range of another file.
        mean_files_per_key: Files whose range holds a key, on average over the lowest key of each
            file; a lowest key that is not known counts as the lowest of all. It is 1 if no ranges
            overlap.
        most_files_per_key: The most files whose ranges hold one and the same key.
    """

    column: str
    files: int
    files_without_bounds: int
    overlapping_files: int
    mean_files_per_key: float
    most_files_per_key: int


def key_overlaps(table: TableSnapshot, files: FileList, columns: Sequence[str]) -> list[KeyOverlap]:
    """Measure the overlap of each column's ranges in the files of a version.

    Args:
        columns: Columns as the table spells them, whose types `are_bounded` holds of.
    """
    known = bounds(table, files, _typed(table.schema, columns))
    return [key_overlap(name, each) for name, each in zip(columns, known, strict=True)]


def key_overlaps_in_log(
    metadata: TableMetadata, adds: Sequence[LogAction], columns: Sequence[str]
) -> list[KeyOverlap] | None:
    """Measure the overlap of ranges by AddFiles alone; None if Spark has to read them."""
    known = bounds_in_log(metadata, adds, _typed(metadata.schema, columns))
    if known is None:
        return None
    return [key_overlap(name, each) for name, each in zip(columns, known, strict=True)]


def bounded_columns(schema: StructType, names: Sequence[str], table: str) -> list[str]:
    """Return columns that statistics bound, as the table spells them.

    Args:
        names: The columns' names in any case.

    Raises:
        StatementError: A column is missing, or statistics do not bound its type.
    """
    fields = {field.name.lower(): field for field in schema}
    for name in names:
        field = fields.get(name.lower())
        if field is None or not are_bounded(field.dataType):
            raise StatementError(
                f"it has no column {name!r} whose values statistics bound.",
                table=table,
                operation="looking at key ranges",
                state=NOTHING_DONE,
                hint="Columns of numbers, strings, dates and times have bounds.",
            )
    return [fields[name.lower()].name for name in names]


def _typed(schema: StructType, columns: Sequence[str]) -> list[tuple[tuple[str], DataType]]:
    return [((name,), schema[name].dataType) for name in columns]


def key_overlap(column: str, known: Bounds) -> KeyOverlap:
    """Describe by a key column's bounds how many files a value may be in."""
    with_keys = [
        (low, high)
        for low, high, are_null in zip(known.lows, known.highs, known.are_null, strict=True)
        if not are_null
    ]
    lows = sorted(low for low, _ in with_keys if low is not None)
    highs = sorted(high for _, high in with_keys if high is not None)

    def ends_before(key: Any) -> int:
        return bisect_left(highs, key)

    def begins_after(key: Any) -> int:
        return len(lows) - bisect_right(lows, key)

    files = len(with_keys)
    # A range without an end neither ends before a key nor begins after one.
    holding = [files - ends_before(low) - begins_after(low) for low in lows]
    begin_anywhere = files - len(lows)
    holding += [begin_anywhere] * begin_anywhere
    overlapping = 0
    for low, high in with_keys:
        apart = 0 if low is None else ends_before(low)
        apart += 0 if high is None else begins_after(high)
        overlapping += apart < files - 1
    return KeyOverlap(
        column,
        files,
        sum(low is None or high is None for low, high in with_keys),
        overlapping,
        round(sum(holding) / files, 2) if files else 0.0,
        max(holding, default=0),
    )
