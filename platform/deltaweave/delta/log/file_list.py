"""Lists of a table's data files, read as Arrow tables and not object by object, and their scans.

A list also has the files' layout (how rows are spread over them), the files of some partitions, and
what distinguishes a file in one version from the same file in another: files never change, but
later commits may mark rows of a file as deleted, or give it row ids.
"""

from __future__ import annotations

import json
import posixpath
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import (
    IGNORING_FILES,
    Expression,
    JavaObject,
    Jvm,
    Plan,
    collected,
    grouped,
    json_text,
    reads_leniently,
    session_filtering_exactly,
)
from deltaweave.delta.log import actions
from deltaweave.delta.log.actions import (
    LogAction,
    TableMetadata,
    absolute_location,
    collected_actions,
    encoder,
    location_in,
)
from deltaweave.delta.log.statistic_bounds import (
    Statistics,
    num_physical_rows,
    num_physical_rows_column,
    parsed,
)

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession


FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
"""Spark's relation of files."""

STRICTLY = {key.rpartition(".")[2]: "false" for key in IGNORING_FILES}
"""The options of a read that fails at what it cannot read."""

# An option of a scan, of no meaning to a reader: Spark takes scans that differ by their session for
# the same, and would drop the change.
_EXACTLY = "deltaweave.filtersExactly"
_DELTA_FORMAT = "org.apache.spark.sql.delta.DeltaParquetFileFormat"
_NODE = "org.apache.spark.sql.catalyst.trees.TreeNode"

# Files in one query, which holds them once more as rows and in its tasks: some 100 MB of a driver.
FILES_OF_A_QUERY = 100_000

