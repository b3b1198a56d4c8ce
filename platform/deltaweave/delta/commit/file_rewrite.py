"""Rewrites some data files by Delta's writer, in a commit that changes no row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.commit_call import committed
from deltaweave.delta.commit.merge_operation import tags_of_merge
from deltaweave.delta.commit.partition_times import check_partition_times, with_true_times
from deltaweave.delta.commit.uncommitted_files import OwnFiles
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import FileList, TableSnapshot, encoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPERATION = "rewriting files"


def rewrite_files(spark: SparkSession, log: JavaObject, paths: DataFrame) -> int:
    """Rewrite files as OPTIMIZE does: rows marked deleted go, the others keep their ids.

    Args:
        spark: The session.
        log: Delta's log of the table.
        paths: The files' `path` in the log; those that left the table are passed over.

    Returns:
        The number of files that were rewritten; without any, nothing is committed.

    Raises:
        CommitConflictError: One of the files left the table meanwhile (by `translated`).
        StatementError: See `check_partition_times`.
    """
    view = jvm_.jvm(spark)
    none = jvm_.option(view, None)
    transaction = log.startTransaction(none, none)
    table = TableSnapshot(spark, log, transaction.snapshot())
    files = table.files_of(paths)
    if not len(files):
        return 0
    check_partition_times(
        spark, transaction.metadata(), table=table.data_path, operation=_OPERATION
    )
    own_files = OwnFiles(spark, log, transaction)
    with own_files.deleted_unless_committed():
        transaction.trackFilesRead(files.files)
        changes = view.java.util.ArrayList(files.removals(data_change=False))
        changes.addAll(_written(table, files, own_files))
        # Delta's name for a command that rewrites some files.
        operation = view.org.apache.spark.sql.delta.DeltaOperations.Reorg(jvm_.seq(view, []), False)
        arguments = (jvm_.seq_of(view, changes), operation, tags_of_merge(spark, table.snapshot))
        own_files.is_committing = True
        committed(
            spark,
            log,
            transaction,
            lambda: int(transaction.commitIfNeeded(*arguments).get()),
            table=table.data_path,
            operation=_OPERATION,
        )
    return len(files)


def _written(table: TableSnapshot, files: FileList, own_files: OwnFiles) -> JavaObject:
    """Rewrite the files' rows, and return a Java list of the AddFile actions."""
    view = jvm_.jvm(table.spark)
    row_tracking = jvm_.singleton(view.org.apache.spark.sql.delta, "RowTracking")
    tracked = row_tracking.preserveRowTrackingColumns(table.read_files(files)._jdf, table.snapshot)
    rows = jvm_.data_frame(table.spark, tracked)
    none, nothing = jvm_.option(view, None), jvm_.seq(view, [])
    with own_files.named():
        written = own_files.transaction.writeFiles(rows._jdf, none, True, nothing)
        written = with_true_times(rows, own_files, written)
    adds = FileList(table.spark, written, table.data_path).data_frame
    adds = adds.withColumn("dataChange", F.lit(False)).select(adds.columns)
    return getattr(adds._jdf, "as")(encoder(table.spark, "addFile")).collectAsList()
