"""The source's keys: the values that an equality of the ON condition can match.

`t.k = s.k AND t.day = date(s.at)` can only match target rows whose `k` and `day` are among the
values that the source has. These values are collected once, from the materialized source. They
prune files (see `prune`), and show whether a target row can match twice.

Ranges hold the keys that are too many to be collected. A load that corrects some old rows and adds
new ones has keys at both ends of the table's range, and none in most of the files between. Several
ranges prune these files, and one does not.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property, partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.delta.jvm import between, collected, raise_hidden_interrupts, translated
from deltaweave.delta.log import FileList, python_values, sorted_values
from deltaweave.delta.statement import (
    Equality,
    ResolvedMerge,
    days_skipped_by_zone,
    equalities,
    executors_may_shift_days,
)
from deltaweave.engine import limits
from deltaweave.engine.attempts import attempted
from deltaweave.engine.clauses import INSERTABLE, KEY, SOURCE_ROW_ID, SOURCE_WIDTH
from deltaweave.engine.source.prepared import PreparedSource, collected_within
from deltaweave.engine.tasks import TooBigError
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    import pyarrow


logger = logging.getLogger(__name__)

# Types whose values mean the same in Python, whatever the session's time zone.
_PUSHED = (IntegralType, DecimalType, StringType, DateType)
_NUMBERS = (IntegralType, FloatType, DoubleType, DateType)  # of dates, few are distinct
_CALENDAR_BEGAN = date(1582, 10, 15)

# Types that a literal has without a cast.
_OF_LIT = (BooleanType, DoubleType, IntegerType, StringType)


@dataclass(frozen=True)
class KeyValues:
    """The source's values for one equality of the ON condition.

    Attributes:
        equality: The conjunct of the ON condition.
        values: The values as `python_values` has them, sorted; if `are_ranges`, the lowest and the
            highest value of each range, one after the other.
        are_ranges: Whether `values` are ranges, in which any value may be present.
        has_null: Whether a null is among the values.
    """

    equality: Equality
    values: Sequence[Any]
    are_ranges: bool
    has_null: bool

    @property
    def has_old_days(self) -> bool:
        """Whether a value is a day before 15 October 1582, when our calendar began.

        Sessions read such days of files that no Spark wrote by the old calendar or by ours
        (spark.sql.parquet.datetimeRebaseModeInRead), and the old one reads two days as one. Spark
        pushes days to Parquet as java.sql.Date, which lacks those that the change skipped.
        """
        are_days = isinstance(self.equality.compared_as, DateType)
        return are_days and bool(self.values) and self.values[0] < _CALENDAR_BEGAN

    def may_lie_within(self, low: Any, high: Any) -> bool:
        """Return whether a value can lie between the two, ends included."""
        at = bisect_left(self.values, low)
        if at < len(self.values) and self.values[at] <= high:
            return True
        # The next value is the highest of a range: both lie within it.
        return self.are_ranges and at % 2 == 1


@dataclass(frozen=True)
class SourceKeys:
    """The source's values for every equality of the ON condition.

    Attributes:
        columns: One for each equality whose values can be compared with statistics. NaN cannot,
            since statistics do not bound it.
        rows: The values row by row, with a column for each equality; None if they were not
            collected.
        source_rows: `SOURCE_ROW_ID` of each of these rows; None if the source is not materialized,
            if keys are not numbers alone, or if they came with the rows of a collected source.
    """

    columns: tuple[KeyValues, ...] = ()
    rows: pyarrow.Table | None = None
    source_rows: pyarrow.ChunkedArray | None = None

    @cached_property
    def are_unique(self) -> bool:
        """Whether it is known that no two source rows have the same values.

        Then no target row can match twice.
        """
        if self.rows is None or len(self.columns) < self.rows.num_columns:
            return False
        if len(self.columns) == 1 and not self.columns[0].has_null:
            return bool(len(self.columns[0].values) == self.rows.num_rows)
        return _unique(self.rows)


def row_identity(source: PreparedSource, keys: SourceKeys) -> Column | None:
    """Return what identifies a source row, even if it is computed again; None if nothing does.

    It is never null in a row that matches.
    """
    if source.is_materialized:
        return F.col(SOURCE_ROW_ID)
    if not keys.are_unique:
        return None
    first, *others = (key.equality for key in keys.columns)
    if not others and not first.null_safe:
        return first.source
    # Names of their own: two keys may be the same column, or columns of the same name.
    columns = (equality.source for equality in (first, *others))
    return F.struct(*[column.alias(f"{KEY}{i}") for i, column in enumerate(columns)])


def within(keys: SourceKeys, spark: SparkSession) -> Column | None:
    """Return a condition on target columns that holds for every target row that matches.

    Parquet skips row groups and pages by it. None if nothing is known.
    """
    known = [
        _within(key)
        for key in keys.columns
        if isinstance(key.equality.data_type, _PUSHED)
        and not isinstance(key.equality.compared_as, DoubleType)
        and not (isinstance(key.equality.compared_as, DateType) and _has_lost_days(key, spark))
    ]
    whole = [_whole_within(key) for key in keys.columns if _is_whole_as_double(key)]
    pushed = [*known, *whole]
    return reduce(Column.__and__, pushed) if pushed else None


def _has_lost_days(key: KeyValues, spark: SparkSession) -> bool:
    """Return whether Spark may hand other days to Parquet than those of a key."""
    return (
        key.has_old_days
        or executors_may_shift_days(spark)
        or not days_skipped_by_zone(spark).isdisjoint(_pushed_values(key))
    )


def _is_whole_as_double(key: KeyValues) -> bool:
    """Return whether integers are compared as doubles, and doubles hold all of them exactly."""
    return (
        isinstance(key.equality.compared_as, DoubleType)
        and not isinstance(key.equality.data_type, DoubleType)
        and bool(key.values)
        and max(abs(key.values[0]), abs(key.values[-1])) < 1 << 53
    )


def _whole_within(key: KeyValues) -> Column:
    """Limit a column to the range of whole-number keys; Parquet's statistics are whole, too."""
    column = key.equality.target
    possible = between(column, math.ceil(key.values[0]), math.floor(key.values[-1]))
    return possible | column.isNull() if key.equality.null_safe and key.has_null else possible


