"""How the ranges of a column's values in the files of a table overlap, by statistics alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, StructType

from deltaweave.delta.log.actions import Action
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.log.metadata import TableMetadata
from deltaweave.delta.log.snapshot import TableSnapshot
from deltaweave.delta.log.statistic_bounds import are_bounded
from deltaweave.delta.log.statistics import Bounds, bounds, bounds_in_log
from deltaweave.errors import NOTHING_DONE, StatementError


@dataclass(frozen=True)
class KeyOverlap:
    """In how many files of a version a merge has to look for a key of a column.

    The ranges are those by which merges skip files: what writers round or truncate is widened.

    Attributes:
        column: The column's name.
        files: Files that may hold a key: all but those where the column is null in every row.
        files_without_bounds: Those whose lowest or highest value is not known.
        overlapping_files: Those whose range overlaps the range of another file.
        mean_files_per_key: Files whose range holds a key, on average over the lowest key of each
            file; a lowest key that is not known counts as the lowest of all. It is 1 if no ranges
            overlap.
        most_files_per_key: The most files whose ranges hold one and the same key.
    """

    column: str
    files: int
    files_without_bounds: int
    overlapping_files: int
    mean_files_per_key: float
    most_files_per_key: int


def key_overlaps(table: TableSnapshot, files: FileList, columns: Sequence[str]) -> list[KeyOverlap]:
    """Measure the overlap of each column's ranges in the files of a version.

    Args:
        table: The version.
        files: All its files.
        columns: Columns as the table spells them, whose types `are_bounded` holds of.
    """
    known = bounds(table, files, _typed(table.schema, columns))
    return [_overlap(name, each) for name, each in zip(columns, known, strict=True)]


def key_overlaps_in_log(
    metadata: TableMetadata, adds: Sequence[Action], columns: Sequence[str]
) -> list[KeyOverlap] | None:
    """Return the same by the files' AddFiles, without Spark; None if Spark has to read them."""
    known = bounds_in_log(metadata, adds, _typed(metadata.schema, columns))
    if known is None:
        return None
    return [_overlap(name, each) for name, each in zip(columns, known, strict=True)]


def bounded_columns(schema: StructType, names: Sequence[str], table: str) -> list[str]:
    """Return columns that statistics bound, as the table spells them.

    Args:
        schema: The table's columns.
        names: Their names in any case.
        table: The table, for the error message.

    Raises:
        StatementError: There is no such column, or statistics do not bound its type.
    """
    fields = {field.name.lower(): field for field in schema}
    for name in names:
        field = fields.get(name.lower())
        if field is None or not are_bounded(field.dataType):
            raise StatementError(
                f"it has no column {name!r} whose values statistics bound.",
                table=table,
                operation="looking at key ranges",
                state=NOTHING_DONE,
                hint="Columns of numbers, strings, dates and times have bounds.",
            )
    return [fields[name.lower()].name for name in names]


def _typed(schema: StructType, columns: Sequence[str]) -> list[tuple[tuple[str], DataType]]:
    return [((name,), schema[name].dataType) for name in columns]


def _overlap(column: str, known: Bounds) -> KeyOverlap:
    with_keys = [
        (low, high)
        for low, high, are_null in zip(known.lows, known.highs, known.are_null, strict=True)
        if not are_null
    ]
    lows = sorted(low for low, _ in with_keys if low is not None)
    highs = sorted(high for _, high in with_keys if high is not None)

    def ends_before(key: Any) -> int:
        return bisect_left(highs, key)

    def begins_after(key: Any) -> int:
        return len(lows) - bisect_right(lows, key)

    files = len(with_keys)
    # A range without an end neither ends before a key nor begins after one.
    holding = [files - ends_before(low) - begins_after(low) for low in lows]
    begin_anywhere = files - len(lows)
    holding += [begin_anywhere] * begin_anywhere
    overlapping = 0
    for low, high in with_keys:
        apart = 0 if low is None else ends_before(low)
        apart += 0 if high is None else begins_after(high)
        overlapping += apart < files - 1
    return KeyOverlap(
        column,
        files,
        sum(low is None or high is None for low, high in with_keys),
        overlapping,
        round(sum(holding) / files, 2) if files else 0.0,
        max(holding, default=0),
    )
