"""Read rows of a Parquet file in batches of bounded bytes in memory, and write them in row groups.

A file may store a text once that thousands of rows have. So the size of a batch does not follow
from what the file stores: the longest value of each dictionary bounds what a row takes.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from deltaweave.engine.tasks.storage import Storage
from deltaweave.engine.tasks.table_format import NotRewritableError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


# Maximum bytes in memory that the rows of a batch take, by the widest row that the file may hold.
BATCH_BYTES = 16 << 20
# Maximum rows of a batch: more are not read faster.
BATCH_ROWS = 32_768
# Values that repeat the start of the value before are as long as all that their column stores, at
# most. Maximum bytes and rows of a batch of such, and the rows below which Spark reads them faster.
_BYTES_OF_REPEATED_STARTS = 64 << 20
_MAX_ROWS_OF_REPEATED_STARTS = 512
_MIN_ROWS_OF_REPEATED_STARTS = 16

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_WIDTH_OF_DECIMALS = 16
# Maximum decoded bytes of a row group's items in arrays and maps, beyond one item a row. Footers
# give the average of rows alone: neighbouring rows may hold all items. Spark rewrites more.
MAX_UNEVEN_BYTES = 256 << 20
_STARTS = "DELTA_BYTE_ARRAY"
_IN_DICTIONARIES = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})

# Maximum bytes of rows in memory that one row group of a new file has: the size of Spark's row
# groups (parquet.block.size), which counts encoded values. A thread or task that writes holds so
# many, and repeated values may take a thousandth of that in the file.
MAX_ROW_GROUP_BYTES_IN_MEMORY = 128 << 20


def read_batches(
    storage: Storage,
    location: str,
    file: pyarrow.parquet.ParquetFile,
    names: Sequence[str],
    groups: Sequence[int] | None = None,
    beside: float = 0,
) -> Iterator[pyarrow.RecordBatch]:
    """Read rows in their order.

    Columns have their names in the file; without any, batches have rows alone. None reads all row
    groups. A row takes `beside` bytes in memory beside these columns.

    Raises:
        NotRewritableError: A few rows may hold most of many decoded items, or values may be so
            long that batches would have a few rows each.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        size = _rows_at_once(storage, location, file, names, group, beside)
        yield from file.iter_batches(size, [group], columns=names, use_threads=False)


def has_dictionary(column: pyarrow.parquet.ColumnChunkMetaData) -> bool:
    """Return whether pages store their values in a dictionary.

    Parquet's Java library before 1.12 (Spark before 3.2) does not write where the dictionary is.
    """
    in_dictionaries = _IN_DICTIONARIES.intersection(column.encodings)
    return bool(column.has_dictionary_page or in_dictionaries)


def _rows_at_once(
    storage: Storage,
    location: str,
    file: pyarrow.parquet.ParquetFile,
    names: Sequence[str],
    group: int,
    beside: float,
) -> int:
    num_rows = max(1, file.metadata.row_group(group).num_rows)
    wanted = set(names)
    columns = [c for c in _column_chunks(file, group) if _is_of(c, wanted)]
    texts = [c for c in columns if c.physical_type == "BYTE_ARRAY"]
    repeated = [c for c in texts if has_dictionary(c) and not _is_small(c)]
    most = _rows_of([column for column in texts if _STARTS in column.encodings])
    _check_even(columns, num_rows, {})  # before items are read with their dictionary
    decimals = _decimals(file)
    width = beside + sum(_stored_width(column, num_rows, decimals) for column in columns)
    size = _rows_that_fit(width, most)
    longest = _longest_values(storage, location, file, repeated, group, size)
    _check_even(columns, num_rows, longest)
    for column in repeated:
        width += longest.get(column.path_in_schema, 0) * column.num_values / num_rows
    return _rows_that_fit(width, most)


def _stored_width(
    column: pyarrow.parquet.ColumnChunkMetaData, num_rows: int, decimals: Collection[str]
) -> float:
    """Return the bytes of a row in memory, except those of values in dictionaries."""
    width = float(_WIDTHS.get(column.physical_type, _WIDTH_OF_DECIMALS))
    if column.path_in_schema in decimals:
        width = _WIDTH_OF_DECIMALS
    width *= column.num_values
    if column.physical_type == "BYTE_ARRAY":
        # Of values that are stored one by one, their sum is known.
        width += column.total_uncompressed_size
    return float(width / num_rows)


def _decimals(file: pyarrow.parquet.ParquetFile) -> set[str]:
    """Return the paths of decimals, which memory holds in more bytes than files."""
    columns = (file.schema.column(i) for i in range(len(file.schema)))
    return {column.path for column in columns if column.logical_type.type == "DECIMAL"}


