"""Rewrite one Parquet file in place: changed rows at their old positions, deleted rows gone.

A task on an executor runs this. It needs only pyarrow. The old rows are read, changed, and written
with their entries of the change data feed (Delta protocol, section "Change Data Files") in small
batches. A task holds the changed rows of its file, a batch, and a row group; all are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from deltaweave.engine.tasks.batches import (
    FirstRow,
    RowGroups,
    batches_of_group,
    has_dictionary,
    row_ids,
    row_ids_of_new,
)
from deltaweave.engine.tasks.file_statistics import FileStatistics
from deltaweave.engine.tasks.reader_contract import leaves, with_dictionary
from deltaweave.engine.tasks.storage import deleted_on_error
from deltaweave.engine.tasks.table_format import (
    SPARK_VERSION,
    NotRewritableError,
    TableFormat,
    check_copyable,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


_CHANGE_TYPE = "_change_type"


@dataclass(frozen=True)
class Rewritten:
    """The outcome of rewriting a file.

    Attributes:
        file: The new file's name, its size in bytes and its statistics as JSON; None if no row is
            left.
        change_file: Name and size in bytes of its file of the change feed, if there is one.
    """

    file: tuple[str, int, str] | None
    change_file: tuple[str, int] | None = None


def rewrite_file(
    location: str, changes: pyarrow.Table, table: TableFormat, first_row: FirstRow | None = None
) -> Rewritten:
    """Write the new file into the directory of the old one.

    `changes` has a row per change: its index in the file (int64), whether it is deleted (boolean),
    whether its new values break a constraint (boolean), and these values in the order of the
    table's columns (struct). A row that several source rows delete may occur more than once.
    `first_row` has the row id and commit version of the file's first row, if the table tracks rows.
    """
    import numpy as np
    import pyarrow as pa

    indexes, first = np.unique(changes.column(0).to_numpy(), return_index=True)
    _, is_deleted, breaks, values = changes.take(pa.array(first)).columns
    if breaks.to_numpy().any():
        raise NotRewritableError("a new row breaks a constraint")  # Delta's writer reports it
    deleted = is_deleted.to_numpy().astype(bool)
    new_rows = as_stored(values.filter(pa.array(~deleted)), table.schema)
    return rewrite_rows(location, indexes, deleted, new_rows, table, first_row)


def as_stored(values: pyarrow.ChunkedArray, schema: pyarrow.Schema) -> pyarrow.Table:
    """Convert structs to rows of a file."""
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
    """Rewrite a file in place as `rewrite_file` does, with the changes as arrays.

    `indexes` in the file ascend and are distinct (int64). `deleted` says for each whether its row
    is deleted (boolean), and `new_rows` has a row for each that is not. `first_row` has the row id
    and commit version of the file's first row, if the table tracks rows.
    """
    import numpy as np

    name = table.new_name()
    new = f"{location.rpartition('/')[0]}/{name}"
    with deleted_on_error(table.storage, new):
        with change_file(table) as feed:
            first_new = np.append(0, np.cumsum(~deleted))
            changes = _Changes(indexes, deleted, new_rows, first_new, first_row, feed)
            statistics = _write_changes(location, new, changes, table)
            if statistics.num_records:
                written = name, table.storage.size(new), statistics.to_json()
            else:
                table.storage.delete(new)
                written = None
        return Rewritten(written, None if feed is None else feed.written)


@dataclass(frozen=True)
class _Changes:
    """The changes of a file: what `rewrite_rows` takes, and the file for the change feed.

    `first_new` is, for each change and the end, how many new rows are of earlier changes.
    """

    indexes: Any
    deleted: Any
    new_rows: pyarrow.Table
    first_new: Any
    first_row: FirstRow | None
    feed: ChangeFile | None


def _write_changes(
    location: str, new: str, changes: _Changes, table: TableFormat
) -> FileStatistics:
    """Write the new file batch by batch, and return its statistics."""
    statistics = FileStatistics(json.loads(table.statistics), table.string_prefix)
    with table.storage.opened(location) as old:
        check_copyable(old, table.file_schema, new_calendar=table.new_calendar)
        dictionaries = _with_dictionary(old, table.file_schema, changes.new_rows)
        with table.writer(new, table.file_schema, dictionaries) as writer:

            def write(rows: pyarrow.Table) -> None:
                writer.write_table(rows, row_group_size=rows.num_rows)
                statistics.add(rows)

            groups = RowGroups(write)
            start = 0
            for group in range(old.num_row_groups):
                for rows in batches_of_group(
                    table.storage, location, old, group, table.file_schema
                ):
                    groups.add(_changed(rows, start, changes, table))
                    start += rows.num_rows
                groups.end_group()
    return statistics


def _changed(
    rows: pyarrow.Table, start: int, changes: _Changes, table: TableFormat
) -> pyarrow.Table:
    """Return rows after the changes, and add their entries to the feed."""
    import numpy as np
    import pyarrow as pa

    first, end = np.searchsorted(changes.indexes, (start, start + rows.num_rows))
    positions, deleted = changes.indexes[first:end] - start, changes.deleted[first:end]
    new_rows = changes.new_rows[changes.first_new[first] : changes.first_new[end]]
    replaced = positions[~deleted]
    if table.tracking is not None:
        assert changes.first_row is not None, "a file of a table that tracks rows"
        of_ids = table.tracking_schema
        ids = row_ids(rows.select(of_ids.names), start, changes.first_row)
        rows = _beside([rows.select(table.schema.names), ids])
        new_rows = _beside([new_rows, row_ids_of_new(ids, replaced)])
    if changes.feed is not None:
        changes.feed.add(images(rows.take(pa.array(positions)), new_rows, deleted))
    return _with_new_rows(rows, new_rows, _row_order(rows.num_rows, replaced, positions[deleted]))


def _row_order(num_rows: int, replaced: Any, deleted: Any) -> pyarrow.Array | None:
    """Return where each remaining row comes from, new rows after old ones; None if all stay."""
    import numpy as np
    import pyarrow as pa

    if not len(replaced) and not len(deleted):
        return None
    order = np.arange(num_rows)
    order[replaced] = num_rows + np.arange(len(replaced))
    return pa.array(np.delete(order, deleted))


def _with_new_rows(
    rows: pyarrow.Table, new_rows: pyarrow.Table, order: pyarrow.Array | None
) -> pyarrow.Table:
    """Replace the rows at some positions by new ones; drop those that are deleted."""
    import pyarrow as pa

    if order is None:
        return rows
    return pa.concat_tables([rows, new_rows]).combine_chunks().take(order)


def _beside(parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Put the columns of all parts into one table."""
    import pyarrow as pa

    fields = [field for part in parts for field in part.schema]
    return pa.table([column for part in parts for column in part.columns], pa.schema(fields))


