"""Files that upkeep completes or rewrites: without statistics, or with wrong bounds of floats.

Writers may leave statistics out, and Delta recomputes them only for whole tables, and not with
deletion vectors. An earlier release wrote bounds of floating values, by which rows may be missed
(see tasks/reader_contract).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import committed, rewrite_files
from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, grouped, json_text
from deltaweave.delta.log import (
    FileList,
    TableMetadata,
    TableSnapshot,
    VersionOnDisk,
    absolute_location,
    collected_actions,
    decoded,
    location_in,
)
from deltaweave.delta.scan import file_metadata
from deltaweave.engine.attempts import lacks_pyarrow, storage_of
from deltaweave.engine.tasks import BOUNDED_SCHEMA, OWN_NAME, Disk, bounded_files, is_bounded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The log's entries of files that are rewritten come to the driver.
_FILES_OF_A_COMMIT = 10_000


def compute_missing_statistics(spark: SparkSession, log: DeltaLog) -> int:
    """Compute statistics for each data file without any, in one commit that changes no row.

    Returns:
        The number of files that got statistics; without such files nothing is committed.
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
        transaction,
        lambda: int(transaction.commit(wanted, operation)),
        table,
        table=table.data_path,
        operation="computing statistics",
    )
    return len(files)


def _with_statistics(table: TableSnapshot, files: FileList, collector: JavaObject) -> JavaObject:
    """Return a Java list of the files' AddFile actions with their statistics."""
    computed = _computed(table.read_files(files.without_vectors()), collector)
    named = files.rows.select(["path", "location", "has_vector"])
    by_path = table.spark.createDataFrame(named).join(computed, "location", "left")
    statistics = by_path.select(
        "path", json_text(_bounds(by_path), as_in_log=True).alias("computed")
    )
    adds = files.data_frame.join(statistics, "path")
    adds = adds.withColumns({"stats": F.col("computed"), "dataChange": F.lit(False)})
    return collected_actions(adds.select(files.data_frame.columns), "addFile")


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


def count_floating_bounds(table: TableSnapshot) -> int | None:
    """Count the files with bounds of floating values; tasks read the footers of the engine's.

    Return None if tasks cannot read them.
    """
    if not _has_floating_columns(table.metadata):
        return 0
    paths = _with_floating_bounds(table)
    return None if paths is None else paths.count()


def count_floating_bounds_on_disk(table: VersionOnDisk) -> int:
    """Return the same for a table on a disk, whose footers are read here, without Spark."""
    if not _has_floating_columns(table.metadata):
        return 0
    own = [add["path"] for add in table.adds if re.search(OWN_NAME, add["path"])]
    return sum(is_bounded(Disk(), absolute_location(path, table.data_path)) for path in own)


def rewrite_floating_bounds(table: TableSnapshot, log: JavaObject) -> int | None:
    """Rewrite the files with bounds of floating values, and return how many there were.

    Return None if tasks cannot read the footers; nothing is rewritten then. Each commit rewrites up
    to 10,000 files and changes no row; rows keep their ids.
    """
    if not _has_floating_columns(table.metadata):
        return 0
    rewritten = None
    while (paths := _with_floating_bounds(table)) is not None:
        first = paths.limit(_FILES_OF_A_COMMIT).localCheckpoint()
        number = rewrite_files(table.spark, log, first)
        rewritten = (rewritten or 0) + number
        if number < _FILES_OF_A_COMMIT:
            break
        table = TableSnapshot(table.spark, log, log.update())
    return rewritten


def _has_floating_columns(metadata: TableMetadata) -> bool:
    types = str(metadata.schema.json())
    return '"double"' in types or '"float"' in types


def _with_floating_bounds(table: TableSnapshot) -> DataFrame | None:
    """Return the paths of these files in the log; None if tasks cannot read footers."""
    storage = storage_of(table)
    if storage is None or lacks_pyarrow(table.spark):
        return None
    named = table.files.where(F.col("path").rlike(OWN_NAME))
    located = named.select("path", location_in(table.data_path).alias("location"))
    return located.mapInArrow(bounded_files(storage), BOUNDED_SCHEMA)
