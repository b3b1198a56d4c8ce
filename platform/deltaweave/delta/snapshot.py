"""Versions of a table and lists of its data files, read as Arrow and never object by object."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave import errors
from deltaweave.delta import actions
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession


_SCHEME = "^([A-Za-z][A-Za-z0-9+.-]*):/"


@dataclass(frozen=True)
class FileList:
    """Data files of one snapshot: a Scala Seq of AddFile, and what Python needs to know of them.

    Attributes:
        spark: The session.
        files: The AddFiles.
        data_path: Where the table's data is.
        have_statistics: Whether they came with all of their statistics, which Delta leaves out of
            the lists that its data skipping makes.
    """

    spark: SparkSession
    files: JavaObject
    data_path: str
    have_statistics: bool = False

    def none(self) -> FileList:
        """The list of no files of the same table."""
        nothing = jvm_.seq(jvm_.jvm(self.spark), [])
        return self._with_rows(FileList(self.spark, nothing, self.data_path), self.rows.slice(0, 0))

    @staticmethod
    def _with_rows(files: FileList, rows: pyarrow.Table) -> FileList:
        """The list with its `rows`, which are known already: each query of Spark takes its time."""
        files.__dict__["rows"] = rows
        return files

    @cached_property
    def adds(self) -> list[actions.Action] | None:
        """The AddFiles as the log spells them, in their order; None where they are many."""
        if len(self) > actions.FEW:
            return None
        return actions.to_json(jvm_.jvm(self.spark), self.files)

    @cached_property
    def rows(self) -> pyarrow.Table:
        """One row per file, in the order of the Seq.

        Columns: `path` (string, as the log spells it), `location` (string, absolute and percent-
        decoded), `size` (int64, bytes), `partition` (string, the partition values as JSON),
        `num_records` (int64, rows not marked deleted; null where the statistics lack them),
        `has_vector` (boolean, whether rows are marked deleted), `num_marked` (int64, how many).
        """
        import pyarrow as pa

        if self.adds is None:
            return self._query({})
        schema = pa.schema(
            {
                "path": pa.string(),
                "location": pa.string(),
                "size": pa.int64(),
                "partition": pa.string(),
                "num_records": pa.int64(),
                "has_vector": pa.bool_(),
                "num_marked": pa.int64(),
            }
        )
        return pa.Table.from_pylist([self._row(add) for add in self.adds], schema)

    def _row(self, add: actions.Action) -> dict[str, Any]:
        vector = add.get("deletionVector")
        marked = vector["cardinality"] if vector else 0
        physical = json.loads(add.get("stats") or "{}").get("numRecords")
        path = decoded_location(add["path"])
        is_absolute = path.startswith("/") or re.match(_SCHEME, path)
        return {
            "path": add["path"],
            "location": path if is_absolute else f"{self.data_path.rstrip('/')}/{path}",
            "size": add["size"],
            "partition": json.dumps(add["partitionValues"]),
            "num_records": None if physical is None else physical - marked,
            "has_vector": vector is not None,
            "num_marked": marked,
        }

    def rows_with(self, columns: dict[str, Column]) -> pyarrow.Table:
        """`rows` with further columns computed from AddFile's fields; one query gives both."""
        table = self._query(columns)
        self.__dict__.setdefault("rows", table.drop_columns(list(columns)))
        return table

    def _query(self, further: dict[str, Column]) -> pyarrow.Table:
        deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        num_records = F.get_json_object("stats", "$.numRecords").cast("long") - deleted
        return self.data_frame.select(
            "path",
            _location(self.data_path).alias("location"),
            "size",
            F.to_json("partitionValues", {"ignoreNullFields": "false"}).alias("partition"),
            num_records.alias("num_records"),
            F.col("deletionVector").isNotNull().alias("has_vector"),
            deleted.alias("num_marked"),
            *[value.alias(name) for name, value in further.items()],
        ).toArrow()

    @property
    def data_frame(self) -> DataFrame:
        """The files as a DataFrame of AddFile's fields: local data, read without a scan."""
        return jvm_.data_frame(self.spark, self._dataset.toDF())

    @property
    def _dataset(self) -> JavaObject:
        return self.spark._jsparkSession.createDataset(self.files, encoder(self.spark, "addFile"))

    def __len__(self) -> int:
        return self.rows.num_rows if "rows" in self.__dict__ else int(self.files.size())

    @cached_property
    def size_in_bytes(self) -> int:
        """Total size of the files, in bytes."""
        import pyarrow.compute as pc

        return pc.sum(self.rows["size"]).as_py() or 0

    @cached_property
    def num_partitions(self) -> int:
        """How many partitions the files are in; 0 for a table that is not partitioned."""
        partitions = self.rows["partition"].unique().to_pylist()
        return 0 if partitions in ([], ["{}"]) else len(partitions)

    @cached_property
    def num_records(self) -> int | None:
        """Rows in the files, or None where some file's statistics do not say."""
        import pyarrow.compute as pc

        counts = self.rows["num_records"]
        return None if counts.null_count else pc.sum(counts).as_py() or 0

    @property
    def num_vectors(self) -> int:
        """How many of the files have a deletion vector."""
        import pyarrow.compute as pc

        return int(pc.sum(self.rows["has_vector"]).as_py() or 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files' paths as the log spells them."""
        return tuple(self.rows["path"].to_pylist())

    def and_also(self, others: FileList) -> FileList:
        """These files and others of the same table."""
        return FileList(self.spark, self.files.appendedAll(others.files), self.data_path)

    def where(self, mask: numpy.ndarray) -> FileList:
        """The files whose place in the boolean mask is true."""
        if mask.all():
            return self
        chosen = jvm_.select_where(jvm_.jvm(self.spark), self.files, mask)
        files = FileList(self.spark, chosen, self.data_path, self.have_statistics)
        if self.__dict__.get("adds") is not None:
            files.__dict__["adds"] = list(compress(self.__dict__["adds"], mask))
        return self._with_rows(files, self.rows.filter(mask))

    def without_vectors(self) -> FileList:
        """The files with all rows that were ever in them, marked deleted or not."""
        vector = F.lit(None).cast(self.data_frame.schema["deletionVector"].dataType)
        whole = self.data_frame.withColumn("deletionVector", vector)
        files = getattr(whole._jdf, "as")(encoder(self.spark, "addFile")).collectAsList()
        return FileList(self.spark, jvm_.seq_of(jvm_.jvm(self.spark), files), self.data_path)

    def removals(self) -> JavaObject:
        """A Java list of the RemoveFile actions that take these files out of the table.

        They carry what the protocol wants of a remove (section "Add File and Remove File"):
        partition values, size, tags and deletion vector, as AddFile.remove does.
        """
        if self.adds is not None:
            now_ms = time.time_ns() // 1_000_000
            removed = [actions.removal(add, now_ms) for add in self.adds]
            return actions.from_json(jvm_.jvm(self.spark), "RemoveFile", removed)
        # One timestamp for all, taken on the driver.
        now = F.unix_millis(F.current_timestamp())
        removes = self.data_frame.select(
            "path",
            now.alias("deletionTimestamp"),
            F.lit(True).alias("dataChange"),
            F.lit(True).alias("extendedFileMetadata"),
            "partitionValues",
            "size",
            "tags",
            "deletionVector",
            "baseRowId",
            "defaultRowCommitVersion",
            "stats",
            "backReference",
        )
        return getattr(removes._jdf, "as")(encoder(self.spark, "removeFile")).collectAsList()


@dataclass(frozen=True)
class FileLayout:
    """How the rows of a version lie in its files, by the log alone.

    Attributes:
        files: How many data files there are.
        size_in_bytes: Their total size.
        small_files: Files below a given size that share their partition with another such: what
            OPTIMIZE would compact.
        unclustered_files: Files that no clustering has arranged yet.
        rows: Rows in the files, those marked deleted among them; files without statistics count
            as empty.
        deleted_rows: Rows marked deleted by deletion vectors.
    """

    files: int
    size_in_bytes: int
    small_files: int
    unclustered_files: int
    rows: int
    deleted_rows: int


@dataclass(frozen=True)
class TableSnapshot:
    """A version of a table: Delta's log, and its snapshot at that version."""

    spark: SparkSession
    log: JavaObject
    snapshot: JavaObject

    @property
    def version(self) -> int:
        """The version."""
        return int(self.snapshot.version())

    @property
    def data_path(self) -> str:
        """Where the table's data is."""
        return data_path(self.log)

    @cached_property
    def schema(self) -> StructType:
        """The table's columns."""
        return StructType.fromJson(json.loads(self.snapshot.metadata().schemaString()))

    @cached_property
    def physical_names(self) -> dict[str, str]:
        """What the table's files and statistics call each of its columns."""
        key = "delta.columnMapping.physicalName"
        return {field.name: (field.metadata or {}).get(key, field.name) for field in self.schema}

    def setting(self, name: str) -> str | None:
        """A table property's value, if it is set."""
        value = self.snapshot.metadata().configuration().get(name)
        return str(value.get()) if value.isDefined() else None

    @property
    def files(self) -> DataFrame:
        """All data files, distributed: a DataFrame of AddFile's fields."""
        return jvm_.data_frame(self.spark, self.snapshot.allFiles().toDF())

    def num_records(self) -> int | None:
        """Rows in the table by its statistics, or None where some file's do not say."""
        deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        rows = F.get_json_object("stats", "$.numRecords").cast("long") - deleted
        known = self.files.select(rows.alias("rows")).agg(
            F.sum("rows").alias("rows"), F.count_if(F.col("rows").isNull()).alias("unknown")
        )
        row = known.first()
        assert row is not None
        return None if row["unknown"] else int(row["rows"] or 0)

    def layout(self, small_file_bytes: int) -> FileLayout:
        """How the rows lie in the files; one job over the file list.

        Args:
            small_file_bytes: Size below which a file is small.
        """
        small = F.count_if(F.col("size") < small_file_bytes)
        rows = F.get_json_object("stats", "$.numRecords").cast("long")
        partitions = self.files.groupBy(F.to_json("partitionValues")).agg(
            F.count("*").alias("files"),
            F.sum("size").alias("size_in_bytes"),
            F.when(small > 1, small).otherwise(0).alias("small_files"),
            F.count_if(F.col("clusteringProvider").isNull()).alias("unclustered_files"),
            F.sum(rows).alias("rows"),
            F.sum("deletionVector.cardinality").alias("deleted_rows"),
        )
        names = [each.name for each in fields(FileLayout)]
        row = partitions.agg(*[F.sum(name).alias(name) for name in names]).first()
        assert row is not None
        return FileLayout(**{name: int(row[name] or 0) for name in names})

    def is_clustered(self) -> bool:
        """Whether the table has clustering columns."""
        clustering = jvm_.jvm(self.spark).org.apache.spark.sql.delta.skipping.clustering
        columns = jvm_.singleton(clustering, "ClusteringColumnInfo")
        return bool(columns.extractLogicalNames(self.snapshot).nonEmpty())

    def retention(self) -> timedelta:
        """How long the table keeps files that were removed from it, before VACUUM deletes them."""
        delta = jvm_.jvm(self.spark).org.apache.spark.sql.delta
        kept = delta.DeltaLog.tombstoneRetentionMillis(self.snapshot.metadata())
        return timedelta(milliseconds=int(kept))

    def read(self) -> DataFrame:
        """The rows of this version."""
        reader = self.spark.read.format("delta").option("versionAsOf", self.version)
        return reader.load(data_path(self.log))

    @property
    def keeps_change_feed(self) -> bool:
        """Whether the table records its changes for the change data feed."""
        setting = self.snapshot.metadata().configuration().get("delta.enableChangeDataFeed")
        return bool(setting.isDefined() and setting.get().lower() == "true")

    def read_change_feed(self, since: int) -> DataFrame:
        """The changes that the commits from version `since` up to this one made."""
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", since).option("endingVersion", self.version)
        return reader.load(data_path(self.log))

    def read_files(self, files: FileList) -> DataFrame:
        """The rows of some files of this version."""
        empty = jvm_.option(jvm_.jvm(self.spark), None)
        return jvm_.data_frame(
            self.spark, self.log.createDataFrame(self.snapshot, files.files, False, empty)
        )

    def files_without(self, known: DataFrame | None) -> FileList:
        """The files whose `path` is not among those known."""
        files = self.files if known is None else self.files.join(known, "path", "left_anti")
        return self._chosen(files.select(self.files.columns))

    def files_not_in(self, other: TableSnapshot) -> FileList:
        """The files (with their deletion vectors) of this version that another does not have."""
        vector = F.coalesce(
            F.concat_ws(
                "|",
                "deletionVector.storageType",
                "deletionVector.pathOrInlineDv",
                F.col("deletionVector.offset").cast("string"),
            ),
            F.lit(""),
        )
        theirs = other.files.select("path", vector.alias("vector"))
        ours = self.files.withColumn("vector", vector)
        new = ours.join(theirs, ["path", "vector"], "left_anti").select(self.files.columns)
        return self._chosen(new)

    def _chosen(self, files: DataFrame) -> FileList:
        chosen = getattr(files._jdf, "as")(encoder(self.spark, "addFile")).collectAsList()
        return FileList(self.spark, jvm_.seq_of(jvm_.jvm(self.spark), chosen), self.data_path)


def delta_log(spark: SparkSession, parts: list[str]) -> JavaObject:
    """Delta's log of the table that the name parts mean; `["delta", path]` means a path."""
    view = jvm_.jvm(spark)
    label = ".".join(parts)
    if len(parts) == 2 and parts[0].lower() == "delta":
        with translated(label, operation="opening"):
            return view.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, parts[1])
    with translated(label, operation="opening"):
        catalyst = view.org.apache.spark.sql.catalyst
        empty = jvm_.option(view, None)
        database = jvm_.option(view, parts[-2]) if len(parts) > 1 else empty
        identifier = catalyst.TableIdentifier(parts[-1], database, empty)
        table = spark._jsparkSession.sessionState().catalog().getTableMetadata(identifier)
        return view.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)


