"""Deletion vectors mark rows as deleted in files that stay (Delta protocol, same section)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.snapshot import FileList
from deltaweave.delta.transaction import Transaction

USE_PERSISTENT = "spark.databricks.delta.merge.deletionVectors.persistent"


@dataclass(frozen=True)
class MarkedRows:
    """Vectors written to storage for one merge; nothing is in the table before the commit.

    Attributes:
        actions: Scala Seq of the removes and adds that put the vectors in place; files without any
            row left are removed only.
        num_added: Files that had no vector and now have one.
        num_updated: Files whose vector was merged with the new one.
        num_removed: Vectors that went with their fully deleted file.
    """

    actions: JavaObject
    num_added: int
    num_updated: int
    num_removed: int


def vectors_writable(transaction: Transaction) -> bool:
    """Whether modified rows are to be marked rather than their files rewritten (row C10)."""
    spark = transaction.merge.spark
    utils = jvm_.singleton(
        jvm_.jvm(spark).org.apache.spark.sql.delta.commands, "DeletionVectorUtils"
    )
    wanted = spark.conf.get(USE_PERSISTENT, "true") == "true"
    snapshot = transaction.snapshot
    return wanted and bool(utils.deletionVectorsWritable(snapshot.protocol(), snapshot.metadata()))


def mark_rows(
    transaction: Transaction, rows: DataFrame, file: str, row_index: str, touched: FileList
) -> MarkedRows:
    """Write vectors that mark these rows, merged with the files' existing vectors.

    Args:
        transaction: The merge's transaction.
        rows: The rows to mark; a row may be named more than once.
        file: Name of their column (string) with the file as `_metadata.file_path` gives it.
        row_index: Name of their column (bigint) with the row's place in the file.
        touched: The files that hold them.
    """
    spark = transaction.merge.spark
    view = jvm_.jvm(spark)
    if not len(touched):
        return MarkedRows(jvm_.seq(view, []), 0, 0, 0)
    delta = view.org.apache.spark.sql.delta
    helper = jvm_.singleton(delta.commands, "DMLWithDeletionVectorsHelper")
    generator = jvm_.singleton(delta.commands, "DeletionVectorBitmapGenerator")
    every_row = jvm_.singleton(view.org.apache.spark.sql.catalyst.expressions, "Literal")
    with translated(transaction.merge.table, version=transaction.version):
        stored = generator.buildRowIndexSetsForFilesMatchingCondition(
            spark._jsparkSession,
            transaction.transaction,
            True,
            rows._jdf,
            touched.files,
            every_row.TrueLiteral(),
            jvm_.option(view, F.col(file)._jc),
            jvm_.option(view, F.col(row_index)._jc),
        )
        by_name = helper.generateCandidateFileMap(transaction.log.dataPath(), touched.files)
        marked = helper.findFilesWithMatchingRows(transaction.transaction, by_name, stored)
        result = helper.processUnmodifiedData(
            spark._jsparkSession, marked, transaction.snapshot, transaction.string_prefix_length
        )
    counts = result._2()
    return MarkedRows(
        actions=result._1(),
        num_added=_count(counts, "numDeletionVectorsAdded"),
        num_updated=_count(counts, "numDeletionVectorsUpdated"),
        num_removed=_count(counts, "numDeletionVectorsRemoved"),
    )


def _count(counts: JavaObject, name: str) -> int:
    found = counts.get(name)
    return int(found.get()) if found.isDefined() else 0
