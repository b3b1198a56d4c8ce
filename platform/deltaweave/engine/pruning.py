"""Which candidate files can hold a row that the source matches: an exact test for each file.

A file stays unless its statistics prove that none of the source's values lies between the lowest
and the highest value of a key column. Whatever is not known keeps the file: statistics that are
missing, of a type whose bounds are not exact, or cut off in a way not understood.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from operator import index
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.delta.conditions import Equality
from deltaweave.delta.file_list import FileList
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.arrow_values import python_values
from deltaweave.engine.source_keys import KeyValues, SourceKeys

if TYPE_CHECKING:
    import numpy

# Types whose bounds Python reads in the log's JSON, and how; booleans are ints to it.
_READ_AS: dict[type[DataType], Callable[[Any], Any]] = {
    ByteType: index,
    ShortType: index,
    IntegerType: index,
    LongType: index,
    StringType: str,
    DateType: date.fromisoformat,
}
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_IS_WHOLE = re.compile(r"[+-]?[0-9]+")
_SHORT = 8  # characters that no writer cuts off
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True)
class _Bounds:
    """The lowest and highest value of a column in each of some files, and how many nulls it holds.

    None where not known. Where the true bound is only known to be near, the value lies outside it.
    """

    lows: list[Any]
    highs: list[Any]
    nulls: list[int | None]


def may_match(transaction: Transaction, candidates: FileList, keys: SourceKeys) -> numpy.ndarray:
    """For each candidate, whether it can hold a row which a source row matches."""
    import numpy as np

    equalities = [key.equality for key in keys.columns]
    known = _read_from_text(transaction, candidates, equalities)
    if known is None:
        known = _queried(transaction, candidates, equalities)
    mask = np.ones(len(candidates), dtype=bool)
    for key, bounds in zip(keys.columns, known, strict=True):
        if bounds is None:
            continue
        files = zip(bounds.lows, bounds.highs, bounds.nulls, strict=True)
        for i, (low, high, nulls) in enumerate(files):
            mask[i] = mask[i] and _may_hold(key, low, high, nulls)
    return mask


def _may_hold(key: KeyValues, low: Any, high: Any, nulls: int | None) -> bool:
    """Whether a file with these bounds can hold one of the values."""
    if key.equality.null_safe and key.has_null and nulls != 0:
        return True
    if low is None or high is None or low != low or high != high:
        return True
    return key.may_lie_within(low, high)


def _read_from_text(
    transaction: Transaction, candidates: FileList, equalities: list[Equality]
) -> list[_Bounds | None] | None:
    """The bounds by the log's text, without a query; None where Spark has to read them.

    Python reads whole numbers, strings and dates as Spark does.
    """
    if candidates.adds is None or not candidates.have_statistics:
        return None
    if any(type(equality.data_type) not in _READ_AS for equality in equalities):
        return None
    statistics = [json.loads(add.get("stats") or "{}") for add in candidates.adds]
    known: list[_Bounds | None] = []
    partitioned_by = transaction.partition_columns
    for equality in equalities:
        path = transaction.table.physical_path(equality.path)
        if equality.path[0] in partitioned_by:
            known.append(_partition_bounds(candidates.adds, path[0], equality))
            continue
        as_stored = _READ_AS[type(equality.data_type)]
        # Two whole numbers may be the same double: they are to be compared as Spark compares them.
        as_compared = float if isinstance(equality.compared_as, DoubleType) else as_stored

        def values(kind: str, path: tuple[str, ...] = path) -> list[Any]:
            return [_at(each.get(kind), path) for each in statistics]

        highs = values("maxValues")
        if isinstance(equality.data_type, StringType):
            highs = [None if high is None else _highest_string(high) for high in highs]
        known.append(
            _Bounds(
                [_value(low, as_compared) for low in values("minValues")],
                [_value(high, as_compared) for high in highs],
                values("nullCount") if len(path) == 1 else [None] * len(statistics),
            )
        )
    return known


def _partition_bounds(
    adds: Sequence[dict[str, Any]], column: str, equality: Equality
) -> _Bounds | None:
    """The files' own values of a partition column, which the log has as text; "" means null."""
    values: list[Any] = [add["partitionValues"].get(column) or None for add in adds]
    kind = type(equality.data_type)
    if kind in _WHOLE:
        if not all(value is None or _IS_WHOLE.fullmatch(value) for value in values):
            return None
        read: Callable[[Any], Any] = int
    else:
        read = _READ_AS[kind]
    if isinstance(equality.compared_as, DoubleType):
        read = float
    found = [_value(value, read) for value in values]
    return _Bounds(found, found, [int(value is None) for value in values])


