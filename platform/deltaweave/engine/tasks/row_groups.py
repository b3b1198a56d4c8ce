"""Collect the rows of a new file until they fill a row group, counted as they are in memory.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

# Maximum bytes of rows in memory that one row group of a new file has: the size of Spark's row
# groups (parquet.block.size), which counts encoded values. A thread or task that writes holds so
# many, and repeated values may take a thousandth of that in the file.
MAX_ROW_GROUP_BYTES_IN_MEMORY = 128 << 20


class RowGroups:
    """The row groups of a new file.

    Args:
        write: Writes rows as one row group.
    """

    def __init__(self, write: Callable[[pyarrow.Table], None]) -> None:
        self._write = write
        self._held: list[pyarrow.Table] = []
        self._num_bytes = 0

    def add(self, rows: pyarrow.Table) -> None:
        """Add rows; a row group is written first if it would become too big with them."""
        num_bytes = rows.nbytes
        if self._num_bytes + num_bytes > MAX_ROW_GROUP_BYTES_IN_MEMORY:
            self.end_group()
        if rows.num_rows:
            self._held.append(rows)
            self._num_bytes += num_bytes

    def end_group(self) -> None:
        """Write the rows that are held, if there are any."""
        import pyarrow as pa

        if self._held:
            rows = pa.concat_tables(self._held)  # without a copy
            self._held, self._num_bytes = [], 0
            self._write(rows)
