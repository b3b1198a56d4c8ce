"""Whether all pending changes are newer than all rows of the base, by the logs.

Usually they are, because late events have arrived before the last rematerialization. A change then
replaces the row of its key, which need not be read and compared.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from deltaweave.changes.events import SEQUENCE
from deltaweave.changes.merge_on_read.changeset import Batches
from deltaweave.delta.log import TableSnapshot, are_bounded, bounds


def are_newer(changes: Batches, base: TableSnapshot, sequence: StructType) -> bool:
    """Whether every change's sequence is above all of the base.

    Only the first part of a sequence is compared. Also false if statistics do not bound it: it may
    be beyond the first 32 columns, or of a type without bounds.

    Args:
        changes: The changes.
        base: The base.
        sequence: The type of `_cdc_sequence`.
    """
    path, data_type = _first_part(sequence)
    # NaN is above all other numbers and is not in bounds.
    if not are_bounded(data_type) or isinstance(data_type, FloatType | DoubleType):
        return False
    files = base.file_list()
    if not len(changes.files) or not len(files):
        return True
    [held] = bounds(base, files, [(path, data_type)])
    [came] = bounds(changes.table, changes.files, [(path, data_type)])
    highs, lows = _known(held.highs, held.are_null), _known(came.lows, came.are_null)
    if highs is None or lows is None:
        return False
    return not highs or not lows or bool(max(highs) < min(lows))


def _first_part(sequence: StructType) -> tuple[list[str], DataType]:
    path: list[str] = [SEQUENCE]
    data_type: DataType = sequence
    while isinstance(data_type, StructType):
        path.append(data_type[0].name)
        data_type = data_type[0].dataType
    return path, data_type


def _known(ends: list[Any], are_null: list[bool]) -> list[Any] | None:
    """The bounds of the files that hold values; None if one of them has no bounds."""
    ends = [end for end, is_null in zip(ends, are_null, strict=True) if not is_null]
    return None if None in ends else ends
