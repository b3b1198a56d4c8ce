"""Data files that the engine writes itself: their format and their AddFile actions."""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files.capabilities import (
    SHIFTS_INT96,
    Reading,
    Verdict,
    WritableColumn,
    calendar_modes,
    writable,
)
from deltaweave.delta.files.object_stores import settings_for_arrow
from deltaweave.delta.files.writer_settings import why_written_otherwise
from deltaweave.delta.log import FileList, actions
from deltaweave.delta.releases import arrow_type

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession

_FIELD_ID = "delta.columnMapping.id"
# Spark's names of codecs, with pyarrow's names and the file endings that Spark uses.
_CODECS = {
    "none": ("none", ".parquet"),
    "uncompressed": ("none", ".parquet"),
    "snappy": ("snappy", ".snappy.parquet"),
    "gzip": ("gzip", ".gz.parquet"),
    "zstd": ("zstd", ".zstd.parquet"),
}

# A path in the log that is not relative to the table (Delta protocol, "Add File and Remove File").
_ABSOLUTE = r"/|[A-Za-z][A-Za-z0-9+.-]*:"
_HOLD_PARTITION_COLUMNS = "delta.writePartitionColumnsToParquet"
_READING = "_reading"


def written_columns(transaction: Transaction) -> list[WritableColumn] | Verdict:
    """Return the columns in the table's files as Arrow copies and writes them.

    If it may not, return why Spark must write the files.
    """
    why_not = why_not_writable(transaction)
    if why_not is not None:
        return Verdict(False, why_not)
    reading = reading_of(transaction)
    columns = []
    for field in data_columns(transaction):
        column = writable(field, reading)
        if isinstance(column, Verdict):
            return column
        columns.append(column)
    return columns


def reading_of(transaction: Transaction) -> Reading:
    """Return what decides how Arrow may use the table's columns, read once for a transaction."""
    known: dict[str, Reading] = transaction.__dict__
    if _READING not in known:
        nested = transaction.metadata.column_mapping == "none"
        known[_READING] = Reading(transaction.merge.spark, nested)
    return known[_READING]


def why_not_writable(transaction: Transaction) -> str | None:
    """Return why Spark must write this table's files, whatever its columns; None if it need not.

    Only Spark's writer fills generated columns. It also checks constraints: see
    `conditions_of_rows`. Ask `written_columns`.
    """
    metadata = transaction.metadata
    if transaction.changes_metadata:
        return "the merge changes the table's schema"
    if transaction.partition_columns and _stores_partition_columns(transaction):
        return "the table stores its partition columns in the files too"
    if "delta.generationExpression" in metadata.schema_text:  # also partition columns
        return "the table has generated columns"
    if metadata.column_mapping == "id":
        return "the table finds columns in its files by id"
    if metadata.has_unused_names:
        return "its columns have names for files that the table does not use"
    if transaction.codec.lower() not in _CODECS:
        return f"files are compressed with {transaction.codec}"
    by_settings = why_written_otherwise(transaction)
    if by_settings is not None:
        return by_settings
    if not transaction.data_path.startswith("file:"):
        settings = settings_for_arrow(transaction.table)
        return settings if isinstance(settings, str) else None
    return None


def _stores_partition_columns(transaction: Transaction) -> bool:
    """Return whether files hold partition columns (protocol, "Materialize Partition Columns").

    The feature requires it; the table property requests it.
    """
    features = transaction.snapshot.protocol().writerFeatureNames()
    by_feature = bool(features.contains("materializePartitionColumns"))
    return by_feature or transaction.metadata.is_on(_HOLD_PARTITION_COLUMNS)


def file_mode(transaction: Transaction) -> int:
    """Return the permissions that Hadoop gives to new files of the table.

    They are those of Hadoop's file system, which keeps the configuration that it was opened with.
    """
    permissions = jvm_.jvm(transaction.merge.spark).org.apache.hadoop.fs.permission.FsPermission
    system = transaction.directory.getFileSystem(transaction.hadoop_settings)
    return 0o666 & ~int(permissions.getUMask(system.getConf()).toShort())