def _rows_that_fit(width: float, most: int) -> int:
    return max(1, min(most, int(BATCH_BYTES / max(width, 1))))


def _rows_of(columns: Sequence[pyarrow.parquet.ColumnChunkMetaData]) -> int:
    """Return how many rows fit a batch if each value has all bytes that its column stores."""
    if sum(column.num_values * column.total_uncompressed_size for column in columns) <= BATCH_BYTES:
        return BATCH_ROWS
    stored = sum(column.total_uncompressed_size for column in columns)
    rows = _BYTES_OF_REPEATED_STARTS // stored
    if rows < _MIN_ROWS_OF_REPEATED_STARTS:
        names = ", ".join(column.path_in_schema for column in columns)
        raise NotRewritableError(
            f"columns ({names}) store values by what differs from the value before, so that those "
            f"of a row may have {stored:,} bytes"
        )
    return int(min(rows, _MAX_ROWS_OF_REPEATED_STARTS))


def _check_even(
    columns: Sequence[pyarrow.parquet.ColumnChunkMetaData],
    num_rows: int,
    longest: Mapping[str, int],
) -> None:
    """Raise NotRewritableError if a few rows may hold much more than their stored bytes."""
    uneven: dict[str, int] = {}
    for column in columns:
        path, stored = column.path_in_schema, column.total_uncompressed_size
        item = _WIDTHS.get(column.physical_type, _WIDTH_OF_DECIMALS) + longest.get(path, 0)
        if _STARTS in column.encodings:
            item += stored
        size = (column.num_values - num_rows) * item
        if size > stored:  # which the limit of row groups bounds
            uneven[path] = size
    if sum(uneven.values()) > MAX_UNEVEN_BYTES:
        raise NotRewritableError(
            f"a few rows may hold most of the {sum(uneven.values()):,} bytes of columns "
            f"({', '.join(uneven)})"
        )


def _column_chunks(
    file: pyarrow.parquet.ParquetFile, group: int
) -> list[pyarrow.parquet.ColumnChunkMetaData]:
    of_group = file.metadata.row_group(group)
    return [of_group.column(i) for i in range(of_group.num_columns)]


def _is_of(column: pyarrow.parquet.ColumnChunkMetaData, names: set[str]) -> bool:
    """Return whether a leaf is one of these columns or in one; their names may have dots."""
    path = column.path_in_schema
    ends = [i for i, letter in enumerate(path) if letter == "."]
    return path in names or any(path[:end] in names for end in ends)


def _is_small(column: pyarrow.parquet.ColumnChunkMetaData) -> bool:
    """Return whether values fit a batch even if each is as long as the column's longest."""
    return bool(column.num_values * column.total_uncompressed_size <= BATCH_BYTES)


def _longest_values(
    storage: Storage,
    location: str,
    file: pyarrow.parquet.ParquetFile,
    columns: Sequence[pyarrow.parquet.ColumnChunkMetaData],
    group: int,
    size: int,
) -> Mapping[str, int]:
    """Return the length of the longest value in each column's dictionary, by the column's path.

    Arrow gives the whole dictionary with the first value, which may not be in the first batch. So
    that a batch fits memory, it has `size` rows: a nested column is read with all of its fields.
    """
    missing = {column.path_in_schema for column in columns}
    found: dict[str, int] = {}
    if not missing:
        return found
    names = [name for name in file.schema_arrow.names if any(_starts(p, name) for p in missing)]
    read = storage.opened(location, dictionaries=sorted(missing), metadata=file.metadata)
    with read:
        order = [c.path_in_schema for c in _column_chunks(read, group) if _is_of(c, set(names))]
        for batch in read.iter_batches(size, [group], columns=names, use_threads=False):
            leaves = [leaf for column in batch.columns for leaf in _leaves(column)]
            for path, leaf in zip(order, leaves, strict=True):
                if path in missing and len(leaf.dictionary):
                    found[path] = _longest(leaf.dictionary)
            missing -= found.keys()
            if not missing:
                break
    return found


def _starts(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _longest(values: pyarrow.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.max(pc.binary_length(values)).as_py() or 0)


def _leaves(values: pyarrow.Array) -> Iterator[pyarrow.Array]:
    """Yield the arrays of a column's leaves, in their order."""
    import pyarrow.types as types

    kind = values.type
    if types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from _leaves(values.field(i))
    elif types.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif types.is_list(kind):
        yield from _leaves(values.values)
    else:
        yield values


class RowGroups:
    """The row groups of a new file."""

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
