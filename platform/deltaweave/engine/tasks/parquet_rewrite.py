"""Rewrite one Parquet file in place: changed rows at their old positions, deleted rows gone.

A task on an executor runs this. It needs only pyarrow. Row groups are read, changed and written one
after the other, so that a task holds one row group and the changed rows of its file in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.change_feed import ChangeFile, change_file, images
from deltaweave.engine.tasks.file_statistics import Statistics
from deltaweave.engine.tasks.storage import ObjectStore, location_of
from deltaweave.engine.tasks.stored_rows import FirstRow, row_groups, with_ids, with_ids_of
from deltaweave.engine.tasks.table_format import (
    NotRewritableError,
    TableFormat,
    check_copyable,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

REWRITTEN_SCHEMA = (
    "file string, name string, size bigint, stats string, "
    "change_file string, change_file_size bigint, refused string"
)


class RewriteFailedError(Exception):
    """The file could not be read, or the new one could not be written; the message names it."""


@dataclass(frozen=True)
class Rewritten:
    """What became of a file.

    Attributes:
        file: The new file's name, its size in bytes and its statistics as JSON; None if no row is
            left.
        change_file: Name and size in bytes of its file of the change feed, if there is one.
    """

    file: tuple[str, int, str] | None
    change_file: tuple[str, int] | None = None


def rewriter(
    table: TableFormat,
    files: Sequence[str],
    with_vectors: frozenset[str],
    first_rows: Mapping[str, FirstRow],
) -> Callable[[tuple[Any, ...], pyarrow.Table], pyarrow.Table]:
    """The function for `applyInArrow`: the changed rows of one file in, one row about it out.

    The file's number comes first, then what `rewrite_file` takes.

    Args:
        table: How to write.
        files: The files, in the order of their numbers (see `location_of`). A name in each row
            would be most of what tasks get.
        with_vectors: Locations of files in which rows are marked as deleted, which Spark rewrites.
        first_rows: Those of the files by their locations, if the table tracks rows.
    """

    def rewrite(key: tuple[Any, ...], changes: pyarrow.Table) -> pyarrow.Table:
        import pyarrow as pa

        file = files[key[0].as_py()]
        done, refused = Rewritten(None), None
        try:
            location = location_of(file)
            if location in with_vectors:
                raise NotRewritableError("rows in it are marked deleted")
            if table.tracking is not None and location not in first_rows:
                raise NotRewritableError("its rows have no ids yet")
            first_row = first_rows.get(location)
            done = rewrite_file(location, changes.remove_column(0), table, first_row)
        except NotRewritableError as error:
            refused = str(error)
        except Exception as error:  # of pyarrow, or of the file system
            is_of_store = isinstance(error, (OSError, pa.ArrowException))
            if not (is_of_store and isinstance(table.storage, ObjectStore)):
                raise RewriteFailedError(f"{file} could not be rewritten: {error}") from error
            refused = f"Arrow's client of the store failed: {error}"  # S3A may do
        values = [file, *(done.file or [None] * 3), *(done.change_file or [None] * 2), refused]
        text, number = pa.string(), pa.int64()
        types = [text, text, number, text, text, number, text]
        return pa.table(
            [pa.array([value], kind) for value, kind in zip(values, types, strict=True)],
            names=[each.split()[0] for each in REWRITTEN_SCHEMA.split(", ")],
        )

    return rewrite


def rewrite_file(
    location: str, changes: pyarrow.Table, table: TableFormat, first_row: FirstRow | None = None
) -> Rewritten:
    """Write the new file into the directory of the old one.

    Args:
        location: The file's.
        changes: A row per change: its place in the file (int64), whether it is deleted (boolean),
            whether its new values break a constraint (boolean), and these values in the order of
            the table's columns (struct). A row that several source rows delete may occur more than
            once.
        table: How to write.
        first_row: That of the file, if the table tracks rows.

    Raises:
        NotRewritableError: Spark must rewrite the file.
    """
    import numpy as np
    import pyarrow as pa

    indexes, first = np.unique(changes.column(0).to_numpy(), return_index=True)
    _, is_deleted, breaks, values = changes.take(pa.array(first)).columns
    if breaks.to_numpy().any():
        raise NotRewritableError("a new row breaks a constraint")  # which Delta's writer tells
    new_rows = as_stored(values, table.schema)
    deleted = is_deleted.to_numpy().astype(bool)
    return rewrite_rows(location, indexes, deleted, new_rows, table, first_row)


def as_stored(values: pyarrow.ChunkedArray, schema: pyarrow.Schema) -> pyarrow.Table:
    """Structs as rows of a file."""
    import pyarrow as pa

    columns = zip(values.flatten(), schema, strict=True)
    return pa.table([column.cast(field.type) for column, field in columns], schema=schema)


def rewrite_rows(
    location: str,
    indexes: Any,
    deleted: Any,
    new_rows: pyarrow.Table,
    table: TableFormat,
    first_row: FirstRow | None = None,
) -> Rewritten:
    """The same as `rewrite_file`, of changes as arrays.

    Args:
        location: The file's.
        indexes: Places in the file, ascending, each once (int64).
        deleted: For each of them, whether its row is deleted (boolean).
        new_rows: A row for each of them; any row where it is deleted.
        table: How to write.
        first_row: That of the file, if the table tracks rows.
    """
    name = table.new_name()
    new = f"{location.rpartition('/')[0]}/{name}"
    feed: ChangeFile | None = None
    try:
        with change_file(table) as feed:
            changes = _Changes(indexes, deleted, new_rows, first_row, feed)
            statistics = _write(location, new, changes, table)
        recorded = None if feed is None else feed.written
        if not statistics.num_records:
            table.storage.delete(new)
            return Rewritten(None, recorded)
        return Rewritten((name, table.storage.size(new), statistics.to_json()), recorded)
    except BaseException:
        table.storage.delete(new)
        if feed is not None:
            feed.delete()
        raise


@dataclass(frozen=True)
class _Changes:
    """The changes of a file: what `rewrite_rows` takes, and the file for the change feed."""

    indexes: Any
    deleted: Any
    new_rows: pyarrow.Table
    first_row: FirstRow | None
    feed: ChangeFile | None


def _write(location: str, new: str, changes: _Changes, table: TableFormat) -> Statistics:
    """Write the new file, row group by row group, and return its statistics."""
    import numpy as np
    import pyarrow as pa

    statistics = Statistics(json.loads(table.statistics), table.string_prefix)
    with table.storage.opened(location) as old:
        check_copyable(old, table.file_schema, new_calendar=table.new_calendar)
        with table.writer(new, _with_dictionary(old)) as writer:
            start = 0
            for part in row_groups(old, table.file_schema):
                here = slice(*np.searchsorted(changes.indexes, (start, start + part.num_rows)))
                places, deleted = changes.indexes[here] - start, changes.deleted[here]
                new_rows = changes.new_rows[here]
                if changes.first_row is not None:
                    part = with_ids(part, start, changes.first_row)
                    new_rows = with_ids_of(new_rows, part, places)
                if changes.feed is not None:
                    before = part.take(pa.array(places))
                    after = new_rows.filter(pa.array(~deleted))
                    changes.feed.add(images(before, after, deleted))
                after = _changed(part, new_rows, places, deleted)
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


def _with_dictionary(old: pyarrow.parquet.ParquetFile) -> list[str]:
    """The columns that have a dictionary in the old file; the others have too many distinct values.

    Finding that out again would take pyarrow as long as writing the file.
    """
    groups = (old.metadata.row_group(i) for i in range(old.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sorted({c.path_in_schema for c in columns if c.has_dictionary_page})