def assumes_new_calendar(spark: SparkSession) -> bool:
    """Return whether Spark takes dates and times of files that do not name Spark as they are.

    It takes those of files by Spark before 3.0 for dates of the Julian calendar, if they are before
    1582, and its settings say what it does if the writer is not known. A further setting shifts
    INT96 times of other writers by the session's time zone.
    """
    shifts = jvm_.is_on(spark, SHIFTS_INT96, otherwise=False)
    return not shifts and all(mode == "CORRECTED" for mode in calendar_modes(spark))


def are_own(files: FileList) -> numpy.ndarray:
    """Return for each file whether it is in the table's directory.

    Those of a shallow clone are in the directory of another table, whose VACUUM deletes what is
    written beside them.
    """
    import numpy as np

    paths = files.rows["path"].to_pylist()
    return np.array([not re.match(_ABSOLUTE, path) for path in paths], dtype=bool)


def table_columns(transaction: Transaction) -> list[StructField]:
    """Return the columns of the table: the evolved schema."""
    return transaction.metadata.schema.fields


def data_columns(transaction: Transaction) -> list[StructField]:
    """Return the columns in the table's files: the evolved schema without partition columns."""
    partitioned = set(transaction.partition_columns)
    return [field for field in table_columns(transaction) if field.name not in partitioned]


def arrow_schema(transaction: Transaction, columns: Sequence[WritableColumn]) -> pyarrow.Schema:
    """Return the Arrow schema of a file: physical names, times in UTC, field ids."""
    return _arrow(transaction, [each.column for each in columns])


def row_schema(transaction: Transaction) -> pyarrow.Schema:
    """Return the Arrow schema of whole rows: that of a file, with the partition columns."""
    return _arrow(transaction, table_columns(transaction))


def _arrow(transaction: Transaction, columns: Sequence[StructField]) -> pyarrow.Schema:
    import pyarrow as pa

    fields = []
    for column in columns:
        number = (column.metadata or {}).get(_FIELD_ID)
        metadata = None if number is None else {"PARQUET:field_id": str(number)}
        fields.append(
            pa.field(
                transaction.table.physical_names[column.name],
                arrow_type(transaction.merge.spark, column.dataType),
                metadata=metadata,
            )
        )
    return pa.schema(fields)


def codec(transaction: Transaction) -> tuple[str, str]:
    """Return the codec of new files by pyarrow's name, and the ending of their names."""
    return _CODECS[transaction.codec.lower()]


NewFile = tuple[str, int, str]
"""A file that was written: its name, its size in bytes and its statistics as JSON."""


@dataclass(frozen=True)
class FurtherFile:
    """A file that replaces no other one.

    Attributes:
        directory: Where it is below the table's directory; empty in that directory itself. It needs
            no encoding in a path.
        partition: The partition values as the log has them.
        file: The file.
    """

    directory: str
    partition: Mapping[str, str | None]
    file: NewFile


def additions(
    old: FileList, new: Mapping[str, NewFile], others: Sequence[FurtherFile] = ()
) -> FileList:
    """Build AddFile actions of new files.

    Args:
        old: Files that they replace, in the same directories.
        new: The new files by the paths of the old ones.
        others: Further files.
    """
    now_ms = time.time_ns() // 1_000_000

    def added(
        path: str, partition: Mapping[str, str | None], size: int, statistics: str
    ) -> actions.Action:
        return {
            "path": path,
            "partitionValues": partition,
            "size": size,
            "modificationTime": now_ms,
            "dataChange": True,
            "stats": statistics,
        }

    adds = []
    for row in old.rows.to_pylist():
        if row["path"] in new:
            name, size, statistics = new[row["path"]]
            path = posixpath.join(posixpath.dirname(row["path"]), name)
            adds.append(added(path, json.loads(row["partition"]), size, statistics))
    for each in others:
        name, size, statistics = each.file
        adds.append(added(posixpath.join(each.directory, name), each.partition, size, statistics))
    return FileList.of_actions(old.spark, adds, old.data_path)
