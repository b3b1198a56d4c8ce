"""Values of Arrow columns as Python values, for comparing them with files' statistics."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow


def python_values(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any] | None:
    """Convert values to Python's; None if Python cannot hold one (dates after the year 9999).

    Timestamps become microseconds since 1970: in UTC, or as written if they have no time zone.
    Python's own timestamps end with the year 9999, whatever the time zone.
    """
    column = _numbered(column)
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

    column = _numbered(column)
    if _is_number(column.type):  # 8 bytes each instead of the 40 in a list
        code = "d" if types.is_floating(column.type) else "q"
        values = np.sort(column.to_numpy()).astype(code)
        # np.unique builds a hash table first, which takes a hundred times longer.
        is_new = np.append(True, values[1:] != values[:-1])[: len(values)]
        return array(code, values[is_new].tobytes())
    return python_values(pc.unique(column).sort())


def _numbered(
    column: pyarrow.Array | pyarrow.ChunkedArray,
) -> pyarrow.Array | pyarrow.ChunkedArray:
    """Convert timestamps of a column to whole numbers; other columns stay."""
    import pyarrow.types as types

    return column.cast("int64") if types.is_timestamp(column.type) else column


def _is_number(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind))
