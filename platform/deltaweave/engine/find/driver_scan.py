"""Reads the key columns of a file on the driver, for merges that need no Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from deltaweave.engine import limits
from deltaweave.engine.find.driver_keys import KeyColumn
from deltaweave.engine.find.driver_partitions import PartitionValues
from deltaweave.engine.tasks import NotRewritableError, check_copyable, opened

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

FILE_NUMBER = "file"
"""Which file a row is in, by its place among those that are read."""

ROW_INDEX = "row"
"""The place of a row in its file."""


def rows_of(path: str, fields: Sequence[pyarrow.Field], *, new_calendar: bool) -> int:
    """How many rows a file has; raises NotRewritableError if Arrow may read its keys wrongly."""
    import pyarrow as pa

    with opened(path) as file:
        check_copyable(file, pa.schema(fields), new_calendar=new_calendar)
        check_zones(file, fields)
        return int(file.metadata.num_rows)


def check_zones(file: pyarrow.parquet.ParquetFile, fields: Sequence[pyarrow.Field]) -> None:
    """Raise NotRewritableError for a time that is stored without a zone, unless it is an INT96."""
    import pyarrow.types as types

    physical = {
        file.schema.column(i).path: file.schema.column(i).physical_type
        for i in range(len(file.schema))
    }
    for field in fields:
        if types.is_timestamp(field.type) and field.type.tz and field.name in physical:
            stored = file.schema_arrow.field(field.name).type
            if stored.tz is None and physical[field.name] != "INT96":
                raise NotRewritableError(f"column {field.name!r} is stored without a time zone")


def possible_rows(
    numbers: Sequence[int],
    paths: Sequence[str],
    partitions: Sequence[PartitionValues],
    columns: Sequence[KeyColumn],
    of_source: Mapping[str, pyarrow.Array],
) -> pyarrow.Table:
    """The keys and places of the rows of which each stored key is one of the source's.

    Args:
        numbers: The files to read, by their places in `paths`.
        paths: All files.
        partitions: Their partitions.
        columns: The compared columns, those that the log has last.
        of_source: The source's distinct values of each column by which rows are joined.
    """
    import numpy as np
    import pyarrow as pa

    of_files = [column for column in columns if not column.is_of_partition]
    parts: list[pyarrow.Table] = [empty_rows(columns)]
    batch: list[pyarrow.Table] = []
    size = 0

    def keep_possible() -> None:
        rows = _with_source_keys(pa.concat_tables(batch), of_files, of_source)
        parts.append(_with_partitions(rows, columns, partitions).drop_null())

    for number in numbers:
        start = 0
        with opened(paths[number]) as file:
            for num_rows, keys in _keys(file, of_files):
                places = np.arange(start, start + num_rows, dtype=np.int64)
                of_file = {FILE_NUMBER: np.full(num_rows, number), ROW_INDEX: places}
                batch.append(pa.table({**of_file, **keys}))
                start, size = start + num_rows, size + num_rows
                if size >= limits.MAX_BATCH_ROWS_ON_DRIVER:
                    keep_possible()
                    batch, size = [], 0
    if batch:
        keep_possible()
    return pa.concat_tables(parts)


def empty_rows(columns: Sequence[KeyColumn]) -> pyarrow.Table:
    """What `possible_rows` gives if there are none."""
    import pyarrow as pa

    kinds = {name: kind for column in columns for name, kind in column.joined.items()}
    return pa.schema({FILE_NUMBER: pa.int64(), ROW_INDEX: pa.int64(), **kinds}).empty_table()


def _keys(
    file: pyarrow.parquet.ParquetFile, columns: Sequence[KeyColumn]
) -> Iterator[tuple[int, dict[str, pyarrow.ChunkedArray]]]:
    """How many rows a batch of a file has, and their values by which rows are joined.

    A row group would not do: it may have very many rows, if their values are the same.
    """
    import pyarrow as pa

    stored = sorted(set(file.schema_arrow.names) & {column.field.name for column in columns})
    for num_rows, rows in _batches(file, stored):
        keys: dict[str, pyarrow.ChunkedArray] = {}
        for column in columns:
            name = column.field.name
            # A column that is not stored was added later, and is null.
            values = rows[name] if name in stored else pa.nulls(num_rows, column.field.type)
            keys |= column.of(pa.chunked_array([values]))
        yield num_rows, keys


def _batches(
    file: pyarrow.parquet.ParquetFile, columns: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, pyarrow.Array]]]:
    size = limits.MAX_BATCH_ROWS_ON_DRIVER
    if columns:
        for batch in file.iter_batches(size, columns=columns, use_threads=False):
            yield batch.num_rows, dict(zip(columns, map(batch.column, columns), strict=True))
        return
    for start in range(0, file.metadata.num_rows, size):
        yield min(size, file.metadata.num_rows - start), {}


def _with_source_keys(
    rows: pyarrow.Table, columns: Sequence[KeyColumn], of_source: Mapping[str, pyarrow.Array]
) -> pyarrow.Table:
    import pyarrow.compute as pc

    for column in columns:  # each leaves fewer rows to look at
        rows = rows.filter(pc.is_in(rows[column.name], value_set=of_source[column.name]))
    return rows


def _with_partitions(
    rows: pyarrow.Table, columns: Sequence[KeyColumn], partitions: Sequence[PartitionValues]
) -> pyarrow.Table:
    """The rows with the keys that the log has, in the order of `columns`."""
    import pyarrow as pa

    numbers = rows[FILE_NUMBER]
    for column in columns:
        if column.is_of_partition:
            name, kind = column.field.name, column.field.type
            of_files = pa.array([values[name].as_py() for values in partitions], kind)
            for key, values in column.of(pa.chunked_array([of_files]).take(numbers)).items():
                rows = rows.append_column(key, values)
    return rows
