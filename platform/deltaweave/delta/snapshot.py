"""Versions of a table and lists of its data files, read as Arrow and never object by object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession


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
    def rows(self) -> pyarrow.Table:
        """One row per file, in the order of the Seq.

        Columns: `path` (string, as the log spells it), `location` (string, absolute and percent-
        decoded), `size` (int64, bytes), `partition` (string, the partition values as JSON),
        `num_records` (int64, rows not marked deleted; null where the statistics lack them),
        `has_vector` (boolean, whether rows are marked deleted).
        """
        return self._query({})

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
        return self._with_rows(files, self.rows.filter(mask))

    def removals(self) -> JavaObject:
        """A Java list of the RemoveFile actions that take these files out of the table.

        They carry what the protocol wants of a remove (section "Add File and Remove File"):
        partition values, size, tags and deletion vector, as AddFile.remove does.
        """
        if not len(self):
            return jvm_.jvm(self.spark).java.util.ArrayList()
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
        chosen = getattr(new._jdf, "as")(encoder(self.spark, "addFile")).collectAsList()
        return FileList(self.spark, jvm_.seq_of(jvm_.jvm(self.spark), chosen), data_path(self.log))


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
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*):/{3,}", r"\1:/", unquote(path))


def _location(path_of_table: str) -> Column:
    """`decoded_location` of a file's `path`, as a Column."""
    # url_decode also reads "+" as a space, which paths do not mean.
    path = F.url_decode(F.replace("path", F.lit("+"), F.lit("%2B")))
    relative = F.concat(F.lit(path_of_table.rstrip("/") + "/"), path)
    scheme = "^([A-Za-z][A-Za-z0-9+.-]*):/"
    return (
        F.when(path.rlike(scheme), F.regexp_replace(path, scheme + "{3,}", "$1:/"))
        .when(path.startswith("/"), path)
        .otherwise(relative)
    )