# With more files, the JVM calls for each of them take longer than they save.
FEW_FILES = 32
_HIDDEN = ("_", ".")  # names that Spark's own listing of files leaves out
_OF_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_OF_ROW_IDS = ("baseRowId", "defaultRowCommitVersion")


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Files of a list for which a boolean mask is true."""

    of: FileList
    mask: numpy.ndarray


@dataclass(eq=False)
class FileList:
    """Data files of one snapshot: a Scala Seq of AddFile, and what Python has read of them.

    Attributes:
        listed: The AddFiles, or where they are chosen from.
        data_path: Where the table's data is.
        have_statistics: Whether they have all of their statistics. Delta's data skipping leaves
            statistics out of its lists.
    """

    spark: SparkSession
    listed: JavaObject | _Chosen
    data_path: str
    have_statistics: bool = False
    _adds: list[actions.LogAction] | None = field(default=None, init=False, repr=False)
    _rows: pyarrow.Table | None = field(default=None, init=False, repr=False)

    @staticmethod
    def of_actions(spark: SparkSession, adds: list[actions.LogAction], data_path: str) -> FileList:
        """Build a list of new files from their AddFiles as JSON, which stay unchanged."""
        made = actions.from_json(spark, "actions.AddFile", adds)
        files = FileList(spark, Jvm.of(spark).seq_of(made), data_path)
        if len(adds) <= actions.FEW:
            files._adds = adds
        return files

    @cached_property
    def files(self) -> JavaObject:
        """The AddFiles; those of a part of a list are selected on first use."""
        if isinstance(self.listed, _Chosen):
            chosen = self.listed
            return Jvm.of(self.spark).select_where(chosen.of.files, chosen.mask)
        return self.listed

    def empty(self) -> FileList:
        """Return an empty list of files of the same table."""
        nothing = Jvm.of(self.spark).seq([])
        files = FileList(self.spark, nothing, self.data_path)
        files._rows = self.rows.slice(0, 0)
        return files

    @property
    def adds(self) -> list[actions.LogAction] | None:
        """The AddFiles as the log has them, in order; None if there are many."""
        if self._adds is None and len(self) <= actions.FEW:
            self._adds = actions.to_json(self.spark, self.files)
        return self._adds

    @cached_property
    def statistics(self) -> list[Statistics] | None:
        """The statistics of the files as text, in order; None if there are many files."""
        return None if self.adds is None else [parsed(add.get("stats")) for add in self.adds]

    @property
    def rows(self) -> pyarrow.Table:
        """One row per file, in the order of the Seq.

        Columns: `path` (string, as the log spells it), `location` (string, absolute and percent-
        decoded), `size` (int64, bytes), `modificationTime` (int64, ms), `partition` (string, the
        partition values as JSON), `num_records` (int64, rows not marked deleted; null where the
        statistics lack them), `has_vector` (boolean, whether rows are marked deleted), `num_marked`
        (int64, how many).
        """
        if self._rows is None:
            self._rows = self._read_rows()
        return self._rows

    def _read_rows(self) -> pyarrow.Table:
        import pyarrow as pa

        if self.adds is None or self.statistics is None:
            return self._query({})
        schema = pa.schema(
            {
                "path": pa.string(),
                "location": pa.string(),
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "partition": pa.string(),
                "num_records": pa.int64(),
                "has_vector": pa.bool_(),
                "num_marked": pa.int64(),
            }
        )
        rows = map(self._row, self.adds, self.statistics)
        return pa.Table.from_pylist(list(rows), schema)

    def _row(self, add: actions.LogAction, statistics: Statistics) -> dict[str, Any]:
        vector = add.get("deletionVector")
        marked = vector["cardinality"] if vector else 0
        physical = num_physical_rows(statistics)
        return {
            "path": add["path"],
            "location": absolute_location(add["path"], self.data_path),
            "size": add["size"],
            "modificationTime": add["modificationTime"],
            "partition": json.dumps(add["partitionValues"]),
            "num_records": None if physical is None else physical - marked,
            "has_vector": vector is not None,
            "num_marked": marked,
        }

    @cached_property
    def row_counts(self) -> numpy.ndarray:
        """The number of rows in each file, as floats; NaN if unknown."""
        counts: numpy.ndarray = self.rows["num_records"].to_numpy().astype(float)
        return counts

    def rows_with(self, columns: dict[str, Column]) -> pyarrow.Table:
        """Return `rows` with further columns computed from AddFile's fields, by one query."""
        table = self._query(columns)
        if self._rows is None:
            self._rows = table.drop_columns(list(columns))
        return table

    def _query(self, further: dict[str, Column]) -> pyarrow.Table:
        if (size := len(self)) > FILES_OF_A_QUERY:
            import pyarrow as pa

            files, step = self.files.toVector(), FILES_OF_A_QUERY
            slices = (files.slice(begin, begin + step) for begin in range(0, size, step))
            parts = [FileList(self.spark, each, self.data_path)._query(further) for each in slices]
            return pa.concat_tables(parts)
        deleted = F.coalesce(F.col("deletionVector.cardinality"), F.lit(0))
        num_records = num_physical_rows_column() - deleted
        rows = self.data_frame.select(
            "path",
            location_in(self.data_path).alias("location"),
            "size",
            "modificationTime",
            json_text(F.col("partitionValues"), with_nulls=True, as_in_log=True).alias("partition"),
            num_records.alias("num_records"),
            F.col("deletionVector").isNotNull().alias("has_vector"),
            deleted.alias("num_marked"),
            *[value.alias(name) for name, value in further.items()],
        )
        return collected(rows)

    @property
    def data_frame(self) -> DataFrame:
        """The files as a DataFrame of AddFile's fields; it is local data and needs no scan."""
        of_adds = encoder(self.spark, "addFile")
        dataset = self.spark._jsparkSession.createDataset(self.files, of_adds)
        return Jvm.of(self.spark).data_frame(dataset.toDF())

    def __len__(self) -> int:
        return self._size if self._rows is None else int(self._rows.num_rows)

    @cached_property
    def _size(self) -> int:
        return int(self.files.size())

    @cached_property
    def size_in_bytes(self) -> int:
        """Total size of the files, in bytes."""
        import pyarrow.compute as pc

        return pc.sum(self.rows["size"]).as_py() or 0

    @cached_property
    def num_partitions(self) -> int:
        """How many partitions the files are in; 0 for a table that is not partitioned."""
        texts = self.rows["partition"].unique().to_pylist()
        # Writers, and Scala's maps, have the keys in orders of their own.
        partitions = {tuple(sorted(json.loads(text).items())) for text in texts}
        return len(partitions - {()})

    @cached_property
    def num_records(self) -> int | None:
        """The number of rows in the files, or None if a file has no statistics."""
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

    def union(self, others: FileList) -> FileList:
        """Return the files of both lists, which are of the same table."""
        return FileList(self.spark, self.files.appendedAll(others.files), self.data_path)

    def where(self, mask: numpy.ndarray) -> FileList:
        """Select the files for which the boolean mask is true."""
        if mask.all():
            return self
        files = FileList(
            self.spark, _Chosen(self, mask.copy()), self.data_path, self.have_statistics
        )
        if self._adds is not None:
            files._adds = list(compress(self._adds, mask))
        files._rows = self.rows.filter(mask)  # that saves a Spark query
        return files

    def with_paths(self, paths: Collection[str]) -> FileList:
        """Select the files with these paths, as the log spells them."""
        import numpy as np

        return self.where(np.array([path in paths for path in self.paths], dtype=bool))

    def excluding(self, paths: Collection[str]) -> FileList:
        """Select the files without these paths, as the log spells them."""
        import numpy as np

        return self.where(np.array([path not in paths for path in self.paths], dtype=bool))

    def without_vectors(self) -> FileList:
        """Return the files with all of their rows, those marked deleted included."""
        vector = F.lit(None).cast(self.data_frame.schema["deletionVector"].dataType)
        whole = self.data_frame.withColumn("deletionVector", vector)
        files = Jvm.of(self.spark).seq_of(collected_actions(whole, "addFile"))
        return FileList(self.spark, files, self.data_path)

    def removals(self, *, data_change: bool = True) -> JavaObject:
        """Build a Java list of the RemoveFile actions that take these files out of the table.

        `data_change` says whether the table's rows change by that. The RemoveFiles have the fields
        that the protocol asks for (section "Add File and Remove File"): partition values, size,
        tags and deletion vector, as AddFile.remove does.
        """
        if self.adds is not None:
            now_ms = time.time_ns() // 1_000_000
            removed = [
                {**actions.removal(add, now_ms), "dataChange": data_change} for add in self.adds
            ]
            return actions.from_json(self.spark, "actions.RemoveFile", removed)
        adds = self.data_frame
        removes = adds.select(
            *[name for name in actions.KEPT_BY_REMOVAL if name in adds.columns],
            # One timestamp for all, taken on the driver.
            F.unix_millis(F.current_timestamp()).alias("deletionTimestamp"),
            F.lit(data_change).alias("dataChange"),
            F.lit(True).alias("extendedFileMetadata"),
        )
        return collected_actions(removes, "removeFile")


