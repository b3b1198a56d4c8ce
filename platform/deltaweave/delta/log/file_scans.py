"""Scans of listed files, which do not ask Delta for the list again and read strictly.

Delta's own list of files is a query that Spark plans for each scan, and twice for tables with
deletion vectors. That takes 20 ms or more each time, in a merge of less than a second.

A strict read fails at what it cannot read, whatever the session's settings are.
`spark.sql.files.ignoreCorruptFiles` and `ignoreMissingFiles` make Spark pass over files, or the
rest of a file. A merge, statistics or an index would take their rows as missing, for good. Delta
reads its own log in this way, too (DeltaLog.indexToRelation, Delta 4.4).
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from deltaweave.delta.jvm import IGNORING_FILES, JavaObject, Jvm, Plan, reads_leniently
from deltaweave.delta.log.file_list import FileList

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With more files, the JVM calls for each of them take longer than they save.
_FEW = 32
_HIDDEN = ("_", ".")  # names that Spark's own listing of files leaves out


def scan_of_known_files(
    spark: SparkSession, scan: Plan, files: FileList, options: JavaObject
) -> JavaObject | None:
    """Change a scan to read listed files; None if Delta's list is needed, or is as fast.

    Delta's list has more than paths: partitions, deletion vectors, row ids.

    Args:
        spark: The session.
        scan: Delta's scan of the files.
        files: The files.
        options: Scala Map of the options for Hadoop's file systems.
    """
    if scan.getClass().getSimpleName() != "LogicalRelation":
        return None  # padded text of CHAR columns is above the scan
    if not 0 < len(files) <= _FEW or scan.relation().partitionSchema().length():
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


FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
"""Spark's relation of files."""

STRICTLY = {key.rpartition(".")[2]: "false" for key in IGNORING_FILES}
"""The options of a read that fails at what it cannot read."""


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


def options_of_files(spark: SparkSession, plan: Plan) -> JavaObject | None:
    """Return the options by which a node of a plan reads files; None if it reads none."""
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = plan.relation()
    if not Jvm.of(spark).is_a(relation, FILE_RELATION):
        return None
    catalyst = Jvm.of(spark).catalyst
    return Jvm.singleton(catalyst.util, "CaseInsensitiveMap").apply(relation.options())
