"""A version of a table: its rows, files, schema and properties.

`VersionOnDisk` is the newest one of a table on a disk, read from its log without Spark.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave.delta.jvm import (
    DeltaLog,
    DeltaSnapshot,
    JavaObject,
    Jvm,
    active,
    refuse_lenient_reads,
)
from deltaweave.delta.log.actions import (
    LogAction,
    TableMetadata,
    collected_actions,
    commit_name,
    physical_name,
)
from deltaweave.delta.log.file_list import (
    FileLayout,
    FileList,
    always_strict,
    files_not_in,
    filtering_exactly,
    layout_of,
    scan_of_known_files,
    strict_plan,
    vector_column,
    vector_of,
)
from deltaweave.delta.log.followed_tables import (
    MAX_FILES,
    Checksum,
    follow,
    known_files,
    versions_by_id,
)
from deltaweave.delta.log.statistic_bounds import num_physical_rows_column

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


@dataclass(eq=False)
class TableSnapshot:
    """A version of a table: Delta's log, and its snapshot at that version."""

    spark: SparkSession
    log: DeltaLog
    snapshot: DeltaSnapshot
    _collected_files: JavaObject | None = field(default=None, init=False, repr=False)

    @cached_property
    def version(self) -> int:
        """The version."""
        return int(self.snapshot.version())

    @cached_property
    def metadata(self) -> TableMetadata:
        """The version's columns, partition columns and properties."""
        return TableMetadata.of(self.spark, self.snapshot.metadata())

    @cached_property
    def feature_names(self) -> frozenset[str]:
        """The table features that the protocol lists or, in old versions, implies."""
        features = self.snapshot.protocol().implicitlyAndExplicitlySupportedFeatures()
        name = Jvm.of(self.spark).function("org.apache.spark.sql.delta.TableFeature", "name")
        return frozenset(str(features.map(name).mkString("\n")).split("\n")) - {""}

    @property
    def committed_at_ms(self) -> int:
        """When the version was committed, in ms since 1970, by the log."""
        return int(self.snapshot.timestamp())

    @property
    def id(self) -> str:
        """Delta's id of the table; a new table in the same place has another id."""
        return self.metadata.id

    @property
    def created_at_ms(self) -> int | None:
        """When the table with this id was created, in ms since 1970, or None."""
        return self.metadata.created_at_ms

    def last_applied(self, application_id: str) -> int | None:
        """Return the newest version that was committed with this application id, or None."""
        return self.applied_versions(application_id).get(application_id)

    def applied_versions(self, prefix: str = "") -> dict[str, int]:
        """Return the newest version of each application id that begins with a prefix."""
        pairs = self.listed_ids
        if pairs is None:
            pairs = versions_by_id(self.spark, self.snapshot.setTransactions())
        return {name: version for name, version in pairs.items() if name.startswith(prefix)}

    @cached_property
    def listed_ids(self) -> Mapping[str, int] | None:
        """The newest version of each application id, if the checksum lists them; no job runs."""
        return None if self._checksum is None else self._checksum.ids

    def applied_at_ms(self, application_id: str) -> int | None:
        """Return when an application id was last committed, in ms since 1970; None if unknown."""
        for each in Jvm.iterate(self.snapshot.setTransactions()):
            if each.appId() == application_id and each.lastUpdated().isDefined():
                return int(each.lastUpdated().get())
        return None

    @cached_property
    def data_path(self) -> str:
        """Where the table's data is."""
        return data_path(self.log)

    @property
    def schema(self) -> StructType:
        """The table's columns."""
        return self.metadata.schema

    @cached_property
    def physical_names(self) -> dict[str, str]:
        """What the table's files and statistics call each of its columns."""
        return {field.name: physical_name(field) for field in self.schema}

    def setting(self, name: str) -> str | None:
        """Return a table property's value, if it is set."""
        return self.metadata.properties.get(name)

    @property
    def partition_columns(self) -> list[str]:
        """The table's partition columns."""
        return list(self.metadata.partition_columns)

    @property
    def files(self) -> DataFrame:
        """All data files, distributed: a DataFrame of AddFile's fields."""
        return Jvm.of(self.spark).data_frame(self.snapshot.allFiles().toDF())

    def file_list(self) -> FileList:
        """Return all data files, with their statistics; one job if they are not known."""
        listed = self.listed_files()
        if listed is not None:
            return listed
        collected = self.snapshot.allFiles().collectAsList()
        files = Jvm.of(self.spark).seq_of(collected)
        if self._checksum is not None:
            follow(self._checksum, files)
        self._collected_files = files
        return self._as_list(files)

    def listed_files(self) -> FileList | None:
        """Return all data files, with their statistics, if they are known; no job runs."""
        files = self.files_in_checksum()
        if files is None:
            files = self._collected_files
        if files is None:
            files = self._known_files
        return None if files is None else self._as_list(files)

    def _as_list(self, files: JavaObject) -> FileList:
        return FileList(self.spark, files, self.data_path, have_statistics=True)

    def files_in_checksum(self) -> JavaObject | None:
        """Return the AddFiles, a Scala Seq, if the version's checksum lists them: up to 50."""
        return None if self._checksum is None else self._checksum.files

    @cached_property
    def _known_files(self) -> JavaObject | None:
        """The AddFiles, a Scala Seq, if the table is followed."""
        return None if self._checksum is None else known_files(self._checksum)

    @cached_property
    def _checksum(self) -> Checksum | None:
        """The version's checksum, if it has one."""
        found = self.snapshot.checksumOpt()
        if not found.isDefined():
            return None
        return Checksum(self.spark, self.log, self.data_path, self.version, found.get())

    @property
    def has_few_files(self) -> bool:
        """Whether the table has so few files, by the checksum, that it may be followed."""
        return self._checksum is not None and self._checksum.num_files <= MAX_FILES

    @cached_property
    def num_files(self) -> int:
        """How many data files there are; a job if the version has no checksum."""
        checksum = self._checksum
        return int(self.snapshot.numOfFiles()) if checksum is None else checksum.num_files

    @cached_property
    def size_in_bytes(self) -> int:
        """The total size of the data files, in bytes; a job if the version has no checksum."""
        checksum = self._checksum
        return int(self.snapshot.sizeInBytes()) if checksum is None else checksum.size_in_bytes

    def num_records(self) -> int | None:
        """Return the number of rows by statistics, or None if a file has none.

        One job over the file list; none where the files are known.
        """
        listed = self.listed_files()
        if listed is not None:
            return listed.num_records
        deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        rows = num_physical_rows_column() - deleted
        known = self.files.select(rows.alias("rows")).agg(
            F.sum("rows").alias("rows"), F.count_if(F.col("rows").isNull()).alias("unknown")
        )
        row = known.first()
        assert row is not None
        return None if row["unknown"] else int(row["rows"] or 0)

    def layout(self, small_file_bytes: int) -> FileLayout:
        """Return how the rows are spread over the files; one job over the file list."""
        return layout_of(self.files, small_file_bytes)

    def is_clustered(self) -> bool:
        """Return whether the table has clustering columns."""
        clustering = Jvm.of(self.spark).delta.skipping.clustering
        columns = Jvm.singleton(clustering, "ClusteringColumnInfo")
        return bool(columns.extractLogicalNames(self.snapshot).nonEmpty())

    def retention(self) -> timedelta:
        """Return how long the table keeps removed files before VACUUM deletes them."""
        delta = Jvm.of(self.spark).delta
        kept = delta.DeltaLog.tombstoneRetentionMillis(self.snapshot.metadata())
        return timedelta(milliseconds=int(kept))

    def read(self) -> DataFrame:
        """Read the rows of this version, strictly whenever they are evaluated."""
        reader = self.spark.read.format("delta").option("versionAsOf", self.version)
        return self._unskipped(always_strict(reader.load(data_path(self.log))))

    def read_whole(self) -> DataFrame:
        """Read the rows of this version, for queries that need most of them.

        If its files are few, they are listed here. Delta would list them in a job for every plan
        that Spark makes of a table with deletion vectors, several times for one query.
        """
        files = self.files_in_checksum()
        return self.read() if files is None else self.read_files(self._as_list(files))

    def read_change_feed(self, since: int) -> DataFrame:
        """Read the changes that the commits from version `since` up to this one made.

        Raises:
            SettingError: Spark passes over files that it cannot read.
        """
        refuse_lenient_reads(self.spark, self.data_path, "READ")
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", since).option("endingVersion", self.version)
        return reader.load(data_path(self.log))

    def read_files(self, files: FileList) -> DataFrame:
        """Read the rows of some files of this version strictly."""
        empty = Jvm.of(self.spark).option(None)
        with active(self.spark):  # whose settings the rows are read with
            rows = self.log.createDataFrame(self.snapshot, files.files, False, empty)
        scan = rows.queryExecution().analyzed()
        known = scan_of_known_files(self.spark, scan, files, self.log.options())
        plan = strict_plan(self.spark, scan if known is None else known)
        return self._unskipped(Jvm.of(self.spark).data_frame_of_plan(plan))

    def _unskipped(self, rows: DataFrame) -> DataFrame:
        """Read all rows that a filter holds for, also of decimals that were widened."""
        return filtering_exactly(rows) if self.metadata.widened_decimals else rows

    def files_without(self, known: DataFrame | None) -> FileList:
        """Select the files that are not in `known`, compared by its columns, fields of AddFile."""
        files = self.files if known is None else self.files.join(known, known.columns, "left_anti")
        return self._chosen(files.select(self.files.columns))

    def files_of(self, paths: DataFrame) -> FileList:
        """Select the files whose `path` is in `paths`."""
        return self._chosen(self.files.join(paths, "path", "left_semi").select(self.files.columns))

    def files_without_statistics(self) -> FileList:
        """Select the files without a row count in the log."""
        return self._chosen(self.files.where(num_physical_rows_column().isNull()))

    def files_not_in(self, other: TableSnapshot) -> FileList:
        """Select the files, with their deletion vectors, that another version lacks.

        A query over both file lists; no job if both are known.
        """
        theirs_listed, ours_listed = other.listed_files(), self.listed_files()
        if ours_listed is not None and theirs_listed is not None:
            return files_not_in(ours_listed, theirs_listed)
        vector = vector_column()
        theirs = other.files.select("path", vector.alias("vector"))
        ours = self.files.withColumn("vector", vector)
        new = ours.join(theirs, ["path", "vector"], "left_anti").select(self.files.columns)
        return self._chosen(new)

    def _chosen(self, files: DataFrame) -> FileList:
        return self._as_list(Jvm.of(self.spark).seq_of(collected_actions(files, "addFile")))


