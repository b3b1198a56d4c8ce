"""Compare keys as Spark does: those of the source and those of files, in Arrow.

Whole-number keys are looked up as one number each. Arrow hashes the source's keys again for each
batch of target rows. Of millions of keys that takes longer than to look up the batch, so they are
prepared once, and all threads share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    ComparableColumn,
    comparable,
    reading_of,
    row_schema,
    table_columns,
)
from deltaweave.delta.statement import Equality
from deltaweave.engine import limits
from deltaweave.engine.backends.base import allowed, require
from deltaweave.engine.source import SourceKeys
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import numpy
    import pyarrow

SOURCE_NUMBER = "number"
"""The number of a source row."""


_NOTHING = -1

# Numbers that a table by number has for each key at most: some 60 bytes.
_NUMBERS_OF_A_KEY = 16


@dataclass(frozen=True)
class Compared:
    """An equality of the ON condition that Arrow decides as Spark does.

    Attributes:
        column: The target's column.
    """

    equality: Equality
    column: ComparableColumn


@dataclass(frozen=True)
class KeyColumn:
    """A compared column.

    Attributes:
        name: What it is called where rows are joined.
        field: The column as files store it, or would if it is a partition column.
        null_safe: Whether null equals null.
        is_of_partition: Whether it is a partition column, which the log has.
    """

    name: str
    field: pyarrow.Field
    null_safe: bool
    is_of_partition: bool

    @property
    def joined(self) -> dict[str, pyarrow.DataType]:
        """The columns by which rows are joined, and their types."""
        import pyarrow as pa

        whether_null = {f"{self.name} is null": pa.bool_()} if self.null_safe else {}
        return {self.name: self.field.type, **whether_null}

    def of(self, values: pyarrow.ChunkedArray) -> dict[str, pyarrow.ChunkedArray]:
        """Return the columns of values, with another value for null, which Arrow never joins."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as types

        values = values.cast(self.field.type)
        if not self.null_safe:
            return {self.name: values}
        any_value: object = "" if types.is_string(values.type) else 0
        if types.is_decimal(values.type):
            any_value = Decimal(0)
        filled = pc.fill_null(values, pa.scalar(any_value, values.type))
        return dict(zip(self.joined, (filled, pc.is_null(values)), strict=True))


def key_columns(transaction: Transaction, conjuncts: Sequence[Compared]) -> list[KeyColumn]:
    """Return the target's columns that the equalities compare."""
    schema, physical = row_schema(transaction), transaction.table.physical_names
    partitioned = transaction.partition_columns
    return [
        KeyColumn(
            f"k{i}",
            schema.field(physical[each.column.name]),
            each.equality.null_safe,
            each.column.name in partitioned,
        )
        for i, each in enumerate(conjuncts)
    ]


def compared(transaction: Transaction, conjuncts: Sequence[Equality]) -> list[Compared]:
    """Return the equalities with the columns that they compare.

    Raises:
        DeclinedError: Arrow may decide one otherwise than Spark does.
    """
    columns = {column.name: column for column in table_columns(transaction)}
    found = []
    for equality in conjuncts:
        name = ".".join(equality.path)
        is_column = len(equality.path) == 1 and name in columns
        require(is_column, f"{name!r} is not a column of the table")
        column = comparable(columns[name], equality.compared_as, reading_of(transaction))
        found.append(Compared(equality, allowed(column)))
    return found


def keys_of_source(source: SourceKeys, columns: Sequence[KeyColumn]) -> pyarrow.Table:
    """Convert the source's keys to the files' types, with row numbers; drop keys with a null.

    Keys that no value of a file's type equals are left out.

    Raises:
        NotRewritableError: A key may equal several values of a file's type.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    collected = source.rows
    assert collected is not None, "they are collected"
    keys: dict[str, pyarrow.ChunkedArray] = {}
    may_match = pa.chunked_array([pa.repeat(pa.scalar(True), collected.num_rows)])
    for column, values in zip(columns, collected.columns, strict=True):
        if types.is_integer(column.field.type) and values.type != column.field.type:
            has_equal = _has_equal(values, column.field.type)
            may_match = pc.and_(may_match, has_equal)
            values = pc.if_else(has_equal, values, pa.scalar(0, values.type))
        keys |= column.of(values)
    numbers = pa.array(np.arange(collected.num_rows, dtype=np.int64))
    return pa.table({**keys, SOURCE_NUMBER: numbers}).filter(may_match).drop_null()


def _has_equal(values: pyarrow.ChunkedArray, kind: pyarrow.DataType) -> pyarrow.ChunkedArray:
    """Return whether a whole number of a type may equal each value; true for nulls.

    Spark compares both as the wider type. Doubles hold whole numbers exactly below 2 to the power
    of 53; from there on, one equals several of them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    number = float if types.is_floating(values.type) else int
    lowest, highest = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    has_equal = pc.and_(
        pc.greater_equal(values, pa.scalar(number(lowest))),
        pc.less_equal(values, pa.scalar(number(highest))),
    )
    if types.is_floating(values.type):
        is_inexact = pc.greater_equal(pc.abs(values), pa.scalar(float(1 << 53)))
        if kind.bit_width == 64 and pc.any(pc.and_(is_inexact, pc.is_finite(values))).as_py():
            raise NotRewritableError("a key is a double that equals several whole numbers")
        has_equal = pc.and_(has_equal, pc.equal(values, pc.floor(values)))  # false for NaN
    return pc.fill_null(has_equal, True)