@dataclass(frozen=True)
class FileLayout:
    """The distribution of rows over the files of a version, by the log alone.

    Attributes:
        files: How many data files there are.
        size_in_bytes: Their total size.
        small_files: Files below a given size that share their partition with another such file.
            OPTIMIZE would compact them.
        unclustered_files: Files that were not clustered yet.
        rows: Rows in the files, those marked deleted included; files without statistics count as
            empty.
        deleted_rows: Rows marked deleted by deletion vectors.
        files_without_statistics: Files without a row count in the log.
    """

    files: int
    size_in_bytes: int
    small_files: int
    unclustered_files: int
    rows: int
    deleted_rows: int
    files_without_statistics: int


def layout_of(files: DataFrame, small_file_bytes: int) -> FileLayout:
    """Measure the layout of a version; one job.

    `files` has a row of AddFile's fields for each data file.
    """
    small = F.count_if(F.col("size") < small_file_bytes)
    rows = num_physical_rows_column()
    of_partition = [
        F.count("*").alias("files"),
        F.sum("size").alias("size_in_bytes"),
        F.when(small > 1, small).otherwise(0).alias("small_files"),
        F.count_if(F.col("clusteringProvider").isNull()).alias("unclustered_files"),
        F.sum(rows).alias("rows"),
        F.sum("deletionVector.cardinality").alias("deleted_rows"),
        F.count_if(rows.isNull()).alias("files_without_statistics"),
    ]
    partitions = grouped(files, [json_text(F.col("partitionValues"), as_in_log=True)], of_partition)
    names = [each.name for each in fields(FileLayout)]
    row = partitions.agg(*[F.sum(name).alias(name) for name in names]).first()
    assert row is not None
    return FileLayout(**{name: int(row[name] or 0) for name in names})


def layout_in_log(adds: Sequence[LogAction], small_file_bytes: int) -> FileLayout:
    """Measure the layout of files by their AddFiles, without Spark."""
    small = Counter(
        tuple(sorted(add["partitionValues"].items()))
        for add in adds
        if add["size"] < small_file_bytes
    )
    rows = [num_physical_rows(parsed(add.get("stats"))) for add in adds]
    vectors = [add.get("deletionVector") or {} for add in adds]
    return FileLayout(
        files=len(adds),
        size_in_bytes=sum(add["size"] for add in adds),
        small_files=sum(files for files in small.values() if files > 1),
        unclustered_files=sum(add.get("clusteringProvider") is None for add in adds),
        rows=sum(each or 0 for each in rows),
        deleted_rows=sum(each.get("cardinality") or 0 for each in vectors),
        files_without_statistics=rows.count(None),
    )


class FileVersion(NamedTuple):
    """A file at one version of the table.

    Attributes:
        path: As the log spells it.
        row_ids: Its row ids, if the table tracks rows.
        vector: Its deletion vector; two with the same text mark the same rows.
    """

    path: str
    row_ids: str
    vector: str