def data_path(log: DeltaLog) -> str:
    """Return where the table's data is, e.g. `file:/lake/orders`, not percent-encoded."""
    return str(log.dataPath().toString())


# `<version>.checkpoint.parquet`, with a UUID before the suffix, or one of several parts:
# `<version>.checkpoint.<part>.<number of parts>.parquet`.
_NAME = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.parquet|.+)")


class CheckpointFiles(NamedTuple):
    """The files of a checkpoint.

    Attributes:
        version: Its version; -1 if there is no checkpoint.
        names: The names of its files.
    """

    version: int
    names: list[str]


def newest_checkpoint(names: Iterable[str]) -> CheckpointFiles:
    """Return the files of the newest whole checkpoint.

    A writer that ended between the parts of a checkpoint leaves some of them, which are none.

    >>> whole = "00000000000000000004.checkpoint.parquet"
    >>> newest_checkpoint([whole, "00000000000000000007.checkpoint.0000000001.0000000002.parquet"])
    CheckpointFiles(version=4, names=['00000000000000000004.checkpoint.parquet'])
    """
    # By version and number of parts; 0 for a checkpoint that is one file.
    files = defaultdict[tuple[int, int], list[str]](list)
    for name in names:
        # Next to a checkpoint, Hadoop may have written hidden checksum files.
        if found := _NAME.fullmatch(name):
            version, number = found.groups()
            files[int(version), int(number or 0)].append(name)
    whole = {key: sorted(found) for key, found in files.items() if key[1] in (0, len(found))}
    if not whole:
        return CheckpointFiles(-1, [])
    newest = min(whole, key=lambda key: (-key[0], key[1]))  # one file before several parts
    return CheckpointFiles(newest[0], whole[newest])


