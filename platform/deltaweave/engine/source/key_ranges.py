"""Ranges that hold all keys of a source, for keys that are too many to be collected.

A load that corrects some old rows and adds new ones has keys at both ends of the table's range, and
none in most of the files between. Several ranges prune these files, and one does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, NumericType, TimestampType

from deltaweave.delta.jvm import collected
from deltaweave.delta.log import python_values

if TYPE_CHECKING:
    import pyarrow


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

    Args:
        keys: The columns.
        at_most: The most ranges of a column.
    """
    numbers = _numbers(keys)
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


def _numbers(keys: DataFrame) -> dict[str, Column]:
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

    Args:
        keys: The columns.
        parts: By column, the number of the part that each value is in.
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