def _with_dictionary(
    old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema, new_rows: pyarrow.Table
) -> list[str]:
    """Return the columns with a dictionary in the old file; others have too many distinct values.

    Finding that out again would take pyarrow as long as writing the file. A column of floating
    values keeps one if all its values are in dictionaries: others may be -0.0 (`reader_contract`).
    """
    groups = (old.metadata.row_group(i) for i in range(old.num_row_groups))
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    with_dictionaries = {chunk.path_in_schema for chunk in chunks if has_dictionary(chunk)}
    plain = {chunk.path_in_schema for chunk in chunks if _may_be_plain(chunk, old.metadata)}
    looked_up = {leaf.name for leaf in leaves(schema) if leaf.is_floating and not leaf.is_repeated}
    return sorted(
        (with_dictionaries - (plain & looked_up)).intersection(with_dictionary(schema, new_rows))
    )


def _may_be_plain(
    chunk: pyarrow.parquet.ColumnChunkMetaData, footer: pyarrow.parquet.FileMetaData
) -> bool:
    """Return whether values may be outside a dictionary, so that none may hold -0.0 yet.

    `PLAIN` may be the encoding of the dictionary itself. The engine's files keep the promise of
    `reader_contract`, but those of earlier releases, which have bounds of floating values, do not.
    """
    is_engines = (
        footer.created_by.startswith("parquet-cpp")
        and SPARK_VERSION in (footer.metadata or {})
        and not chunk.is_stats_set
    )
    return not has_dictionary(chunk) or ("PLAIN" in chunk.encodings and not is_engines)


class FeedRows(NamedTuple):
    """Rows of a file of the table, and their `_change_type` in the feed."""

    rows: pyarrow.Table
    change_type: str


class ChangeFile:
    """A file of the feed, begun with its first rows.

    Attributes:
        written: Its name and its size in bytes, once it is complete; None if it has no rows.
    """

    def __init__(self, table: TableFormat, directory: str) -> None:
        self._table = table
        self._directory, self._name = directory, table.new_name(of_change_feed=True)
        self._stack = ExitStack()
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._groups = RowGroups(self._write)
        self.written: tuple[str, int] | None = None

    def add(self, parts: Sequence[FeedRows]) -> None:
        """Add rows, each with what happened to it."""
        import pyarrow as pa

        rows = pa.concat_tables([_typed(each.rows, each.change_type) for each in parts])
        self._groups.add(rows)

    def complete(self) -> None:
        """Write what is left of it."""
        self._groups.end_group()
        self._stack.close()
        if self._writer is not None:
            self.written = self._name, self._table.storage.size(self._location)

    def delete(self) -> None:
        """Delete the file, however much of it is written."""
        try:
            self._stack.close()
        finally:
            self._table.storage.delete(self._location)

    @property
    def _location(self) -> str:
        return f"{self._directory}/{self._name}"

    def _write(self, rows: pyarrow.Table) -> None:
        if self._writer is None:
            self._table.storage.make_directory(self._directory)
            writing = self._table.writer(self._location, rows.schema, with_dictionary(rows.schema))
            self._writer = self._stack.enter_context(writing)
        self._writer.write_table(rows, row_group_size=rows.num_rows)


@contextmanager
def change_file(table: TableFormat) -> Iterator[ChangeFile | None]:
    """Open a file of the feed; it is deleted if the block fails. None without a feed."""
    if table.change_feed is None:
        yield None
        return
    file = ChangeFile(table, table.change_feed)
    try:
        yield file
        file.complete()
    except BaseException:
        file.delete()
        raise


def images(before: pyarrow.Table, after: pyarrow.Table, deleted: Any) -> list[FeedRows]:
    """Return the entries of the change feed for some rows, by what happened to them.

    `before` has the rows as they were, `after` those that are not deleted, as they are now.
    `deleted` says for each row whether it is deleted (numpy array of booleans).
    """
    import pyarrow as pa

    return [
        FeedRows(before.filter(pa.array(~deleted)), "update_preimage"),
        FeedRows(after, "update_postimage"),
        FeedRows(before.filter(pa.array(deleted)), "delete"),
    ]


def _typed(rows: pyarrow.Table, what: str) -> pyarrow.Table:
    import pyarrow as pa

    return rows.append_column(_CHANGE_TYPE, pa.repeat(pa.scalar(what), rows.num_rows))
