"""Rows computed once and kept on the executors: a local checkpoint that can be measured and let go.

The checkpoint cuts the lineage, so that the rows cannot be computed anew, and differently, by a
later phase (document rows S3 and S4). If the executors that hold it die, the rows are lost, and
whatever reads them fails with `CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import letting_go
from deltaweave.delta.jvm import JavaObject

NAME = "mergeMaterializedSource"


@dataclass(frozen=True)
class Materialized:
    """Checkpointed rows.

    Attributes:
        rows: The rows; the attribute ids are those of the DataFrame that was materialized.
        num_rows: How many there are.
        size_in_bytes: What they take on the executors, serialized, in bytes.
    """

    rows: DataFrame
    num_rows: int
    size_in_bytes: int


@contextmanager
def materialized(rows: DataFrame, storage_level: str) -> Iterator[Materialized]:
    """Compute the rows in one job and keep them until the block ends.

    Args:
        rows: The rows.
        storage_level: Name of a Spark storage level, e.g. `DISK_ONLY_2`.
    """
    spark = rows.sparkSession
    view = jvm_.jvm(spark)
    level = view.org.apache.spark.storage.StorageLevel.fromString(storage_level.upper())
    kept = jvm_.data_frame(spark, rows._jdf.localCheckpoint(False, level))
    rdd = kept._jdf.queryExecution().analyzed().rdd()
    rdd.setName(NAME)
    try:
        # The count is the job that fills the checkpoint; it goes past SQL, so it reads every row.
        num_rows = int(rdd.count())
        yield Materialized(kept, num_rows, _size(spark.sparkContext._jsc.sc(), rdd.id()))
    finally:
        with letting_go("the materialized rows"):
            rdd.unpersist(False)


def _size(context: JavaObject, rdd_id: int) -> int:
    for info in context.getRDDStorageInfo():
        if info.id() == rdd_id:
            return int(info.memSize() + info.diskSize())
    return 0
