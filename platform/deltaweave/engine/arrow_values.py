"""Values of Arrow columns as Python has them, to be compared with what the log says of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow


def python_values(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any] | None:
    """The values as Python has them; None where it cannot (dates after the year 9999)."""
    if not column.null_count and _is_number(column.type):
        return list(column.to_numpy().tolist())  # many times as fast
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return None


def sorted_values(column: pyarrow.ChunkedArray) -> list[Any] | None:
    """Every value once, in order, of a column without nulls; None where Python cannot have them."""
    import numpy as np
    import pyarrow.compute as pc

    if _is_number(column.type):
        return list(np.unique(column.to_numpy()).tolist())  # many times as fast
    return python_values(pc.unique(column).sort())


def _is_number(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind))
