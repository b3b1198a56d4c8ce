"""The keys of source rows and of files as Arrow joins them, in merges on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    ComparableColumn,
    Verdict,
    comparable,
    reading_of,
    row_schema,
    table_columns,
)
from deltaweave.delta.statement import Equality
from deltaweave.engine.source import SourceKeys
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import pyarrow

SOURCE_NUMBER = "number"
"""The number of a source row."""


@dataclass(frozen=True)
class Compared:
    """An equality of the ON condition that Arrow decides as Spark does.

    Attributes:
        equality: The equality.
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
        """Return these columns of values, with another value for null, which Arrow never joins."""
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


def compared(transaction: Transaction, conjuncts: Sequence[Equality]) -> list[Compared] | Verdict:
    """Return the equalities with the columns that they compare.

    If Arrow may decide one otherwise than Spark does, return why.
    """
    columns = {column.name: column for column in table_columns(transaction)}
    found = []
    for equality in conjuncts:
        name = ".".join(equality.path)
        if len(equality.path) > 1 or name not in columns:
            return Verdict(False, f"{name!r} is no column of the table")
        column = comparable(columns[name], equality.compared_as, reading_of(transaction))
        if isinstance(column, Verdict):
            return column
        found.append(Compared(equality, column))
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
