"""Data files that the engine writes itself: their format and their AddFile actions.

Delta passes all table properties to Hadoop's configuration of the writer, where they win over those
of the session. So a table can be encrypted by its properties alone. A setting that is not known not
to matter leaves the table's files to Spark: none is ignored.

Delta's writer checks constraints of all rows that it writes. Who writes files without it checks the
new ones by `conditions_of_rows`. Copied rows were checked when they were written.
"""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files.capabilities import (
    SHIFTS_INT96,
    Reading,
    WritableColumn,
    calendar_modes,
    writable,
)
from deltaweave.delta.files.object_stores import store_settings
from deltaweave.delta.jvm import Jvm, is_on
from deltaweave.delta.log import FileList, actions, may_copy_in_place
from deltaweave.delta.releases import arrow_type
from deltaweave.identifiers import column as named_column

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession

# Settings of readers, of other writers and of memory. Spark itself sets the compression: by its own
# setting, which the engine follows.
_WITHOUT_MEANING = re.compile(
    r"parquet\.(?:read|filter|avro|thrift|proto|pig|hadoop|private\.read|task|strings)\..*"
    r"|parquet\.memory\.(?:pool\.ratio|min\.chunk\.size)"
    r"|parquet\.(?:compression|split\.files|enable\.summary-metadata|summary\.metadata\.level)"
    r"|parquet\.(?:read|write)\.support\.class"
    # Spark's readers' settings, those that the engine follows, those that Delta's writer ignores.
    r"|spark\.sql\.parquet\.(?:.*[pP]ushdown.*|.*InRead|enable.*|columnarReaderBatchSize)"
    r"|spark\.sql\.parquet\.(?:recordLevelFilter\.enabled|mergeSchema|respectSummaryFiles)"
    r"|spark\.sql\.parquet\.(?:binaryAsString|int96AsTimestamp|int96TimestampConversion)"
    r"|spark\.sql\.parquet\.(?:inferTimestampNTZ\.enabled|fieldId\..*|variant\..*|.*[vV]ariant.*)"
    r"|spark\.sql\.parquet\.(?:compression\.codec|output\.committer\.class)"
)
# Settings of Spark's writer, and the values with which its files are like those of the engine.
_VALUES_ALIKE = {
    "spark.sql.parquet.outputTimestampType": r"INT96|TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": r"false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": r"CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": r".*",  # it writes no INT96
    "spark.sql.files.maxRecordsPerFile": r"0|-\d+",
    "parquet.writer.version": r"v1|PARQUET_1_0",
}
# Properties of a table that reach the writer's configuration and can mean something there. Others
# are notes of users and tools, and Delta's own, which Delta checks.
_MAY_REACH_WRITERS = re.compile(
    r"(?:parquet|spark\.sql\.parquet|hadoop|fs|io|dfs|mapred|mapreduce|delta\.parquet)\..*"
    r"|.*(?:crypt|kms).*",
    re.IGNORECASE,
)
_OF_WRITERS = r"^(?:parquet\.|spark\.sql\.parquet\.|spark\.sql\.files\.maxRecordsPerFile$)"
_FORMAT_VERSION = {"delta.parquet.format.version": r"1\.0\.0"}
_ENCRYPTS = re.compile(r"parquet\.(?:crypto|encryption)\..*", re.IGNORECASE)
# A factory of keys that is not Parquet's own may read any property.
_OF_KEYS = re.compile(r".*(?:crypt|kms).*", re.IGNORECASE)


def _by_settings(transaction: Transaction) -> Verdict:
    """Return whether settings and properties leave the files of Delta's writer to Arrow too."""
    spark, properties = transaction.merge.spark, transaction.metadata.properties
    for name in properties:
        if _MAY_REACH_WRITERS.fullmatch(name) and not _is_alike(name, properties):
            return no(f"the table's property {name} is one of Spark's writer")
    names = _names_in_session(transaction)
    values = {name: spark.conf.get(name, None) or "" for name in names if name in _VALUES_ALIKE}
    for name in names:
        if not _is_alike(name, values):
            return no(f"the setting {name} is one of Spark's writer")
    return YES


def _names_in_session(transaction: Transaction) -> list[str]:
    """Return the names of the session's settings for Parquet's writer.

    Their values may be secrets, and py4j logs at DEBUG what the JVM answers.
    """
    found = transaction.hadoop_settings.getValByRegex(_OF_WRITERS).keySet()
    names = str(found.toString()).removeprefix("[").removesuffix("]").split(", ")
    return sorted(name for name in names if re.match(_OF_WRITERS, name))


