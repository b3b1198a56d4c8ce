"""Reads the key columns of files on the driver, for merges that need no Spark job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.engine import limits
from deltaweave.engine.find.driver_keys import KeyColumn
from deltaweave.engine.find.driver_size import Held
from deltaweave.engine.tasks import Storage, check_copyable, check_zones, read_batches

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

FILE_NUMBER = "file"
"""Which file a row is in, by its index among those that are read."""

ROW_INDEX = "row"
"""The index of a row in its file."""


@dataclass(frozen=True)
class KeyScan:
    """The columns and rows that the driver reads from files.

    Attributes:
        storage: Where the files lie.
        locations: The locations of the files.
        new_calendar: As `assumes_new_calendar` says.
        columns: The compared columns that they store, or would.
        narrow: Selects the wanted rows from a table of these columns and row indexes, in order.
        held: Counts the bytes of what is found.
    """

    storage: Storage
    locations: Sequence[str]
    new_calendar: bool
    columns: Sequence[KeyColumn]
    narrow: Callable[[pyarrow.Table], pyarrow.Table]
    held: Held

    def nothing(self) -> pyarrow.Table:
        """Return the table of `wanted_rows` without rows."""
        import pyarrow as pa

        kinds = {name: kind for column in self.columns for name, kind in column.joined.items()}
        schema = pa.schema({FILE_NUMBER: pa.int64(), ROW_INDEX: pa.int64(), **kinds})
        return self.narrow(schema.empty_table())

    def num_rows(self, number: int) -> int:
        """Return how many rows a file has; raise NotRewritableError if Arrow may misread its keys.

        Args:
            number: The file, by its index in `locations`.
        """
        import pyarrow as pa

        fields = [column.field for column in self.columns]
        with self.storage.opened(self.locations[number]) as file:
            check_copyable(file, pa.schema(fields), new_calendar=self.new_calendar)
            check_zones(file, fields)
            return int(file.metadata.num_rows)

    def wanted_rows(self, numbers: Sequence[int]) -> pyarrow.Table:
        """Read the rows of some files, and keep what `narrow` returns of them.

        Args:
            numbers: The files to read, by their indexes in `locations`.

        Raises:
            NotRewritableError: These rows and those that other threads hold have too many bytes.
        """
        import pyarrow as pa

        parts, batch, num_rows, size = [self.nothing()], list[pa.Table](), 0, 0
        for number in numbers:
            for rows in self._read(number):
                batch.append(rows)
                num_rows, size = num_rows + rows.num_rows, size + rows.nbytes
                most = limits.MAX_BATCH_ROWS_ON_DRIVER, limits.MAX_BATCH_BYTES_ON_DRIVER
                if num_rows >= most[0] or size >= most[1]:
                    parts.append(self._wanted(batch))
                    batch, num_rows, size = [], 0, 0
        if batch:
            parts.append(self._wanted(batch))
        return pa.concat_tables(parts)

    def _read(self, number: int) -> Iterator[pyarrow.Table]:
        import numpy as np
        import pyarrow as pa

        start = 0
        with self.storage.opened(self.locations[number]) as file:
            for num_rows, keys in self._keys(self.locations[number], file):
                places = np.arange(start, start + num_rows, dtype=np.int64)
                of_file = {FILE_NUMBER: np.full(num_rows, number), ROW_INDEX: places}
                yield pa.table({**of_file, **keys})
                start += num_rows

    def _keys(
        self, location: str, file: pyarrow.parquet.ParquetFile
    ) -> Iterator[tuple[int, dict[str, pyarrow.ChunkedArray]]]:
        """Yield each batch's number of rows, and the values by which its rows are joined."""
        import pyarrow as pa

        stored = sorted(set(file.schema_arrow.names) & {c.field.name for c in self.columns})
        for num_rows, rows in self._batches(location, file, stored):
            keys: dict[str, pyarrow.ChunkedArray] = {}
            for column in self.columns:
                name = column.field.name
                # A column that is not stored was added later, and is null.
                values = rows[name] if name in stored else pa.nulls(num_rows, column.field.type)
                keys |= column.of(pa.chunked_array([values]))
            yield num_rows, keys

    def _batches(
        self, location: str, file: pyarrow.parquet.ParquetFile, columns: Sequence[str]
    ) -> Iterator[tuple[int, Mapping[str, pyarrow.Array]]]:
        if columns:
            for batch in read_batches(self.storage, location, file, columns):
                yield batch.num_rows, dict(zip(columns, map(batch.column, columns), strict=True))
            return
        num_rows, size = file.metadata.num_rows, limits.MAX_BATCH_ROWS_ON_DRIVER
        for start in range(0, num_rows, size):
            yield min(size, num_rows - start), {}

    def _wanted(self, batch: Sequence[pyarrow.Table]) -> pyarrow.Table:
        import pyarrow as pa

        rows = self.narrow(pa.concat_tables(batch))
        self.held.add(rows.nbytes)
        return rows


def with_codes(of_source: Mapping[str, pyarrow.Array], rows: pyarrow.Table) -> pyarrow.Table:
    """Replace values by their indexes among the source's; rows with others are left out.

    Long keys are then neither held nor copied for each pair.
    """
    import pyarrow.compute as pc

    for name, values in of_source.items():  # each leaves fewer rows to look at
        codes = pc.index_in(rows[name], value_set=values)
        rows = rows.set_column(rows.column_names.index(name), name, codes)
        rows = rows.filter(pc.is_valid(codes))
    return rows


def with_keys_of_log(
    of_log: Mapping[str, pyarrow.ChunkedArray], rows: pyarrow.Table
) -> pyarrow.Table:
    """Add the keys that the log has for the rows' files; drop rows with a null key.

    Args:
        of_log: For each file, by the names in joins.
        rows: The rows, with `FILE_NUMBER`.
    """
    for name, of_files in of_log.items():
        rows = rows.append_column(name, of_files.take(rows[FILE_NUMBER]))
    return rows.drop_null()
