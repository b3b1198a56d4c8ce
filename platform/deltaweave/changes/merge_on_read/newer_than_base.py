"""Whether all pending changes are newer than all rows of the base, by the logs.

Usually they are, because late events have arrived before the last rematerialization. A change then
replaces the row of its key, which need not be read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from deltaweave.changes.events import SEQUENCE
from deltaweave.changes.merge_on_read.changeset import Batches
from deltaweave.delta.log import TableSnapshot, are_bounded, bounds


def are_newer(changes: Batches, base: TableSnapshot, sequence: StructType) -> bool:
    """Return whether every change's sequence is above all of the base.

    Compared are the first part of a sequence, and further parts while all before are equal on both
    sides, such as the epoch of a position. Also false if statistics do not bound them: they may be
    beyond the first 32 columns, or of a type without bounds.

    Args:
        changes: The changes.
        base: The base.
        sequence: The type of `_cdc_sequence`.
    """
    files = base.file_list()
    for path, data_type in _parts([SEQUENCE], sequence):
        # NaN is above all other numbers and is not in bounds.
        if not are_bounded(data_type) or isinstance(data_type, FloatType | DoubleType):
            return False
        if not len(changes.files) or not len(files):
            return True
        [held] = bounds(base, files, [(path, data_type)])
        [came] = bounds(changes.table, changes.files, [(path, data_type)])
        highs, lows = _known(held.highs, held.are_null), _known(came.lows, came.are_null)
        if highs is None or lows is None:
            return False
        if not highs or not lows or bool(max(highs) < min(lows)):
            return True
        if {*highs, *lows, *held.lows, *came.highs} != {highs[0]}:
            return False
    return False


def _parts(path: list[str], data_type: DataType) -> Iterator[tuple[list[str], DataType]]:
    """Yield the parts of a sequence, in their order."""
    if not isinstance(data_type, StructType):
        yield path, data_type
        return
    for field in data_type:
        yield from _parts([*path, field.name], field.dataType)


def _known(ends: list[Any], are_null: list[bool]) -> list[Any] | None:
    """Return the bounds of the files that hold values; None if one of them has no bounds."""
    ends = [end for end, is_null in zip(ends, are_null, strict=True) if not is_null]
    return None if None in ends else ends