def encryption_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the table's properties for Parquet's encryption; none if its files are not encrypted.

    They include those that seem to be of a factory of keys of one's own.
    """
    if not any(map(_ENCRYPTS.fullmatch, properties)):
        return {}
    return {name: value for name, value in properties.items() if _OF_KEYS.fullmatch(name)}


def _is_alike(name: str, values: Mapping[str, str]) -> bool:
    expected = (_VALUES_ALIKE | _FORMAT_VERSION).get(name)
    if expected is None:
        return _WITHOUT_MEANING.fullmatch(name) is not None
    return re.fullmatch(expected, values[name], re.IGNORECASE) is not None


_CHECK_PREFIX = "delta.constraints."
ONLY_DELTA_CHECKS = "only Delta's writer checks some of the table's constraints"


def conditions_of_rows(transaction: Transaction) -> list[Column] | None:
    """Return conditions over the table's columns, by name, that hold for each row.

    Returns:
        The conditions, or None if the table has constraints that only Delta's writer checks: of
        nested columns, of texts of limited length, and column invariants of old tables. None also
        if the session distinguishes names by their case, which Delta does not where it checks.
    """
    merge, metadata = transaction.merge, transaction.transaction.metadata()
    delta = Jvm.of(merge.spark).delta
    constraints = Jvm.singleton(delta.constraints, "Constraints")
    all_of_them = constraints.getAll(metadata, merge.spark._jsparkSession)
    if all_of_them.isEmpty():
        return []
    if is_on(merge.spark, "spark.sql.caseSensitive", otherwise=False):
        return None
    checks = [
        F.expr(condition)
        for name, condition in transaction.metadata.properties.items()
        if name.lower().startswith(_CHECK_PREFIX)
    ]
    not_null = [
        named_column(field.name).isNotNull()
        for field in transaction.metadata.schema
        if not field.nullable
    ]
    conditions = [*checks, *not_null]
    return conditions if len(conditions) == int(all_of_them.size()) else None


_FIELD_ID = "delta.columnMapping.id"


class Codec(NamedTuple):
    """A codec of Parquet files.

    Attributes:
        name: pyarrow's name of it.
        ending: The ending of the names of files that Spark compresses with it.
    """

    name: str
    ending: str


# Parquet's codecs by Spark's names for them.
_CODECS = {
    "none": Codec("none", ".parquet"),
    "uncompressed": Codec("none", ".parquet"),
    "snappy": Codec("snappy", ".snappy.parquet"),
    "gzip": Codec("gzip", ".gz.parquet"),
    "zstd": Codec("zstd", ".zstd.parquet"),
}

# A path in the log that is not relative to the table (Delta protocol, "Add File and Remove File").
_ABSOLUTE = r"/|[A-Za-z][A-Za-z0-9+.-]*:"
_HOLD_PARTITION_COLUMNS = "delta.writePartitionColumnsToParquet"
_READINGS: WeakKeyDictionary[Transaction, Reading] = WeakKeyDictionary()


def written_columns(transaction: Transaction) -> list[WritableColumn] | Verdict:
    """Return the columns in the table's files as Arrow copies and writes them.

    If it may not, return why Spark must write the files.
    """
    of_files = _may_write_files(transaction)
    if not of_files.ok:
        return of_files
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
    if transaction not in _READINGS:
        nested = transaction.metadata.column_mapping == "none"
        _READINGS[transaction] = Reading(transaction.merge.spark, nested)
    return _READINGS[transaction]


def _may_write_files(transaction: Transaction) -> Verdict:
    """Return whether Arrow may write this table's files, whatever its columns.

    Only Spark's writer fills generated columns. It also checks constraints: see
    `conditions_of_rows`. Ask `written_columns`.
    """
    metadata = transaction.metadata
    if transaction.changes_metadata:
        return no("the merge changes the table's schema")
    of_features = may_copy_in_place(transaction.table)
    if not of_features.ok:
        return of_features
    if transaction.partition_columns and metadata.is_on(_HOLD_PARTITION_COLUMNS):
        return no("the table stores its partition columns in the files too")
    if metadata.has_unused_names:
        return no("its columns have names for files that the table does not use")
    if transaction.codec.lower() not in _CODECS:
        return no(f"files are compressed with {transaction.codec}")
    by_settings = _by_settings(transaction)
    if not by_settings.ok or transaction.data_path.startswith("file:"):
        return by_settings
    return store_settings(transaction.table).verdict


def file_mode(transaction: Transaction) -> int:
    """Return the permissions that Hadoop gives to new files of the table.

    They are those of Hadoop's file system, which keeps the configuration that it was opened with.
    """
    permissions = Jvm.of(transaction.merge.spark).org.apache.hadoop.fs.permission.FsPermission
    system = transaction.directory.getFileSystem(transaction.hadoop_settings)
    return 0o666 & ~int(permissions.getUMask(system.getConf()).toShort())


def assumes_new_calendar(spark: SparkSession) -> bool:
    """Return whether Spark takes dates and times of files that do not name Spark as they are.

    It takes those of files by Spark before 3.0 for dates of the Julian calendar, if they are before
    1582, and its settings say what it does if the writer is not known. A further setting shifts
    INT96 times of other writers by the session's time zone.
    """
    shifts = is_on(spark, SHIFTS_INT96, otherwise=False)
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


def codec(transaction: Transaction) -> Codec:
    """Return the codec of new files."""
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
        others: Further new files.
    """
    now_ms = time.time_ns() // 1_000_000

    def added(
        path: str, partition: Mapping[str, str | None], size: int, statistics: str
    ) -> actions.LogAction:
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
