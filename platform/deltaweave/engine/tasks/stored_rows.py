"""Read rows of a Parquet file with the columns of its table, and their row ids.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.batches import read_batches
from deltaweave.engine.tasks.storage import Storage
from deltaweave.engine.tasks.table_format import (
    TableFormat,
    TooBigError,
    check_copyable,
    check_zones,
)

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

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