def file_versions(files: FileList) -> list[FileVersion]:
    """Return the files as their version of the table has them, in order; a query for many."""
    if files.adds is not None:
        return [
            FileVersion(add["path"], _joined_texts(add, _OF_ROW_IDS), vector_of(add))
            for add in files.adds
        ]
    found = files.rows_with({"row_ids": _joined_texts_of(_OF_ROW_IDS), "vector": vector_column()})
    columns = [found[name].to_pylist() for name in FileVersion._fields]
    return [FileVersion(*each) for each in zip(*columns, strict=True)]


def files_not_in(files: FileList, others: FileList) -> FileList:
    """Select the files that are not among the others, or have another deletion vector there."""
    import numpy as np

    known = {(each.path, each.vector) for each in file_versions(others)}
    are_new = [(each.path, each.vector) not in known for each in file_versions(files)]
    return files.where(np.array(are_new, dtype=bool))


def vector_column() -> Column:
    """Build the text of a deletion vector in rows of AddFiles, equal to `FileVersion.vector`."""
    return _joined_texts_of([f"deletionVector.{name}" for name in _OF_VECTOR])


def _joined_texts_of(names: Sequence[str]) -> Column:
    texts = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in names]
    return F.concat_ws("|", *texts)


def vector_of(action: LogAction) -> str:
    """Return the text of a deletion vector of an AddFile or RemoveFile, as `FileVersion.vector`."""
    return _joined_texts(action.get("deletionVector") or {}, _OF_VECTOR)


def _joined_texts(values: LogAction, names: tuple[str, ...]) -> str:
    return "|".join("" if values.get(name) is None else str(values[name]) for name in names)


def in_partitions(
    files: FileList, partition_schema: JavaObject, predicates: Sequence[Expression]
) -> set[str] | None:
    """Return the paths of the files whose partitions can satisfy all predicates.

    None if one reads other columns than partition columns.
    """
    names = {field["name"] for field in json.loads(partition_schema.json())["fields"]}
    for predicate in predicates:
        if not {attribute.name() for attribute in Jvm.iterate(predicate.references())} <= names:
            return None
    jvm = Jvm.of(files.spark)
    chosen = jvm.delta.DeltaLog.filterFileList(
        partition_schema,
        files.data_frame._jdf,
        jvm.seq(predicates),
        jvm.seq([]),
        True,
    )
    return {row["path"] for row in jvm.data_frame(chosen).select("path").collect()}


def scan_of_known_files(
    spark: SparkSession, scan: Plan, files: FileList, options: JavaObject
) -> JavaObject | None:
    """Change a scan to read listed files; None if Delta's list is needed, or is as fast.

    Delta's list has more than paths: partitions, deletion vectors, row ids.
    """
    if scan.getClass().getSimpleName() != "LogicalRelation":
        return None  # padded text of CHAR columns is above the scan
    if not 0 < len(files) <= FEW_FILES or scan.relation().partitionSchema().length():
        return None
    adds = files.adds or []
    if any(add.get("deletionVector") or "baseRowId" in add for add in adds):
        return None
    if any(posixpath.basename(path).startswith(_HIDDEN) for path in files.paths):
        return None
    index = _index(spark, files, options)
    # A session may lack the cache that holds the list; Spark then lists the files itself.
    return scan_with_index(spark, scan, index) if index.allFiles().size() == len(files) else None


def scan_with_index(spark: SparkSession, scan: Plan, index: JavaObject) -> JavaObject:
    """Change a scan, a LogicalRelation, to read the files of another index."""
    return changed_scan(spark, scan, index, scan.relation().options())


def changed_scan(
    spark: SparkSession, scan: Plan, index: JavaObject, options: JavaObject
) -> JavaObject:
    """Change a scan, a LogicalRelation, to read an index's files with these options."""
    relation = scan.relation()
    changed = relation.copy(
        index,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        options,
        spark._jsparkSession,
    )
    return scan.copy(changed, scan.output(), scan.catalogTable(), scan.isStreaming(), scan.stream())


def _index(spark: SparkSession, files: FileList, options: JavaObject) -> JavaObject:
    """Build Spark's own file index, which gets its list of files in advance."""
    jvm = Jvm.of(spark)
    gateway: Any = spark.sparkContext._gateway
    datasources = jvm.sql.execution.datasources
    hadoop = jvm.org.apache.hadoop.fs
    listed = Jvm.singleton(datasources, "FileStatusCache").getOrCreate(spark._jsparkSession)
    paths = []
    for add, location in zip(files.adds or [], files.rows["location"].to_pylist(), strict=True):
        path = hadoop.Path(location)
        statuses = gateway.new_array(hadoop.FileStatus, 1)
        statuses[0] = hadoop.FileStatus(add["size"], False, 0, 1, add["modificationTime"], path)
        listed.putLeafFiles(path, statuses)
        paths.append(path)
    none = jvm.option(None)
    not_partitioned = Jvm.singleton(datasources, "PartitionSpec").emptySpec()
    index = datasources.InMemoryFileIndex(
        spark._jsparkSession,
        jvm.seq(paths),
        options,
        none,
        listed,
        jvm.option(not_partitioned),
        none,
    )
    listed.invalidateAll()
    return index