def _at(found: Any, path: tuple[str, ...]) -> Any:
    """What is at a path of statistics; None where nothing is."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _value(text: Any, read: Callable[[Any], Any]) -> Any:
    """A bound as Python has it; None where it cannot (dates after the year 9999)."""
    try:
        return None if text is None else read(text)
    except (TypeError, ValueError):
        return None


def _queried(
    transaction: Transaction, candidates: FileList, equalities: list[Equality]
) -> list[_Bounds | None]:
    """The bounds by a query of Spark."""
    bounds = {
        f"{name}_{i}": bound
        for i, equality in enumerate(equalities)
        for name, bound in _bounds(transaction, equality).items()
    }
    if candidates.have_statistics:
        files = candidates.rows_with(bounds)
    else:
        columns = [bound.alias(name) for name, bound in bounds.items()]
        files = transaction.table.files.select("path", *columns).toArrow()
    place = {path: i for i, path in enumerate(files["path"].to_pylist())}
    places = [place.get(path) for path in candidates.paths]
    known: list[_Bounds | None] = []
    for i in range(len(equalities)):
        lows, highs = python_values(files[f"low_{i}"]), python_values(files[f"high_{i}"])
        if lows is None or highs is None:
            known.append(None)
            continue
        nulls = files[f"nulls_{i}"].to_pylist()

        def placed(values: list[Any]) -> list[Any]:
            return [None if at is None else values[at] for at in places]

        known.append(_Bounds(placed(lows), placed(highs), placed(nulls)))
    return known


def _bounds(transaction: Transaction, equality: Equality) -> dict[str, Column]:
    """The lowest and the highest value of a column in each file, and how many nulls it holds.

    Null where not known. Where the true bound is only known to be near, the value lies outside it.
    """
    path = transaction.table.physical_path(equality.path)
    if equality.path[0] in transaction.partition_columns:
        value = F.col("partitionValues").getItem(path[0]).cast(equality.data_type)
        value = value.cast(equality.compared_as)
        return {"low": value, "high": value, "nulls": F.isnull(value).cast("long")}

    def statistic(kind: str) -> Column:
        names = "".join(f"['{name}']" for name in path)
        return F.get_json_object("stats", f"$.{kind}{names}")

    if set("".join(path)) & set("'?*"):  # which a JSON path cannot hold
        return {"low": F.lit(None), "high": F.lit(None), "nulls": F.lit(None).cast("long")}
    low, high = statistic("minValues"), statistic("maxValues")
    # Of a field, not all writers count the nulls of structs that are null.
    nulls = statistic("nullCount").cast("long") if len(path) == 1 else F.lit(None).cast("long")
    if isinstance(equality.data_type, StringType):
        return {"low": low, "high": _highest_string_column(high), "nulls": nulls}
    low = low.cast(equality.data_type).cast(equality.compared_as)
    high = high.cast(equality.data_type).cast(equality.compared_as)
    if isinstance(equality.data_type, TimestampType | TimestampNTZType):
        # Cut off at milliseconds.
        high = high + F.expr("INTERVAL 1 MILLISECOND")
    return {"low": low, "high": high, "nulls": nulls}


def _highest_string(high: str) -> str:
    """A string that none in the file is above.

    Writers cut long strings off (Delta after 32 characters), and may or may not put a character
    behind to make up for that; so the end of a longer one is not trusted.
    """
    return high if len(high) < _SHORT else high[:-2] + _LAST_CHARACTER


def _highest_string_column(high: Column) -> Column:
    start = F.substring(high, F.lit(1), F.length(high) - 2)
    highest = F.concat(start, F.lit(_LAST_CHARACTER))
    return F.when(F.length(high) < _SHORT, high).otherwise(highest)
