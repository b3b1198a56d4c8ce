"""Which candidate files can hold a row that the source matches: an exact test for each file.

A file stays unless its statistics prove that none of the source's values lies between the lowest
and the highest value of a key column. Whatever is not known keeps the file: statistics that are
missing, of a type whose bounds are not exact, or cut off in a way not understood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, TimestampNTZType, TimestampType

from deltaweave.delta.conditions import Equality
from deltaweave.delta.snapshot import FileList
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.source_keys import KeyValues, SourceKeys, python_values

if TYPE_CHECKING:
    import numpy

_LAST_CHARACTER = "\U0010ffff"


def may_match(transaction: Transaction, candidates: FileList, keys: SourceKeys) -> numpy.ndarray:
    """For each candidate, whether it can hold a row which a source row matches."""
    import numpy as np

    bounds = {
        f"{name}_{i}": bound
        for i, key in enumerate(keys.columns)
        for name, bound in _bounds(transaction, key.equality).items()
    }
    if candidates.have_statistics:
        files = candidates.rows_with(bounds)
    else:
        columns = [bound.alias(name) for name, bound in bounds.items()]
        files = transaction.table.files.select("path", *columns).toArrow()
    place = {path: i for i, path in enumerate(files["path"].to_pylist())}
    mask = np.ones(len(candidates), dtype=bool)
    for i, key in enumerate(keys.columns):
        lows, highs = python_values(files[f"low_{i}"]), python_values(files[f"high_{i}"])
        if lows is None or highs is None:
            continue
        nulls = files[f"nulls_{i}"].to_pylist()
        for j, path in enumerate(candidates.paths):
            at = place.get(path)
            if mask[j] and at is not None:
                mask[j] = _may_hold(key, lows[at], highs[at], nulls[at])
    return mask


def _may_hold(key: KeyValues, low: Any, high: Any, nulls: int | None) -> bool:
    """Whether a file with these bounds can hold one of the values."""
    if key.equality.null_safe and key.has_null and nulls != 0:
        return True
    if low is None or high is None or low != low or high != high:
        return True
    return key.may_lie_within(low, high)


def _bounds(transaction: Transaction, equality: Equality) -> dict[str, Column]:
    """The lowest and the highest value of a column in each file, and how many nulls it holds.

    Null where not known. Where the true bound is only known to be near, the value lies outside it.
    """
    physical = transaction.table.physical_names[equality.column]
    if equality.column in transaction.partition_columns:
        value = F.col("partitionValues").getItem(physical).cast(equality.data_type)
        value = value.cast(equality.compared_as)
        return {"low": value, "high": value, "nulls": F.isnull(value).cast("long")}

    def statistic(kind: str) -> Column:
        return F.get_json_object("stats", f"$.{kind}['{physical}']")

    if set(physical) & set("'?*"):  # which a JSON path cannot hold
        return {"low": F.lit(None), "high": F.lit(None), "nulls": F.lit(None).cast("long")}
    low, high = statistic("minValues"), statistic("maxValues")
    nulls = statistic("nullCount").cast("long")
    if isinstance(equality.data_type, StringType):
        return {"low": low, "high": _highest_string(high), "nulls": nulls}
    low = low.cast(equality.data_type).cast(equality.compared_as)
    high = high.cast(equality.data_type).cast(equality.compared_as)
    if isinstance(equality.data_type, TimestampType | TimestampNTZType):
        # Cut off at milliseconds.
        high = high + F.expr("INTERVAL 1 MILLISECOND")
    return {"low": low, "high": high, "nulls": nulls}


def _highest_string(high: Column) -> Column:
    """A string that none in the file is above.

    Writers cut long strings off (Delta after 32 characters), and may or may not put a character
    behind to make up for that; so the end of a longer one is not trusted.
    """
    start = F.substring(high, F.lit(1), F.length(high) - 2)
    return F.when(F.length(high) < 8, high).otherwise(F.concat(start, F.lit(_LAST_CHARACTER)))
