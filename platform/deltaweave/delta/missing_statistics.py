"""Statistics for data files that have none: without them no file is skipped, and rows are counted.

Writers may leave them out, and `delta.dataSkippingStatsColumns` set later leaves older files as
they were. Delta computes them again for whole tables only, and not where rows may be marked
deleted; here it is for the files that lack them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.committing import committed
from deltaweave.delta.file_list import FileList, decoded, encoder
from deltaweave.delta.file_metadata import file_metadata
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compute_missing_statistics(spark: SparkSession, log: JavaObject) -> int:
    """Give each data file without statistics its own, in one commit that changes no row.

    Args:
        spark: The session.
        log: Delta's log of the table.

    Returns:
        How many files got statistics; nothing is committed where none lacks them.

    Raises:
        CommitConflictError: One of the files left the table meanwhile (by `translated`).
    """
    view = jvm_.jvm(spark)
    none = jvm_.option(view, None)
    transaction = log.startTransaction(none, none)
    table = TableSnapshot(spark, log, transaction.snapshot())
    files = table.files_without_statistics()
    if not len(files):
        return 0
    transaction.trackFilesRead(files.files)
    adds = _with_statistics(table, files, transaction.statsCollector())
    operation = view.org.apache.spark.sql.delta.DeltaOperations.ComputeStats(jvm_.seq(view, []))
    wanted = jvm_.seq_of(view, adds)
    committed(
        spark,
        log,
        transaction,
        lambda: int(transaction.commit(wanted, operation)),
        table=table.data_path,
        operation="computing statistics",
    )
    return len(files)


def _with_statistics(table: TableSnapshot, files: FileList, collector: JavaObject) -> JavaObject:
    """A Java list of the files' AddFile actions with their statistics."""
    computed = _computed(table.read_files(files.without_vectors()), collector)
    named = files.rows.select(["path", "location", "has_vector"])
    by_path = table.spark.createDataFrame(named).join(computed, "location", "left")
    statistics = by_path.select("path", F.to_json(_bounds(by_path)).alias("computed"))
    adds = files.data_frame.join(statistics, "path")
    adds = adds.withColumns({"stats": F.col("computed"), "dataChange": F.lit(False)})
    adds = adds.select(files.data_frame.columns)
    return getattr(adds._jdf, "as")(encoder(table.spark, "addFile")).collectAsList()


def _computed(rows: DataFrame, collector: JavaObject) -> DataFrame:
    """Columns `location` (string) and `statistics` (struct) of all rows that are in the files."""
    location = decoded(file_metadata(rows, "file_path")).alias("location")
    return rows.groupBy(location).agg(Column(collector).alias("statistics"))


def _bounds(files: DataFrame) -> Column:
    """The statistics; bounds of a file with marked rows may be of these (`tightBounds`)."""
    statistics = F.col("statistics")
    if "tightBounds" not in files.select("statistics.*").columns:
        return statistics
    return statistics.withField("tightBounds", ~F.col("has_vector"))