_COMMIT = re.compile(r"\d{20}\.json")
# Decoded bytes of the log, which Python holds as objects several times as big; longer logs are left
# to Spark. Statistics that repeat may be a thousandth of their size in a checkpoint.
MAX_LOG_BYTES = 64 << 20
_ROWS_AT_ONCE = 1_000
# Features that do not change which files a log lists; a table with another is left to Delta.
_FEATURES = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint"}
_FEATURES |= {"vacuumProtocolCheck", "variantType", "typeWidening-preview", "variantType-preview"}
_OF_ADDS = ("path", "partitionValues", "size", "stats", "deletionVector", "clusteringProvider")


class _LeftToSparkError(ValueError):
    """The log is too long, or has a form that only Delta reads."""


@dataclass(frozen=True)
class VersionOnDisk:
    """A version of a table on a disk.

    Attributes:
        data_path: Where the table's data is, e.g. `file:/lake/orders`, as Delta has it.
        metadata: Its columns, partition columns and properties.
        adds: The AddFiles of its data files.
    """

    data_path: str
    version: int
    metadata: TableMetadata
    adds: Sequence[LogAction]


def newest_on_disk(table: Path) -> VersionOnDisk | None:
    """Return the newest version of the table in a directory; None if Spark has to read its log.

    Spark reads a log that is long or damaged or has a gap, whose checkpoint has a format of later
    tables, or that of a table with features that are not known here. The list of files is used only
    if its file count and size match the version's checksum, where there is one.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        return _read_version(table, table / "_delta_log")
    except (KeyError, TypeError, ValueError):  # Delta reports what is damaged
        return None


def _read_version(table: Path, log: Path) -> VersionOnDisk | None:
    names = [each.name for each in log.iterdir()]
    checkpoint, parts = newest_checkpoint(names)
    commits = sorted(each for each in names if _COMMIT.fullmatch(each))
    commits = [each for each in commits if int(each[:20]) > checkpoint]
    version = checkpoint + len(commits)
    read = [log / each for each in (*parts, *commits)]
    is_whole = not commits or commits[-1] == commit_name(version)
    if version < 0 or not is_whole or sum(each.stat().st_size for each in read) > MAX_LOG_BYTES:
        return None
    metadata: TableMetadata | None = None
    files: dict[tuple[str, str], LogAction] = {}
    for action in _actions(read):
        if "sidecar" in action:
            return None
        if added := action.get("add"):
            files[added["path"], vector_of(added)] = added
        elif removed := action.get("remove"):
            files.pop((removed["path"], vector_of(removed)), None)
        elif found := action.get("metaData"):
            metadata = TableMetadata.of_action(found)
        elif not set(action.get("protocol", {}).get("readerFeatures") or ()) <= _FEATURES:
            return None
    adds = list(files.values())
    if metadata is None or not _matches_checksum(log / f"{version:020}.crc", adds):
        return None
    return VersionOnDisk(f"file:{table.absolute()}", version, metadata, adds)


def _actions(files: Sequence[Path]) -> Iterator[LogAction]:
    """Yield the actions of a checkpoint's files and of commits, in order.

    Raises:
        _LeftToSparkError: Spark has to read them.
    """
    decoded_bytes = 0
    for file in files:
        if file.suffix == ".parquet":
            for batch in _in_checkpoint(file):
                decoded_bytes += batch.nbytes
                if decoded_bytes > MAX_LOG_BYTES:
                    raise _LeftToSparkError("the checkpoint is long")
                for row in batch.to_pylist():
                    yield {kind: _with_maps(each) for kind, each in row.items() if each is not None}
        elif ".checkpoint." in file.name:
            raise _LeftToSparkError("the checkpoint is JSON")
        else:
            with file.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines if line.strip())


def _in_checkpoint(file: Path) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as checkpoint:
        of_adds = {each.name for each in checkpoint.schema_arrow.field("add").type}
        if "stats" not in of_adds:
            raise _LeftToSparkError("the checkpoint has statistics as structs alone")
        columns = [f"add.{each}" for each in _OF_ADDS] + ["protocol", "metaData", "sidecar"]
        yield from checkpoint.iter_batches(_ROWS_AT_ONCE, columns=columns)


def _with_maps(action: LogAction) -> LogAction:
    """Return an action with dicts for its maps, which Arrow has as lists of pairs."""
    maps = ("partitionValues", "configuration")
    return {name: dict(value or ()) if name in maps else value for name, value in action.items()}


def _matches_checksum(file: Path, adds: Sequence[LogAction]) -> bool:
    try:
        checksum: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    size = sum(add["size"] for add in adds)
    return (checksum["numFiles"], checksum["tableSizeBytes"]) == (len(adds), size)
