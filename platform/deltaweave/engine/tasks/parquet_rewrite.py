"""Rewrite one Parquet file in place: changed rows at their old positions, deleted rows gone.

A task on an executor runs this. It needs only pyarrow. Row groups are read, changed and written one
after the other, so that a task holds one row group and the changed rows of its file in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from deltaweave.engine.tasks.file_statistics import Statistics
from deltaweave.engine.tasks.table_format import (
    NotRewritableError,
    TableFormat,
    check_copyable,
    opened,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

REWRITTEN_SCHEMA = "file string, name string, size bigint, stats string, refused string"


class RewriteFailedError(Exception):
    """The file could not be read, or the new one could not be written; the message names it."""


def rewriter(
    table: TableFormat, with_vectors: frozenset[str]
) -> Callable[[tuple[Any, ...], pyarrow.Table], pyarrow.Table]:
    """The function for `applyInArrow`: the changed rows of one file in, one row about it out.

    The file comes first (see `local_path`), then what `rewrite_file` takes.

    Args:
        table: How to write.
        with_vectors: Paths of files in which rows are marked as deleted, which Spark rewrites.
    """

    def rewrite(key: tuple[Any, ...], changes: pyarrow.Table) -> pyarrow.Table:
        import pyarrow as pa

        file = key[0].as_py()
        name, size, stats, refused = None, None, None, None
        try:
            path = local_path(file)
            if path in with_vectors:
                raise NotRewritableError("rows in it are marked deleted")
            written = rewrite_file(path, changes.remove_column(0), table)
            if written is not None:
                name, size, stats = written
        except NotRewritableError as error:
            refused = str(error)
        except Exception as error:  # of pyarrow, or of the file system
            raise RewriteFailedError(f"{file} could not be rewritten: {error}") from error
        columns = [[file], [name], [size], [stats], [refused]]
        types = [pa.string(), pa.string(), pa.int64(), pa.string(), pa.string()]
        return pa.table(
            [pa.array(c, t) for c, t in zip(columns, types, strict=True)],
            names=["file", "name", "size", "stats", "refused"],
        )

    return rewrite


def local_path(file: str) -> str:
    """The path of a file given as Spark's `_metadata.file_path` (absolute, percent-encoded)."""
    parts = urlsplit(file)
    if parts.scheme not in ("", "file"):
        raise NotRewritableError(f"{parts.scheme} is no file system that is open to pyarrow")
    return unquote(parts.path)


def rewrite_file(
    path: str, changes: pyarrow.Table, table: TableFormat
) -> tuple[str, int, str] | None:
    """Write the new file into the directory of the old one.

    Args:
        path: The file.
        changes: A row per change: its place in the file (int64), whether it is deleted (boolean),
            and its new values in the order of the table's columns (struct). A row that several
            source rows delete may occur more than once.
        table: How to write.

    Returns:
        The new file's name, its size in bytes and its statistics as JSON; None if no row is left.

    Raises:
        NotRewritableError: Spark must rewrite the file.
    """
    import numpy as np
    import pyarrow as pa

    indexes, first = np.unique(changes.column(0).to_numpy(), return_index=True)
    _, is_deleted, values = changes.take(pa.array(first)).columns
    new_rows = as_stored(values, table.schema)
    return rewrite_rows(path, indexes, is_deleted.to_numpy().astype(bool), new_rows, table)


def as_stored(values: pyarrow.ChunkedArray, schema: pyarrow.Schema) -> pyarrow.Table:
    """Structs as rows of a file."""
    import pyarrow as pa

    columns = zip(values.flatten(), schema, strict=True)
    return pa.table([column.cast(field.type) for column, field in columns], schema=schema)


def rewrite_rows(
    path: str, indexes: Any, deleted: Any, new_rows: pyarrow.Table, table: TableFormat
) -> tuple[str, int, str] | None:
    """The same as `rewrite_file`, of changes as arrays.

    Args:
        path: The file.
        indexes: Places in the file, ascending, each once (int64).
        deleted: For each of them, whether its row is deleted (boolean).
        new_rows: A row for each of them; any row where it is deleted.
        table: How to write.
    """
    name = table.new_name()
    target = os.path.join(os.path.dirname(path), name)
    try:
        statistics = _write(path, target, indexes, deleted, new_rows, table)
    except BaseException:
        if os.path.exists(target):
            os.remove(target)
        raise
    if not statistics.num_records:
        os.remove(target)
        return None
    return name, os.path.getsize(target), statistics.to_json()


def _write(
    path: str, target: str, indexes: Any, deleted: Any, new_rows: pyarrow.Table, table: TableFormat
) -> Statistics:
    """Write the new file, row group by row group, and return its statistics."""
    import numpy as np

    statistics = Statistics(json.loads(table.statistics), table.string_prefix)
    with opened(path) as old:
        check_copyable(old, table.schema, new_calendar=table.new_calendar)
        with table.writer(target, _with_dictionary(old)) as writer:
            start = 0
            for part in _row_groups(old, table.schema):
                low, high = np.searchsorted(indexes, (start, start + part.num_rows))
                here = slice(low, high)
                after = _changed(part, new_rows[low:high], indexes[here] - start, deleted[here])
                if after.num_rows:
                    writer.write_table(after, row_group_size=after.num_rows)
                    statistics.add(after)
                start += part.num_rows
    return statistics


def _changed(
    rows: pyarrow.Table, new_rows: pyarrow.Table, places: Any, deleted: Any
) -> pyarrow.Table:
    """The rows, with those at some places replaced by new ones or dropped if deleted."""
    import numpy as np
    import pyarrow as pa

    if not len(places):
        return rows
    order = np.arange(rows.num_rows)
    order[places] = rows.num_rows + np.arange(len(places))
    order = np.delete(order, places[deleted])
    return pa.concat_tables([rows, new_rows]).combine_chunks().take(pa.array(order))


def _row_groups(
    old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema
) -> Iterator[pyarrow.Table]:
    """The file's row groups with the table's columns, in the file's order."""
    import pyarrow as pa

    stored = set(old.schema_arrow.names)
    columns = [name for name in schema.names if name in stored]
    for group in range(old.num_row_groups):
        rows = old.read_row_group(group, columns=columns, use_threads=False)
        arrays = [
            rows[wanted.name].cast(wanted.type)
            if wanted.name in stored
            else pa.nulls(rows.num_rows, wanted.type)
            for wanted in schema
        ]
        yield pa.table(arrays, schema=schema)


def _with_dictionary(old: pyarrow.parquet.ParquetFile) -> list[str]:
    """The columns that have a dictionary in the old file; the others have too many distinct values.

    Finding that out again would take pyarrow as long as writing the file.
    """
    groups = (old.metadata.row_group(i) for i in range(old.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sorted({c.path_in_schema for c in columns if c.has_dictionary_page})