def strict(rows: DataFrame) -> DataFrame:
    """Read the rows of a table strictly.

    Where no setting is lenient they stay as they are: Spark may take them from its cache, which
    commits renew.
    """
    return always_strict(rows) if reads_leniently(rows.sparkSession) else rows


def always_strict(rows: DataFrame) -> DataFrame:
    """Read the rows of a query strictly, also if a later setting is lenient."""
    spark = rows.sparkSession
    plan = strict_plan(spark, rows._jdf.queryExecution().analyzed())
    return Jvm.of(spark).data_frame_of_plan(plan)


def strict_plan(spark: SparkSession, plan: Plan) -> JavaObject:
    """Make a plan's scans of files strict."""
    children = list(Jvm.iterate(plan.children()))
    if children:
        below = [strict_plan(spark, child) for child in children]
        return plan.withNewChildren(Jvm.of(spark).seq(below))
    options = options_of_files(spark, plan)
    if options is None:
        return plan
    for key, value in STRICTLY.items():
        options = options.updated(key, value)
    return changed_scan(spark, plan, plan.relation().location(), options)


def filtering_exactly(rows: DataFrame) -> DataFrame:
    """Read tables of a query with all rows that its filters hold for.

    Whatever filters Spark adds to a scan, it passes none to Parquet files that compares a decimal
    whose column was widened: see `TableMetadata.widened_decimals`. Rows in Spark's cache stay.
    """
    spark, jvm = rows.sparkSession, Jvm.of(rows.sparkSession)
    query = rows._jdf.queryExecution()
    if not scans_of_widened_decimals(spark, query.analyzed()):
        return rows
    plan = query.withCachedData()
    scans = scans_of_widened_decimals(spark, plan)
    own = session_filtering_exactly(spark)
    changed = [_filtering_exactly(own, scan) for scan in scans]
    of_scans = jvm.map_of_pairs(jvm.seq(scans), jvm.seq(changed))
    return jvm.data_frame_of_plan(plan.transformWithSubqueries(of_scans))


def scans_of_widened_decimals(spark: SparkSession, plan: Plan) -> list[JavaObject]:
    """Return the scans of a plan, and of its subqueries, of tables with such columns."""
    jvm = Jvm.of(spark)

    def make() -> JavaObject:
        partial = Jvm.singleton(jvm.scala, "PartialFunction")
        return partial.fromFunction(jvm.function(_NODE, "nodeName"))

    names = plan.collectWithSubqueries(jvm.made_once("names of nodes", make))
    if "LogicalRelation" not in str(names.mkString(" ")):
        return []
    plans = [plan, *Jvm.iterate(plan.subqueriesAll())]
    leaves = [leaf for each in plans for leaf in Jvm.iterate(each.collectLeaves())]
    return [leaf for leaf in leaves if _has_widened_decimals(spark, leaf)]


def _filtering_exactly(own: SparkSession, scan: Plan) -> JavaObject:
    """Change a scan to read by a session of `session_filtering_exactly`."""
    relation = scan.relation()
    options = relation.options().updated(_EXACTLY, "true")
    return changed_scan(own, scan, relation.location(), options)


def _has_widened_decimals(spark: SparkSession, scan: Plan) -> bool:
    """Return whether a leaf of a plan reads a Delta table with decimals that were widened."""
    if options_of_files(spark, scan) is None:
        return False
    file_format = scan.relation().fileFormat()
    if not Jvm.of(spark).is_a(file_format, _DELTA_FORMAT):
        return False
    if "typeWidening" not in str(file_format.protocol().readerFeatures().toString()):
        return False
    return bool(TableMetadata.of(spark, file_format.metadata()).widened_decimals)


def options_of_files(spark: SparkSession, plan: Plan) -> JavaObject | None:
    """Return the options by which a node of a plan reads files; None if it reads none."""
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = plan.relation()
    if not Jvm.of(spark).is_a(relation, FILE_RELATION):
        return None
    catalyst = Jvm.of(spark).catalyst
    return Jvm.singleton(catalyst.util, "CaseInsensitiveMap").apply(relation.options())
