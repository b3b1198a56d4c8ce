"""Read rows of a Parquet file in batches of bounded bytes in memory, and write them in row groups.

`read_batches` gives rows as they are stored, the others with the columns of the table and row ids.

A file may store a text once that thousands of rows have. So the size of a batch does not follow
from what the file stores: the longest value of each dictionary bounds what a row takes.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.storage import Storage
from deltaweave.engine.tasks.table_format import (
    NotRewritableError,
    TableFormat,
    TooBigError,
    check_copyable,
    check_zones,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


# Maximum bytes in memory that the rows of a batch take, by the widest row that the file may hold.
BATCH_BYTES = 16 << 20
# Maximum rows of a batch: more are not read faster.
BATCH_ROWS = 32_768
# Values that repeat the start of the value before are as long as all that their column stores, at
# most. Maximum bytes and rows of a batch of such, and the rows below which Spark reads them faster.
BYTES_OF_REPEATED_STARTS = 64 << 20
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
        # The size of values that are stored one by one is known: their sum.
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
    rows = BYTES_OF_REPEATED_STARTS // stored
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


_ROWS_TO_MEASURE = 64

FirstRow = tuple[int, int]
"""The row id of a file's first row, and the commit version of the rows that store none."""


def batches_of_group(
    storage: Storage,
    location: str,
    old: pyarrow.parquet.ParquetFile,
    group: int,
    schema: pyarrow.Schema,
) -> Iterator[pyarrow.Table]:
    """Read the rows of a row group in batches, with the table's columns and types.

    Raises:
        pyarrow.ArrowInvalid: The file is damaged: a column has fewer rows than others.
    """
    import pyarrow as pa

    left = old.metadata.row_group(group).num_rows
    names, beside = _stored_names(old, schema), _width_of_missing(old, schema)
    for batch in read_batches(storage, location, old, names, [group], beside):
        left -= batch.num_rows
        yield _as_of_table(pa.Table.from_batches([batch]), schema)
    if left:
        raise pa.ArrowInvalid(f"columns of row group {group} lack {left} rows")


def _stored_names(old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema) -> list[str]:
    stored = set(old.schema_arrow.names)
    return [name for name in schema.names if name in stored]


def _as_of_table(rows: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """Add the table's columns that are not stored to the rows, as nulls."""
    import pyarrow as pa

    stored = set(rows.column_names)
    arrays = [
        rows[wanted.name].cast(wanted.type)
        if wanted.name in stored
        else pa.nulls(rows.num_rows, wanted.type)
        for wanted in schema
    ]
    return pa.table(arrays, schema=schema)


def _width_of_missing(old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema) -> float:
    """Return the bytes that a row takes in columns that are not stored: Arrow holds each null."""
    import pyarrow as pa

    stored = set(old.schema_arrow.names)
    missing = [field.type for field in schema if field.name not in stored]
    measured = sum(pa.nulls(_ROWS_TO_MEASURE, kind).nbytes for kind in missing)
    return float(measured / _ROWS_TO_MEASURE)


def all_rows(
    storage: Storage,
    location: str,
    schema: pyarrow.Schema,
    max_rows: int,
    max_bytes: int,
    *,
    new_calendar: bool,
) -> pyarrow.Table:
    """Read all rows of a file, with some columns of its table.

    Args:
        schema: The columns, by their names in files.
        new_calendar: See `TableFormat`.

    Raises:
        NotRewritableError: Arrow may not read the file.
        TooBigError: The rows are too many or too big.
    """
    import pyarrow as pa

    parts, size = [schema.empty_table()], 0
    with storage.opened(location) as file:
        check_copyable(file, schema, new_calendar=new_calendar)
        check_zones(file, schema)
        if file.metadata.num_rows > max_rows:
            raise TooBigError(f"there are more than {max_rows:,} rows")
        names, beside = _stored_names(file, schema), _width_of_missing(file, schema)
        for batch in read_batches(storage, location, file, names, beside=beside):
            parts.append(_as_of_table(pa.Table.from_batches([batch]), schema))
            size += parts[-1].nbytes
            if size > max_bytes:
                raise TooBigError(f"the rows have more than {max_bytes:,} bytes")
    return pa.concat_tables(parts)


def rows_at(location: str, indexes: Any, table: TableFormat, max_bytes: int) -> pyarrow.Table:
    """Read the rows of a file at some positions.

    Args:
        indexes: The rows' indexes in the file (int64, ascending).

    Raises:
        NotRewritableError: Arrow may not read the file.
        TooBigError: The rows are too big.
    """
    import numpy as np
    import pyarrow as pa

    parts, start, size = [], 0, 0
    with table.storage.opened(location) as old:
        check_copyable(old, table.schema, new_calendar=table.new_calendar)
        names, beside = _stored_names(old, table.schema), _width_of_missing(old, table.schema)
        first = np.cumsum(
            [0] + [old.metadata.row_group(i).num_rows for i in range(old.num_row_groups)]
        )
        for group in np.unique(np.searchsorted(first, indexes, side="right") - 1).tolist():
            start = int(first[group])
            for batch in read_batches(table.storage, location, old, names, [group], beside):
                of_batch = slice(*np.searchsorted(indexes, (start, start + batch.num_rows)))
                if len(indexes[of_batch]):
                    rows = _as_of_table(pa.Table.from_batches([batch]), table.schema)
                    parts.append(rows.take(pa.array(indexes[of_batch] - start)))
                    size += parts[-1].nbytes
                    if size > max_bytes:
                        raise TooBigError(f"the changed rows have more than {max_bytes:,} bytes")
                start += batch.num_rows
    return pa.concat_tables([table.schema.empty_table(), *parts])


def row_ids(stored: pyarrow.Table, start: int, first_row: FirstRow) -> pyarrow.Table:
    """Return row ids and commit versions of rows (Delta protocol, "Reading Row Tracking").

    Args:
        stored: The row ids and commit versions in the file; null where the row's index gives them.
        start: The index of the first row in the file.
        first_row: Row id and commit version of the file's first row.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    row_id, version = first_row
    by_index = pa.array(np.arange(row_id + start, row_id + start + stored.num_rows))
    ids = pc.coalesce(stored[0], by_index)
    versions = pc.coalesce(stored[1], pa.scalar(version, pa.int64()))
    return pa.table([ids, versions], schema=stored.schema)


def row_ids_of_new(old: pyarrow.Table, indexes: Any) -> pyarrow.Table:
    """Return new rows' ids, those of the rows that they replace, without commit versions.

    Their version is that of the commit.

    Args:
        old: The result of `row_ids`.
        indexes: For each new row, the index of its old row (int64).
    """
    import pyarrow as pa

    ids = old[0].take(pa.array(indexes))
    return pa.table([ids, pa.nulls(len(indexes), pa.int64())], schema=old.schema)
