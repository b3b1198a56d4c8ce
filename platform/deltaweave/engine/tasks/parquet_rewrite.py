"""Rewrite one Parquet file in place: changed rows at their old positions, deleted rows gone.

A task on an executor runs this. It needs only pyarrow. Row groups are read, changed and written one
after the other, so that a task holds one row group and the changed rows of its file in memory.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from deltaweave.engine.tasks.file_statistics import Statistics

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

REWRITTEN_SCHEMA = "file string, name string, size bigint, stats string, refused string"

# Footer keys of files whose dates are in the calendar of old Spark versions.
_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION_KEY = b"org.apache.spark.version"


# A task holds a row group about three times, uncompressed. Spark writes row groups of 128 MB.
MAX_ROW_GROUP_BYTES = 1 << 30


class NotRewritableError(Exception):
    """The file holds something that may not be copied exactly: Spark rewrites it."""


class RewriteFailedError(Exception):
    """The file could not be read, or the new one could not be written; the message names it."""


@dataclass(frozen=True)
class TableFormat:
    """What a table's new files look like.

    Attributes:
        schema: Their columns, by the names that files use, with field ids where the table has them.
        codec: Name of the compression, as pyarrow spells it.
        extension: What file names end with.
        statistics: Delta's schema of a file's statistics, as Spark's JSON.
        string_prefix: Characters of a string that statistics keep.
        file_prefix: What file names begin with.
    """

    schema: pyarrow.Schema
    codec: str
    extension: str
    statistics: str
    string_prefix: int
    file_prefix: str = ""


def rewriter(
    table: TableFormat, with_vectors: frozenset[str]
) -> Callable[[tuple[Any, ...], pyarrow.Table], pyarrow.Table]:
    """The function for `applyInArrow`: the changed rows of one file in, one row about it out.

    The file comes first (see `local_path`), then what `rewrite_file` takes.

    Args:
        table: How to write.
        with_vectors: Paths of files in which rows are marked as deleted, which Spark rewrites.
    """

    def rewrite(key: tuple[Any, ...], changes: pyarrow.Table) -> pyarrow.Table:
        import pyarrow as pa

        file = key[0].as_py()
        name, size, stats, refused = None, None, None, None
        try:
            path = local_path(file)
            if path in with_vectors:
                raise NotRewritableError("rows in it are marked deleted")
            written = rewrite_file(path, changes.remove_column(0), table)
            if written is not None:
                name, size, stats = written
        except NotRewritableError as error:
            refused = str(error)
        except Exception as error:  # of pyarrow, or of the file system
            raise RewriteFailedError(f"{file} could not be rewritten: {error}") from error
        columns = [[file], [name], [size], [stats], [refused]]
        types = [pa.string(), pa.string(), pa.int64(), pa.string(), pa.string()]
        return pa.table(
            [pa.array(c, t) for c, t in zip(columns, types, strict=True)],
            names=["file", "name", "size", "stats", "refused"],
        )

    return rewrite


def local_path(file: str) -> str:
    """The path of a file given as Spark's `_metadata.file_path` (absolute, percent-encoded)."""
    parts = urlsplit(file)
    if parts.scheme not in ("", "file"):
        raise NotRewritableError(f"{parts.scheme} is no file system that is open to pyarrow")
    return unquote(parts.path)


def rewrite_file(
    path: str, changes: pyarrow.Table, table: TableFormat
) -> tuple[str, int, str] | None:
    """Write the new file into the directory of the old one.

    Args:
        path: The file.
        changes: A row per change: its place in the file (int64), whether it is deleted (boolean),
            and its new values in the order of the table's columns (struct). A row that several
            source rows delete may occur more than once.
        table: How to write.

    Returns:
        The new file's name, its size in bytes and its statistics as JSON; None if no row is left.

    Raises:
        NotRewritableError: Spark must rewrite the file.
    """
    import numpy as np
    import pyarrow as pa

    indexes, first = np.unique(changes.column(0).to_numpy(), return_index=True)
    _, is_deleted, values = changes.take(pa.array(first)).columns
    deleted = is_deleted.to_numpy().astype(bool)
    new_rows = pa.table(
        [v.cast(field.type) for v, field in zip(values.flatten(), table.schema, strict=True)],
        schema=table.schema,
    )
    name = f"{table.file_prefix}part-00000-{uuid.uuid4()}.c000{table.extension}"
    target = os.path.join(os.path.dirname(path), name)
    try:
        statistics = _write(path, target, indexes, deleted, new_rows, table)
    except BaseException:
        if os.path.exists(target):
            os.remove(target)
        raise
    if not statistics.num_records:
        os.remove(target)
        return None
    return name, os.path.getsize(target), statistics.to_json()