def latest(spark: SparkSession, log: JavaObject) -> TableSnapshot:
    """The newest version of a table."""
    empty = jvm_.option(jvm_.jvm(spark), None)
    return TableSnapshot(spark, log, log.update(False, empty, empty))


def at_version(spark: SparkSession, log: JavaObject, version: int) -> TableSnapshot:
    """A version of a table.

    Raises:
        TableNotFoundError: The log no longer holds, or never held, that version.
    """
    newest = latest(spark, log)
    if newest.version == version:
        return newest
    if version > newest.version:
        raise errors.TableNotFoundError(
            f"it has no version {version}; the newest is {newest.version}.",
            table=data_path(log),
            operation="reading a version",
        )
    empty = jvm_.option(jvm_.jvm(spark), None)
    with translated(data_path(log), operation="reading a version", version=version):
        return TableSnapshot(spark, log, log.getSnapshotAt(version, empty, empty, True))


def data_path(log: JavaObject) -> str:
    """Where the table's data is, e.g. `file:/lake/orders`, not percent-encoded."""
    return str(log.dataPath().toString())


def encoder(spark: SparkSession, action: str) -> JavaObject:
    """Spark's encoder of an action, e.g. `addFile`."""
    implicits = jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta.implicits, "package")
    return getattr(implicits, f"{action}Encoder")()


