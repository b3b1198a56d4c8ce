"""Read rows of a Parquet file with the columns of its table, and their row ids.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.table_format import TableFormat, check_copyable, opened

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

FirstRow = tuple[int, int]
"""The row id of a file's first row, and the commit version of the rows that store none."""


def row_groups(old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """The file's row groups with the table's columns, in the file's order."""
    return (_row_group(old, group, schema) for group in range(old.num_row_groups))


def _row_group(
    old: pyarrow.parquet.ParquetFile, group: int, schema: pyarrow.Schema
) -> pyarrow.Table:
    import pyarrow as pa

    stored = set(old.schema_arrow.names)
    columns = [name for name in schema.names if name in stored]
    rows = old.read_row_group(group, columns=columns, use_threads=False)
    arrays = [
        rows[wanted.name].cast(wanted.type)
        if wanted.name in stored
        else pa.nulls(rows.num_rows, wanted.type)
        for wanted in schema
    ]
    return pa.table(arrays, schema=schema)


def rows_at(path: str, places: Any, table: TableFormat) -> pyarrow.Table:
    """The rows of a file at some places (int64, ascending)."""
    import numpy as np
    import pyarrow as pa

    parts, start = [], 0
    with opened(path) as old:
        check_copyable(old, table.schema, new_calendar=table.new_calendar)
        for group in range(old.num_row_groups):
            num_rows = old.metadata.row_group(group).num_rows
            here = places[slice(*np.searchsorted(places, (start, start + num_rows)))] - start
            if len(here):
                parts.append(_row_group(old, group, table.schema).take(pa.array(here)))
            start += num_rows
    return pa.concat_tables([table.schema.empty_table(), *parts])


def with_ids(rows: pyarrow.Table, start: int, first_row: FirstRow) -> pyarrow.Table:
    """Rows with their row ids and commit versions (Delta protocol, "Reading Row Tracking").

    Args:
        rows: Rows of a file, whose last two columns are what it stores of them.
        start: The place of the first of them in the file.
        first_row: That of the file.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    row_id, version = first_row
    by_place = pa.array(np.arange(row_id + start, row_id + start + rows.num_rows))
    of_ids, of_versions = rows.num_columns - 2, rows.num_columns - 1
    ids = pc.coalesce(rows[of_ids], by_place)
    versions = pc.coalesce(rows[of_versions], pa.scalar(version, pa.int64()))
    rows = rows.set_column(of_ids, rows.schema.field(of_ids), ids)
    return rows.set_column(of_versions, rows.schema.field(of_versions), versions)


def with_ids_of(new_rows: pyarrow.Table, old_rows: pyarrow.Table) -> pyarrow.Table:
    """New rows with the ids of those that they replace; their version is that of the commit."""
    import pyarrow as pa

    of_ids, of_versions = old_rows.schema.field(-2), old_rows.schema.field(-1)
    new_rows = new_rows.append_column(of_ids, old_rows[of_ids.name])
    return new_rows.append_column(of_versions, pa.nulls(new_rows.num_rows, pa.int64()))