def _write(
    path: str, target: str, indexes: Any, deleted: Any, new_rows: pyarrow.Table, table: TableFormat
) -> Statistics:
    """Write the new file, row group by row group, and return its statistics."""
    import numpy as np
    import pyarrow.parquet as pq

    statistics = Statistics(json.loads(table.statistics), table.string_prefix)
    with pq.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit="us") as old:
        check_copyable(old, table.schema)
        schema = table.schema.with_metadata(_kept_metadata(old))
        with pq.ParquetWriter(
            target,
            schema,
            compression=table.codec,
            use_dictionary=_with_dictionary(old),
            store_decimal_as_integer=True,
            store_schema=False,
            write_page_index=True,
        ) as writer:
            start = 0
            for part in _row_groups(old, table.schema):
                low, high = np.searchsorted(indexes, (start, start + part.num_rows))
                here = slice(low, high)
                after = _changed(part, new_rows[low:high], indexes[here] - start, deleted[here])
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


def check_copyable(old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema) -> None:
    """Raise NotRewritableError unless every stored column has the type that it is written with.

    A column that is not stored was added to the table later, and is null.
    """
    metadata = old.metadata.metadata or {}
    if any(key in metadata for key in _LEGACY_KEYS):
        raise NotRewritableError("its dates are of the calendar that Spark used before 3.0")
    largest = max(
        (old.metadata.row_group(i).total_byte_size for i in range(old.num_row_groups)), default=0
    )
    if largest > MAX_ROW_GROUP_BYTES:
        raise NotRewritableError(f"it has a row group of {largest} bytes")
    stored = old.schema_arrow
    spelled = [name.lower() for name in stored.names]
    for wanted in schema:
        index = stored.get_field_index(wanted.name)
        if index == -1:
            if wanted.name.lower() in spelled:
                raise NotRewritableError(f"it spells column {wanted.name!r} in another way")
            continue
        if not _is_same(stored.field(index).type, wanted.type):
            raise NotRewritableError(
                f"column {wanted.name!r} is stored as {stored.field(index).type}, "
                f"not as {wanted.type}"
            )


def _is_same(stored: pyarrow.DataType, wanted: pyarrow.DataType) -> bool:
    """Whether both types have the same values; files may omit the time zone of a timestamp."""
    import pyarrow.types as types

    if types.is_timestamp(stored) and types.is_timestamp(wanted):
        # INT96 is read without a zone, and always means UTC.
        return stored.unit == wanted.unit and (
            stored.tz == wanted.tz or (stored.tz is None and wanted.tz == "UTC")
        )
    if types.is_struct(stored) and types.is_struct(wanted):
        ours = [wanted.field(i) for i in range(wanted.num_fields)]
        theirs = [stored.field(i) for i in range(stored.num_fields)]
        return len(ours) == len(theirs) and all(
            a.name == b.name and _is_same(a.type, b.type) for a, b in zip(theirs, ours, strict=True)
        )
    if types.is_list(stored) and types.is_list(wanted):
        return _is_same(stored.value_type, wanted.value_type)
    if types.is_map(stored) and types.is_map(wanted):
        return _is_same(stored.key_type, wanted.key_type) and _is_same(
            stored.item_type, wanted.item_type
        )
    return bool(stored.equals(wanted))


def _row_groups(
    old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema
) -> Iterator[pyarrow.Table]:
    """The file's row groups with the table's columns, in the file's order."""
    import pyarrow as pa

    stored = set(old.schema_arrow.names)
    columns = [name for name in schema.names if name in stored]
    for group in range(old.num_row_groups):
        rows = old.read_row_group(group, columns=columns, use_threads=False)
        arrays = [
            rows[wanted.name].cast(wanted.type)
            if wanted.name in stored
            else pa.nulls(rows.num_rows, wanted.type)
            for wanted in schema
        ]
        yield pa.table(arrays, schema=schema)


def _with_dictionary(old: pyarrow.parquet.ParquetFile) -> list[str]:
    """The columns that have a dictionary in the old file; the others have too many distinct values.

    Finding that out again would take pyarrow as long as writing the file.
    """
    groups = (old.metadata.row_group(i) for i in range(old.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return sorted({c.path_in_schema for c in columns if c.has_dictionary_page})


def _kept_metadata(old: pyarrow.parquet.ParquetFile) -> dict[bytes, bytes]:
    metadata = old.metadata.metadata or {}
    version = metadata.get(_SPARK_VERSION_KEY)
    return {} if version is None else {_SPARK_VERSION_KEY: version}