def total_size(spark: SparkSession, change_files: JavaObject) -> int:
    """Total size of a Scala Seq of AddCDCFile, in bytes."""
    dataset = spark._jsparkSession.createDataset(change_files, encoder(spark, "addCdcFile"))
    row = jvm_.data_frame(spark, dataset.toDF()).agg(F.sum("size").alias("size")).first()
    assert row is not None
    return int(row["size"] or 0)


def decoded_location(path: str) -> str:
    """An absolute path with its percent-encoding undone, `scheme:///x` spelt `scheme:/x`.

    Writers encode differently ("ü" as it is, or as %C3%BC), so names are compared decoded
    (document row C4).
    """
    return re.sub(_SCHEME + "{3,}", r"\1:/", unquote(path))


def decoded(path: Column) -> Column:
    """`decoded_location` as a Column."""
    # url_decode also reads "+" as a space, which paths do not mean.
    path = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, _SCHEME + "{3,}", "$1:/")


def _location(path_of_table: str) -> Column:
    """The `decoded_location` of a file by its `path` in the log, as a Column."""
    path = decoded(F.col("path"))
    is_absolute = path.rlike(_SCHEME) | path.startswith("/")
    return F.when(is_absolute, path).otherwise(
        F.concat(F.lit(path_of_table.rstrip("/") + "/"), path)
    )
