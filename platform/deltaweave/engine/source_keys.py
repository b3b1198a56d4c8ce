"""The source's own keys: which values an equality of the ON condition can match in the target.

`t.k = s.k AND t.day = date(s.at)` can only match target rows whose `k` and `day` are among the
values that the source has. Those values are collected once, from the source as it was materialized;
they say which files need not be read (see pruning), and whether a target row can match twice.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.arrow_values import sorted_values
from deltaweave.delta.conditions import Equality, equalities
from deltaweave.delta.failures import translated
from deltaweave.delta.file_list import FileList
from deltaweave.delta.literals import literal
from deltaweave.engine.key_ranges import key_ranges
from deltaweave.engine.pairs import INSERTABLE
from deltaweave.engine.source import SOURCE_ROW_ID, PreparedSource
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    import pyarrow

# Keys of a source of up to so many rows are collected: some 30 MB of strings each column.
MAX_COLLECTED_ROWS = 500_000
# As much of numbers, where the source is known to have no more rows.
MAX_COLLECTED_NUMBERS = 4_000_000
# Of a larger source, so many ranges that the values of a column lie in.
_MAX_RANGES = 4_096

# Types whose values mean the same in Python, whatever the session's time zone.
_PUSHED = (ByteType, ShortType, IntegerType, LongType, DecimalType, StringType, DateType)
_NUMBERS = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)
# The days that the change of the calendar left out are days to Spark, but none to java.sql.Date, by
# which it tells Parquet: it then finds no row of them.
_LOST_DAYS = frozenset(date(1582, 10, day) for day in range(5, 15))
# Spark tells Parquet up to so many values one by one, and of more the lowest and the highest.
_MAX_PUSHED_VALUES = 10


@dataclass(frozen=True)
class KeyValues:
    """What the source has for one equality.

    Attributes:
        equality: The conjunct of the ON condition.
        values: Every value as `arrow_values` has it, sorted; where `are_ranges`, the lowest and the
            highest of each of some ranges, one after the other.
        are_ranges: Whether any value within these ranges is possible.
        has_null: Whether a null is among them.
    """

    equality: Equality
    values: Sequence[Any]
    are_ranges: bool
    has_null: bool

    def may_lie_within(self, low: Any, high: Any) -> bool:
        """Whether a value can lie between the two, ends included."""
        place = bisect_left(self.values, low)
        if place < len(self.values) and self.values[place] <= high:
            return True
        # The next value is the highest of a range: both lie within it.
        return self.are_ranges and place % 2 == 1


@dataclass(frozen=True)
class SourceKeys:
    """The source's values for every equality of the ON condition.

    Attributes:
        columns: One for each equality whose values can be compared with statistics, which do not
            bound NaN.
        rows: The values as the source's rows have them, a column for each equality; None where
            they were not collected.
    """

    columns: tuple[KeyValues, ...] = ()
    rows: pyarrow.Table | None = None

    @cached_property
    def are_unique(self) -> bool:
        """Whether it is known that no two source rows agree in all of them.

        Then no target row can match twice.
        """
        if self.rows is None or len(self.columns) < self.rows.num_columns:
            return False
        if len(self.columns) == 1 and not self.columns[0].has_null:
            return bool(len(self.columns[0].values) == self.rows.num_rows)
        return _unique(self.rows)


def row_identity(source: PreparedSource, keys: SourceKeys) -> Column | None:
    """What tells a source row from the others, however often they are computed; None if nothing.

    Never null in a row that matches.
    """
    if source.is_materialized:
        return F.col(SOURCE_ROW_ID)
    if not keys.are_unique:
        return None
    first, *others = (key.equality for key in keys.columns)
    if not others and not first.null_safe:
        return first.source
    return F.struct(*[equality.source for equality in (first, *others)])


def within(keys: SourceKeys) -> Column | None:
    """What every target row meets that a source row matches, over the target's columns by name.

    Parquet skips row groups and pages by it; None where nothing is known.
    """
    known = [
        _within(key)
        for key in keys.columns
        if isinstance(key.equality.data_type, _PUSHED)
        and not isinstance(key.equality.compared_as, DoubleType)
    ]
    whole = [_whole_within(key) for key in keys.columns if _is_whole_as_double(key)]
    pushed = [each for each in (*known, *whole) if each is not None]
    return reduce(Column.__and__, pushed) if pushed else None


def _is_whole_as_double(key: KeyValues) -> bool:
    """Whether whole numbers are compared as doubles, and none so big that doubles round it."""
    return (
        isinstance(key.equality.compared_as, DoubleType)
        and not isinstance(key.equality.data_type, DoubleType)
        and bool(key.values)
        and max(abs(key.values[0]), abs(key.values[-1])) < 1 << 53
    )


def _whole_within(key: KeyValues) -> Column:
    """Bounds as whole numbers, which Parquet knows of the column."""
    column = key.equality.target
    possible = column.between(math.ceil(key.values[0]), math.floor(key.values[-1]))
    return possible | column.isNull() if key.equality.null_safe and key.has_null else possible


def _within(key: KeyValues) -> Column | None:
    column = key.equality.target
    are_few = not key.are_ranges and len(key.values) <= _MAX_PUSHED_VALUES
    values = key.values if are_few else (*key.values[:1], *key.values[-1:])
    if any(value in _LOST_DAYS for value in values):
        return None
    literals = [literal(value, key.equality.compared_as) for value in values]
    if not values:
        possible: Column = F.lit(False)
    elif are_few:
        possible = column.isin(literals)
    else:
        possible = column.between(*literals)
    return possible | column.isNull() if key.equality.null_safe and key.has_null else possible


def source_keys(merge: ResolvedMerge, source: PreparedSource, files: FileList) -> SourceKeys:
    """Collect the source's keys, in one job; none where the source could give others later.

    Nor are any where there are no files that they could match: computing a key may fail, as a cast
    does, where joining nothing does not.

    Raises:
        SourceError: The source's rows could not be read or computed.
    """
    import pyarrow.compute as pc

    conjuncts = equalities(merge)
    if not conjuncts or not source.gives_same_rows or not len(files):
        return SourceKeys()
    columns = [equality.source.alias(f"key_{i}") for i, equality in enumerate(conjuncts)]
    keys = source.rows.select(*columns)
    with translated(merge.table, otherwise=SourceError):
        if source.is_counted and source.num_rows > _max_collected(keys):
            return _ranges(conjuncts, keys, files)
        asked = keys
        if source.insertable is not None:
            asked = source.rows.select(*columns, source.insertable.alias(INSERTABLE))
        # The limit, of a source that is not counted, saves the job that counts it.
        table = (asked if source.is_counted else asked.limit(MAX_COLLECTED_ROWS + 1)).toArrow()
        if not source.is_counted and table.num_rows > MAX_COLLECTED_ROWS:
            return _ranges(conjuncts, keys, files)
    source.with_num_rows(table.num_rows)
    if source.insertable is not None:
        source.with_num_insertable(pc.sum(table[INSERTABLE]).as_py() or 0)
        table = table.drop_columns([INSERTABLE])
    return SourceKeys(tuple(_collected(conjuncts, table)), table)


def _max_collected(keys: DataFrame) -> int:
    """Keys of how many rows fit on the driver."""
    of_numbers = all(isinstance(field.dataType, _NUMBERS) for field in keys.schema)
    return MAX_COLLECTED_NUMBERS if of_numbers else MAX_COLLECTED_ROWS


def _ranges(conjuncts: list[Equality], keys: DataFrame, files: FileList) -> SourceKeys:
    """The ranges that the values of each key lie in; of one file, more than one tell nothing."""
    found = key_ranges(keys, at_most=_MAX_RANGES if len(files) > 1 else 1)
    columns = [
        KeyValues(equality, ranges.ends, True, ranges.has_null)
        for equality, ranges in zip(conjuncts, found, strict=True)
        if ranges is not None
    ]
    return SourceKeys(tuple(columns))


def _collected(conjuncts: list[Equality], table: pyarrow.Table) -> list[KeyValues]:
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
                return False  # to Arrow, one NaN is not another; to Spark it is
            # The same with zeros: this sum turns -0.0 into 0.0.
            zero = pa.scalar(0, field.type)
            table = table.set_column(i, field, pc.add(table[i], zero))
    groups = table.group_by(table.column_names).aggregate([])
    return bool(groups.num_rows == table.num_rows)