def _pushed_values(key: KeyValues) -> Sequence[Any]:
    """Return the values by which rows are filtered: all of a few keys, else the ends."""
    return key.values if _are_few(key) else (*key.values[:1], *key.values[-1:])


def _are_few(key: KeyValues) -> bool:
    return not key.are_ranges and len(key.values) <= limits.MAX_PUSHED_VALUES


def _within(key: KeyValues) -> Column:
    column = key.equality.target
    literals = [typed_literal(value, key.equality.compared_as) for value in _pushed_values(key)]
    if not literals:
        possible: Column = F.lit(False)
    elif _are_few(key):
        possible = column.isin(literals)
    else:
        possible = column.between(*literals)
    return possible | column.isNull() if key.equality.null_safe and key.has_null else possible


def source_keys(merge: ResolvedMerge, source: PreparedSource, files: FileList) -> SourceKeys:
    """Collect the source's keys in one job; none if the source may give other rows later.

    None are collected either if there is no file to match: computing a key may fail, for example by
    a cast, where a join with nothing does not fail.

    Raises:
        SourceError: The source's rows could not be read or computed.
    """
    conjuncts = equalities(merge)
    if not conjuncts or not source.gives_same_rows or not len(files):
        return SourceKeys()
    attempt = partial(_source_keys, merge, source, files, conjuncts)
    collected = partial(attempted, merge.table, "no key prunes files", attempt)
    try:
        return collected() or SourceKeys()
    except SourceError as error:
        if source.width_to_sum is None:
            raise
        source.not_measured(error)
    return collected() or SourceKeys()


