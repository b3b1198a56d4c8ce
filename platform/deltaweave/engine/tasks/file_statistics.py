"""Statistics of a data file as Delta's writer makes them (Delta protocol, "Per-file Statistics").

Readers treat them as those of any other writer. The module runs in a task on an executor, as
parquet_rewrite does, and imports nothing of deltaweave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.reader_contract import values_at

if TYPE_CHECKING:
    import pyarrow


@dataclass
class FileStatistics:
    """A file's statistics as Delta's writer makes them (Delta protocol, "Per-file Statistics").

    Attributes:
        schema: Delta's schema of the statistics of this table: a struct as Spark's JSON.
        string_prefix: Characters of a string that are kept.
    """

    schema: dict[str, Any]
    string_prefix: int
    num_records: int = 0
    _lows: dict[tuple[str, ...], Any] = field(default_factory=dict)
    _highs: dict[tuple[str, ...], Any] = field(default_factory=dict)
    _nulls: dict[tuple[str, ...], int] = field(default_factory=dict)
    _has_nan: set[tuple[str, ...]] = field(default_factory=set)
    _unknown: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, rows: pyarrow.Table) -> None:
        """Add rows of the file."""
        import pyarrow.compute as pc
        import pyarrow.types as types

        self.num_records += rows.num_rows
        for path in self._leaves("nullCount"):
            values = values_at(rows, path)
            self._nulls[path] = self._nulls.get(path, 0) + values.null_count
        for path in self._leaves("minValues"):
            values = values_at(rows, path)
            if types.is_floating(values.type):
                is_nan = pc.is_nan(values)
                if pc.any(is_nan).as_py():
                    self._has_nan.add(path)
                    values = values.filter(pc.invert(is_nan))
            ends = pc.min_max(values)
            # They stay Arrow values: Python cannot represent Spark's full date range.
            low, high = ends["min"], ends["max"]
            if types.is_string(values.type) and not _are_texts(low, high):
                self._unknown.add(path)
            elif low.is_valid:
                self._lows[path] = _lower(self._lows.get(path), low)
                self._highs[path] = _higher(self._highs.get(path), high)

    def to_json(self) -> str:
        """Return the statistics, as the log holds them."""
        text: dict[str, Any] = {"numRecords": self.num_records}
        lows = {path: _low_text(low, self.string_prefix) for path, low in self._lows.items()}
        highs = {path: _high_text(high, self.string_prefix) for path, high in self._highs.items()}
        for path in self._has_nan:  # Spark orders NaN above all other numbers
            highs[path] = "NaN"
            lows.setdefault(path, "NaN")
        for path in self._unknown:
            lows.pop(path, None)
            highs.pop(path, None)
        known = [f["name"] for f in self.schema["fields"]]
        if "minValues" in known:
            text["minValues"] = _nested(lows)
            text["maxValues"] = _nested(highs)
        if "nullCount" in known:
            text["nullCount"] = _nested(self._nulls)
        if "tightBounds" in known:
            text["tightBounds"] = True
        return _json(text)

    def _leaves(self, kind: str) -> list[tuple[str, ...]]:
        found = [f["type"] for f in self.schema["fields"] if f["name"] == kind]
        return list(_leaf_paths(found[0])) if found else []


def _are_texts(*values: pyarrow.Scalar) -> bool:
    """Return whether the strings are valid UTF-8, which Spark does not ask of a cast of bytes."""
    try:
        for value in values:
            value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _leaf_paths(struct: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for column in struct["fields"]:
        if isinstance(column["type"], dict) and column["type"]["type"] == "struct":
            for path in _leaf_paths(column["type"]):
                yield (column["name"], *path)
        else:
            yield (column["name"],)


def _lower(one: pyarrow.Scalar | None, other: pyarrow.Scalar) -> pyarrow.Scalar:
    return other if one is None or _sortable(other) < _sortable(one) else one


def _higher(one: pyarrow.Scalar | None, other: pyarrow.Scalar) -> pyarrow.Scalar:
    return other if one is None or _sortable(other) > _sortable(one) else one


def _sortable(value: pyarrow.Scalar) -> Any:
    """Convert a value to a Python value that has the order that Spark gives the value."""
    import pyarrow.types as types

    if types.is_timestamp(value.type) or types.is_date(value.type):
        return value.value
    # Python compares code points, whose order is that of their UTF-8 bytes.
    return value.as_py()


def _low_text(value: pyarrow.Scalar, string_prefix: int) -> Any:
    """Write a lowest value for statistics: a prefix of a string is never above the string."""
    import pyarrow.types as types

    if types.is_string(value.type):
        return value.as_py()[:string_prefix]
    return _statistic(value)


def _high_text(value: pyarrow.Scalar, string_prefix: int) -> Any:
    """Write a highest value for statistics; for a long string, a prefix and a higher character.

    None if no short text is known to be above the string.
    """
    import pyarrow.types as types

    if not types.is_string(value.type):
        return _statistic(value)
    text = value.as_py()
    for end in range(string_prefix, min(2 * string_prefix + 1, len(text))):
        if text[end] < "\x7f":
            return text[:end] + "\x7f"
        if text[end] < "\U0010ffff":
            return text[:end] + "\U0010ffff"
    return text if len(text) <= 2 * string_prefix else None


_MICROSECONDS_OF_YEAR_10000 = 253402300800000000
_MICROSECONDS_OF_YEAR_1 = -62135596800000000


def _statistic(value: pyarrow.Scalar) -> Any:
    """Write a value for statistics; times are rounded down to milliseconds."""
    import datetime

    import pyarrow.types as types

    if types.is_timestamp(value.type):
        if not _MICROSECONDS_OF_YEAR_1 <= value.value < _MICROSECONDS_OF_YEAR_10000:
            return None
        cut = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=value.value // 1000)
        return cut.isoformat(timespec="milliseconds") + ("Z" if value.type.tz else "")
    if types.is_date(value.type):
        day = datetime.date(1970, 1, 1).toordinal() + value.value
        if not 1 <= day <= datetime.date.max.toordinal():
            return None
        return datetime.date.fromordinal(day).isoformat()
    plain = value.as_py()
    if isinstance(plain, float) and plain in (float("inf"), float("-inf")):
        return "Infinity" if plain > 0 else "-Infinity"
    return plain


def _nested(values: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Nest values by path into objects; leave out those that are None."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        if value is None:
            continue
        inner = found
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return found


def _json(value: Any) -> str:
    """Write JSON in which decimals keep all of their digits."""
    import decimal

    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)
