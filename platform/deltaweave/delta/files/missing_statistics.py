"""Computes statistics for files without any, so that they can be skipped and counted.

Writers may leave statistics out, and setting `delta.dataSkippingStatsColumns` does not change older
files. Delta recomputes statistics only for whole tables, and not for tables with deletion vectors.
Here they are computed for the files that lack them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import committed
from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, grouped, json_text
from deltaweave.delta.log import FileList, TableSnapshot, decoded, encoder
from deltaweave.delta.scan import file_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compute_missing_statistics(spark: SparkSession, log: DeltaLog) -> int:
    """Compute statistics for each data file without any, in one commit that changes no row.

    Args:
        spark: The session.
        log: Delta's log of the table.

    Returns:
        The number of files that got statistics; without such files nothing is committed.

    Raises:
        CommitConflictError: One of the files left the table meanwhile (by `translated`).
    """
    jvm = Jvm.of(spark)
    none = jvm.option(None)
    transaction = log.startTransaction(none, none)
    table = TableSnapshot(spark, log, transaction.snapshot())
    files = table.files_without_statistics()
    if not len(files):
        return 0
    transaction.trackFilesRead(files.files)
    adds = _with_statistics(table, files, transaction.statsCollector())
    operation = jvm.delta.DeltaOperations.ComputeStats(jvm.seq([]))
    wanted = jvm.seq_of(adds)
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
    """Return a Java list of the files' AddFile actions with their statistics."""
    computed = _computed(table.read_files(files.without_vectors()), collector)
    named = files.rows.select(["path", "location", "has_vector"])
    by_path = table.spark.createDataFrame(named).join(computed, "location", "left")
    statistics = by_path.select("path", json_text(_bounds(by_path)).alias("computed"))
    adds = files.data_frame.join(statistics, "path")
    adds = adds.withColumns({"stats": F.col("computed"), "dataChange": F.lit(False)})
    adds = adds.select(files.data_frame.columns)
    return getattr(adds._jdf, "as")(encoder(table.spark, "addFile")).collectAsList()


def _computed(rows: DataFrame, collector: JavaObject) -> DataFrame:
    """Compute `location` (string) and `statistics` (struct) of all rows in the files."""
    location = decoded(file_metadata(rows, "file_path")).alias("location")
    return grouped(rows, [location], [Column(collector).alias("statistics")])


def _bounds(files: DataFrame) -> Column:
    """Return the statistics; bounds may be those of marked rows (`tightBounds`)."""
    statistics = F.col("statistics")
    if "tightBounds" not in files.select("statistics.*").columns:
        return statistics
    return statistics.withField("tightBounds", ~F.col("has_vector"))