def _source_keys(
    merge: ResolvedMerge, source: PreparedSource, files: FileList, conjuncts: list[Equality]
) -> SourceKeys:
    import pyarrow.compute as pc

    columns = [equality.source.alias(f"key_{i}") for i, equality in enumerate(conjuncts)]
    keys = source.rows.select(*columns)
    with translated(merge.table, otherwise=SourceError), raise_hidden_interrupts():
        if source.is_counted and source.num_rows > _max_collected(keys):
            return _ranges(conjuncts, keys, files)
        also = [] if source.insertable is None else [source.insertable.alias(INSERTABLE)]
        if source.is_materialized and _are_numbers(keys):
            also.append(F.col(SOURCE_ROW_ID))
        if source.width_to_sum is not None:
            also.append(F.expr(source.width_to_sum).alias(SOURCE_WIDTH))
        asked = source.rows.select(*columns, *also)
        # A source that is not counted is collected with a limit, which saves the job to count it.
        at_most = limits.MAX_COLLECTED_ROWS
        limited = asked if source.is_counted else asked.limit(at_most + 1)
        max_rows = source.num_rows if source.is_counted else at_most + 1
        try:
            table = collected_within(limited, max_rows, limits.MAX_COLLECTED_KEY_BYTES)
        except TooBigError as error:
            logger.info("%s: the keys are not collected: %s", merge.table, error)
            return _ranges(conjuncts, keys, files)
        if not source.is_counted and table.num_rows > at_most:
            return _ranges(conjuncts, keys, files)
    source.known.rows = table.num_rows
    if SOURCE_WIDTH in table.column_names:
        source.known.decoded_bytes = pc.sum(table[SOURCE_WIDTH]).as_py() or 0
    if source.insertable is not None:
        source.known.insertable = pc.sum(table[INSERTABLE]).as_py() or 0
    source_rows = table[SOURCE_ROW_ID] if SOURCE_ROW_ID in table.column_names else None
    found = collected_keys(conjuncts, table.select(range(len(columns))))
    return replace(found, source_rows=source_rows)


def collected_keys(conjuncts: Sequence[Equality], table: pyarrow.Table) -> SourceKeys:
    """Build the keys from values: a column for each equality, a row for each source row."""
    return SourceKeys(tuple(_values_of_keys(conjuncts, table)), table)


def _max_collected(keys: DataFrame) -> int:
    """Return the most rows whose keys are collected on the driver."""
    return limits.MAX_COLLECTED_NUMBERS if _are_numbers(keys) else limits.MAX_COLLECTED_ROWS


def _are_numbers(keys: DataFrame) -> bool:
    return all(isinstance(field.dataType, _NUMBERS) for field in keys.schema)


def _ranges(conjuncts: list[Equality], keys: DataFrame, files: FileList) -> SourceKeys:
    """Compute the ranges of each key; with one candidate file, finer ranges prune nothing."""
    found = key_ranges(keys, at_most=limits.MAX_KEY_RANGES if len(files) > 1 else 1)
    columns = [
        KeyValues(equality, ranges.ends, True, ranges.has_null)
        for equality, ranges in zip(conjuncts, found, strict=True)
        if ranges is not None
    ]
    return SourceKeys(tuple(columns))


def _values_of_keys(conjuncts: Sequence[Equality], table: pyarrow.Table) -> list[KeyValues]:
    import pyarrow.compute as pc
    import pyarrow.types as types

    columns = []
    for equality, column in zip(conjuncts, table.columns, strict=True):
        if types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            continue
        values = sorted_values(column.drop_null())
        if values is not None:
            columns.append(KeyValues(equality, values, False, column.null_count > 0))
    return columns


def _unique(table: pyarrow.Table) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    for i, field in enumerate(table.schema):
        if types.is_floating(field.type):
            if pc.any(pc.is_nan(table[i])).as_py():
                return False  # Arrow says that NaN differs from NaN, Spark that they are equal
            # Arrow says that -0.0 differs from 0.0; this sum turns one into the other.
            zero = pa.scalar(0, field.type)
            table = table.set_column(i, field, pc.add(table[i], zero))
    groups = table.group_by(table.column_names).aggregate([])
    return bool(groups.num_rows == table.num_rows)


@dataclass(frozen=True)
class KeyRanges:
    """Ranges that do not overlap and together hold every value of a key.

    Attributes:
        ends: The lowest and the highest value of each range, one after the other; empty if there is
            no value.
        has_null: Whether a null is among the values.
    """

    ends: list[Any]
    has_null: bool


def key_ranges(keys: DataFrame, at_most: int) -> list[KeyRanges | None]:
    """Compute the ranges of each column's values; None if they are unknown, e.g. with NaN.

    One job finds the lowest and the highest value of each column. For numbers, dates and
    timestamps, another job divides this range into parts of equal width and drops empty parts.
    """
    numbers = _number_columns(keys)
    at_ends = keys.agg(
        *[F.min(name).alias(f"low_{name}") for name in keys.columns],
        *[F.max(name).alias(f"high_{name}") for name in keys.columns],
        *[F.bool_or(F.isnull(name)).alias(f"null_{name}") for name in keys.columns],
        *[F.min(number).alias(f"first_{name}") for name, number in numbers.items()],
        *[F.max(number).alias(f"last_{name}") for name, number in numbers.items()],
    )
    found = collected(at_ends)
    known = {name: _whole_range(found, name) for name in keys.columns}
    parts = {
        name: F.least(F.floor((number - first) / (last - first) * at_most), F.lit(at_most - 1))
        for name, number in numbers.items()
        if known[name] is not None
        for first, last in [_numbers_at_ends(found, name)]
        if 0 < last - first < math.inf
    }
    if at_most > 1 and parts:
        for name, ends in _ends_of_parts(keys, parts).items():
            whole = known[name]
            assert whole is not None
            known[name] = replace(whole, ends=ends)
    return list(known.values())