@dataclass(frozen=True)
class NumberedKeys:
    """The unique keys of a source, as numbers.

    A key of several columns is one number: its digits are the columns' values, less their lowest
    values.

    Attributes:
        bounds: The lowest and the highest value of each.
        numbers: The keys as numbers; sorted unless `by_number` is known.
        source_rows: The source row of each.
        by_number: For each number from 0 on, its source row or -1; None if too many numbers lie
            between the keys.
    """

    names: Sequence[str]
    bounds: Sequence[tuple[int, int]]
    numbers: numpy.ndarray
    source_rows: numpy.ndarray
    by_number: numpy.ndarray | None

    @classmethod
    def of(cls, keys: pyarrow.Table) -> NumberedKeys | None:
        """Assign numbers to the keys of a source; None if 64 bits cannot tell all of them apart.

        Args:
            keys: A column for each compared value, none of them null, and `SOURCE_NUMBER`.
        """
        import numpy as np

        names = [name for name in keys.column_names if name != SOURCE_NUMBER]
        values = [_whole_numbers(keys[name]) for name in names]
        if any(each is None for each in values):
            return None
        columns = [each for each in values if each is not None]
        if not len(keys):
            return cls(names, [(0, -1)] * len(names), np.array([]), np.array([]), None)
        bounds = [(int(each.min()), int(each.max())) for each in columns]
        span = prod(highest - lowest + 1 for lowest, highest in bounds)
        if span > 1 << 62:
            return None
        numbers = _as_digits(columns, bounds)
        source_rows = keys[SOURCE_NUMBER].to_numpy()
        if span <= min(limits.MAX_NUMBERS_BETWEEN_KEYS, _NUMBERS_OF_A_KEY * len(keys)):
            by_number = np.full(span, _NOTHING, dtype=np.int32)
            by_number[numbers] = source_rows
            return cls(names, bounds, numbers, source_rows, by_number)
        order = np.argsort(numbers, kind="stable")
        return cls(names, bounds, numbers[order], source_rows[order], None)

    def found_in(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Keep the rows with a key of the source, with `SOURCE_NUMBER` in place of the key."""
        import numpy as np
        import pyarrow as pa

        rows = rows.drop_null()
        columns = []
        may_match = np.ones(rows.num_rows, dtype=bool)
        for name, (lowest, highest) in zip(self.names, self.bounds, strict=True):
            values = _whole_numbers(rows[name])
            assert values is not None, "they are of the types of the source's keys"
            may_match &= (values >= lowest) & (values <= highest)
            columns.append(values)
        indexes = np.flatnonzero(may_match)
        numbers = _as_digits([values[indexes] for values in columns], self.bounds)
        source_rows = self._source_rows(numbers)
        has_match = source_rows != _NOTHING
        found = rows.drop_columns(list(self.names)).take(pa.array(indexes[has_match]))
        return found.append_column(SOURCE_NUMBER, pa.array(source_rows[has_match], pa.int64()))

    def _source_rows(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Return the source row of each number, or -1."""
        import numpy as np

        if self.by_number is not None:
            rows: numpy.ndarray = self.by_number[numbers]
            return rows
        if not len(self.numbers):
            return np.full(len(numbers), _NOTHING)
        indexes = np.searchsorted(self.numbers, numbers)
        indexes[indexes == len(self.numbers)] = 0
        return np.where(self.numbers[indexes] == numbers, self.source_rows[indexes], _NOTHING)


def _whole_numbers(values: pyarrow.ChunkedArray) -> numpy.ndarray | None:
    """Convert the values to 64-bit integers; None if they are of another type."""
    import numpy as np
    import pyarrow.types as types

    kind = values.type
    if types.is_boolean(kind):
        values = values.cast("int8")
    elif types.is_date32(kind):
        values = values.cast("int32")
    elif not types.is_signed_integer(kind):
        return None
    numbers: numpy.ndarray = values.to_numpy().astype(np.int64, copy=False)
    return numbers


def _as_digits(
    columns: Sequence[numpy.ndarray], bounds: Sequence[tuple[int, int]]
) -> numpy.ndarray:
    """Combine the values of each row, which lie within the bounds, to one number."""
    numbers = columns[0] - bounds[0][0]
    for values, (lowest, highest) in zip(columns[1:], bounds[1:], strict=True):
        numbers = numbers * (highest - lowest + 1) + (values - lowest)
    return numbers
