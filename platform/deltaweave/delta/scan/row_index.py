"""A scan that gives each row's position in its file, also where Delta's own scan does not.

Delta gives `_metadata.row_index` only for tables with deletion vectors or row tracking
(DeltaParquetFileFormat.metadataSchemaFields, Delta 4.4).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList


def read_with_row_index(transaction: Transaction, files: FileList) -> DataFrame:
    """Read the rows of these files at the transaction's snapshot, with `_metadata.row_index`."""
    spark = transaction.merge.spark
    view = jvm_.jvm(spark)
    delta = view.org.apache.spark.sql.delta
    rows = transaction.read(files)
    protocol, metadata = transaction.snapshot.protocol(), transaction.snapshot.metadata()
    utils = jvm_.singleton(delta.commands, "DeletionVectorUtils")
    if utils.deletionVectorsReadable(protocol, metadata):
        return rows
    # The same scan, in the format of a table with deletion vectors.
    datasources = view.org.apache.spark.sql.execution.datasources
    scan = rows._jdf.queryExecution().analyzed().relation()
    vectors = jvm_.singleton(delta, "DeletionVectorsTableFeature")
    with_vectors = jvm_.singleton(delta.actions, "Protocol").apply(3, 7).withFeature(vectors)
    file_format = delta.DeltaParquetFileFormat(
        protocol.merge(jvm_.seq(view, [with_vectors])),
        metadata,
        False,
        False,
        True,
        jvm_.option(view, None),
        False,
    )
    relation = datasources.HadoopFsRelation(
        scan.location(),
        scan.partitionSchema(),
        scan.dataSchema(),
        scan.bucketSpec(),
        file_format,
        scan.options(),
        spark._jsparkSession,
    )
    plan = jvm_.singleton(datasources, "LogicalRelation").apply(relation, False)
    return jvm_.data_frame_of_plan(spark, plan)