def _number_columns(keys: DataFrame) -> dict[str, Column]:
    """Return the columns whose range can be divided, as doubles in the order of their values."""
    numbers = {field.name: _number(field.name, field.dataType) for field in keys.schema}
    return {name: number.cast("double") for name, number in numbers.items() if number is not None}


def _number(name: str, data_type: DataType) -> Column | None:
    if isinstance(data_type, DateType):
        return F.unix_date(name)
    if isinstance(data_type, TimestampType):
        return F.unix_micros(name)
    return F.col(name) if isinstance(data_type, NumericType) else None


def _whole_range(found: pyarrow.Table, name: str) -> KeyRanges | None:
    low, high = python_values(found[f"low_{name}"]), python_values(found[f"high_{name}"])
    if low is None or high is None:
        return None
    ends = [] if low == [None] else low + high
    if any(end != end for end in ends):
        return None
    return KeyRanges(ends, bool(found[f"null_{name}"][0].as_py()))


def _numbers_at_ends(found: pyarrow.Table, name: str) -> tuple[float, float]:
    """Return the lowest and the highest value as numbers; NaN if there is no value."""
    first, last = found[f"first_{name}"][0].as_py(), found[f"last_{name}"][0].as_py()
    return (math.nan, math.nan) if first is None else (first, last)


def _ends_of_parts(keys: DataFrame, parts: Mapping[str, Column]) -> dict[str, list[Any]]:
    """Return the lowest and highest value in each part of each column's range, in order.

    `parts` has, by column, the number of the part that each value is in.
    """
    import pyarrow.compute as pc

    numbered = keys.select(*parts, *[part.alias(f"part_{name}") for name, part in parts.items()])
    grouped = numbered.groupingSets(
        [[F.col(f"part_{name}")] for name in parts], *[f"part_{name}" for name in parts]
    )
    at_ends = grouped.agg(
        *[F.min(name).alias(f"low_{name}") for name in parts],
        *[F.max(name).alias(f"high_{name}") for name in parts],
        *[F.grouping(f"part_{name}").alias(f"other_{name}") for name in parts],
    )
    found = collected(at_ends)
    ends = {}
    for name in parts:
        own = found.filter(pc.equal(found[f"other_{name}"], 0))
        own = own.filter(pc.is_valid(own[f"low_{name}"])).sort_by(f"low_{name}")
        both = [python_values(own[f"{end}_{name}"]) or [] for end in ("low", "high")]
        assert own.num_rows == len(both[0]) == len(both[1]), "Python has those of the whole range"
        ends[name] = list(chain.from_iterable(zip(*both, strict=True)))
    return ends


def typed_literal(value: Any, data_type: DataType) -> Column:
    """Convert a Python value to a literal of its type.

    PySpark's `lit` converts dates and times by java.sql. That refuses years before 1000, lacks the
    days between the old calendar and the new one, and reads times without a zone in Python's zone.
    A struct's value is a Row.
    """
    if value is None:
        return F.lit(None).cast(data_type)
    if isinstance(data_type, StructType):
        fields = [typed_literal(value[f.name], f.dataType).alias(f.name) for f in data_type]
        return F.struct(*fields)
    if isinstance(data_type, DateType | TimestampNTZType):
        return F.lit(value.isoformat()).cast(data_type.simpleString())
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(F.lit(_microseconds(value)))
    constant = F.lit(value)
    return constant if isinstance(data_type, _OF_LIT) else constant.cast(data_type.simpleString())


def _microseconds(time: datetime) -> int:
    """Convert a time to µs since 1970; times without a zone are in Python's zone."""
    if time.tzinfo is None and 1 < time.year < 9999:
        # PySpark's own conversion below confuses the hours before and after a clock is set back.
        return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond
    return int(TimestampType().toInternal(time))
