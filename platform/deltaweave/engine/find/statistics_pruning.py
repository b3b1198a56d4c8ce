"""Prune files by their statistics and the source's keys.

A file is pruned if its statistics prove that none of the source's values lies between the lowest
and the highest value of a key column. A file without statistics is never pruned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DoubleType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList, bounds
from deltaweave.engine.source import KeyValues, SourceKeys

if TYPE_CHECKING:
    import numpy


def may_match(transaction: Transaction, candidates: FileList, keys: SourceKeys) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    columns = [(key.equality.path, key.equality.data_type) for key in keys.columns]
    mask = np.ones(len(candidates), dtype=bool)
    known = bounds(transaction.table, candidates, columns)
    for key, of_key in zip(keys.columns, known, strict=True):
        files = zip(of_key.lows, of_key.highs, of_key.may_be_null, strict=True)
        for i, (low, high, may_be_null) in enumerate(files):
            mask[i] = mask[i] and _may_hold(key, low, high, may_be_null)
    return mask


def _may_hold(key: KeyValues, low: Any, high: Any, may_be_null: bool) -> bool:
    """Return whether a file with these bounds can hold one of the values."""
    if key.equality.null_safe and key.has_null and may_be_null:
        return True
    if low is None or high is None:
        return True
    if isinstance(key.equality.compared_as, DoubleType):
        # Spark compares such whole numbers as doubles, and two of them may be the same double.
        low, high = float(low), float(high)
    return key.may_lie_within(low, high)
