"""Write rows of the change data feed as a file (Delta protocol, section "Change Data Files").

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.reader_contract import with_dictionary
from deltaweave.engine.tasks.row_groups import RowGroups
from deltaweave.engine.tasks.table_format import TableFormat

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_CHANGE_TYPE = "_change_type"


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

    def add(self, parts: Sequence[tuple[pyarrow.Table, str]]) -> None:
        """Add rows, each with what happened to it.

        Args:
            parts: Rows of a file of the table, and their `_change_type`.
        """
        import pyarrow as pa

        rows = pa.concat_tables([_typed(part, what) for part, what in parts])
        self._groups.add(rows)

    def complete(self) -> None:
        """Write what is left of it."""
        self._groups.end_group()
        self._stack.close()
        if self._writer is not None:
            self.written = self._name, self._table.storage.size(self._location)

    def delete(self) -> None:
        """Delete it, whatever is written of it."""
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


def images(
    before: pyarrow.Table, after: pyarrow.Table, deleted: Any
) -> list[tuple[pyarrow.Table, str]]:
    """Return the entries of the change feed for some rows, by what happened to them.

    Args:
        before: The rows as they were.
        after: Those of them that are not deleted, as they are now.
        deleted: For each of them, whether it is deleted (numpy array of booleans).
    """
    import pyarrow as pa

    return [
        (before.filter(pa.array(~deleted)), "update_preimage"),
        (after, "update_postimage"),
        (before.filter(pa.array(deleted)), "delete"),
    ]


def _typed(rows: pyarrow.Table, what: str) -> pyarrow.Table:
    import pyarrow as pa

    return rows.append_column(_CHANGE_TYPE, pa.repeat(pa.scalar(what), rows.num_rows))
