"""Write the rows of the change data feed of one rewritten file (Delta protocol, "Add CDC File").

A task on an executor runs this. It needs only pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.table_format import TableFormat

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_CHANGE_TYPE = "_change_type"


class ChangeFile:
    """A file of the feed, begun with its first rows.

    Attributes:
        name: Its name, once it was begun.
        size: Its size in bytes, once it is complete.
    """

    def __init__(self, table: TableFormat) -> None:
        self._table = table
        self._stack = ExitStack()
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self.name: str | None = None
        self.size: int | None = None

    def add(self, before: pyarrow.Table, after: pyarrow.Table, deleted: Any) -> None:
        """Add the rows of some changes.

        Args:
            before: The rows as they were.
            after: The rows as they are now; any row where it is deleted.
            deleted: For each of them, whether it is deleted (numpy array of booleans).
        """
        import pyarrow as pa

        kept = pa.array(~deleted)
        after = after.filter(kept)
        parts = [
            (before.filter(kept), "update_preimage"),
            (after, "update_postimage"),
            (before.filter(pa.array(deleted)), "delete"),
        ]
        rows = pa.concat_tables([_typed(part, what) for part, what in parts])
        if rows.num_rows:
            self._open(rows.schema).write_table(rows)

    def _open(self, schema: pyarrow.Schema) -> pyarrow.parquet.ParquetWriter:
        if self._writer is None:
            self.name = self._table.new_name(of_change_feed=True)
            writing = self._table.writer(self._path(), True, schema)
            self._writer = self._stack.enter_context(writing)
        return self._writer

    def complete(self) -> None:
        """Write what is left of it."""
        self._stack.close()
        if self.name is not None:
            self.size = os.path.getsize(self._path())

    def delete(self) -> None:
        """Delete it, whatever is written of it."""
        try:
            self._stack.close()
        finally:
            if self.name is not None and os.path.exists(self._path()):
                os.remove(self._path())

    def _path(self) -> str:
        assert self._table.change_feed is not None
        assert self.name is not None
        return os.path.join(self._table.change_feed, self.name)


@contextmanager
def change_file(table: TableFormat) -> Iterator[ChangeFile | None]:
    """A file of the feed, complete after the block and gone if it fails; None without a feed."""
    if table.change_feed is None:
        yield None
        return
    file = ChangeFile(table)
    try:
        yield file
        file.complete()
    except BaseException:
        file.delete()
        raise


def _typed(rows: pyarrow.Table, what: str) -> pyarrow.Table:
    import pyarrow as pa

    return rows.append_column(_CHANGE_TYPE, pa.repeat(pa.scalar(what), rows.num_rows))
