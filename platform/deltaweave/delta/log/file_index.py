"""Scans of a few listed files, which do not ask Delta for the list again.

Delta's own list of files is a query that Spark plans for each scan, and twice for tables with
deletion vectors. That takes 20 ms or more each time, in a merge of less than a second.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.file_list import FileList

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With more files, the JVM calls for each of them take longer than they save.
_FEW = 32
_HIDDEN = ("_", ".")  # names that Spark's own listing of files leaves out


def scan_of_known_files(
    spark: SparkSession, scan: JavaObject, files: FileList, options: JavaObject
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


def scan_with_index(spark: SparkSession, scan: JavaObject, index: JavaObject) -> JavaObject:
    """Change a scan, a LogicalRelation, to read the files of another index."""
    return changed_scan(spark, scan, index, scan.relation().options())


def changed_scan(
    spark: SparkSession, scan: JavaObject, index: JavaObject, options: JavaObject
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
    view = jvm_.jvm(spark)
    gateway: Any = spark.sparkContext._gateway
    datasources = view.org.apache.spark.sql.execution.datasources
    hadoop = view.org.apache.hadoop.fs
    listed = jvm_.singleton(datasources, "FileStatusCache").getOrCreate(spark._jsparkSession)
    paths = []
    for add, location in zip(files.adds or [], files.rows["location"].to_pylist(), strict=True):
        path = hadoop.Path(location)
        statuses = gateway.new_array(hadoop.FileStatus, 1)
        statuses[0] = hadoop.FileStatus(add["size"], False, 0, 1, add["modificationTime"], path)
        listed.putLeafFiles(path, statuses)
        paths.append(path)
    none = jvm_.option(view, None)
    not_partitioned = jvm_.singleton(datasources, "PartitionSpec").emptySpec()
    index = datasources.InMemoryFileIndex(
        spark._jsparkSession,
        jvm_.seq(view, paths),
        options,
        none,
        listed,
        jvm_.option(view, not_partitioned),
        none,
    )
    listed.invalidateAll()
    return index
