"""Rows computed once and kept on the executors: a local checkpoint with a size and an end.

The checkpoint cuts the lineage, so that no later phase computes the rows again with other results.
If the executors that hold it die, the rows are lost, and reading them fails with
`CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject, letting_go

NAME = "mergeMaterializedSource"


class Materialized:
    """Rows that the first query that reads them computes, and that are kept then.

    Attributes:
        rows: The rows, with the attribute ids of the DataFrame that gives them.
    """

    def __init__(self, rows: DataFrame, plan: JavaObject) -> None:
        self.rows, self._plan, self._rdd = rows, plan, plan.rdd()
        self._rdd.setName(NAME)

    @property
    def estimated_bytes(self) -> int:
        """Spark's estimate of their size, in bytes; very high where it knows nothing."""
        return int(str(self._plan.stats().sizeInBytes()))

    @property
    def num_partitions(self) -> int:
        """How many partitions they have."""
        return int(self._rdd.getNumPartitions())

    def count(self) -> int:
        """How many rows there are. The job computes those that no query has read."""
        # Of the RDD and not of SQL, so that it reads every row.
        return int(self._rdd.count())

    def drop(self) -> None:
        """Keep them no longer."""
        self._rdd.unpersist(False)

    @property
    def size_in_bytes(self) -> int:
        """The serialized size on the executors of the rows that are computed, in bytes."""
        return _size(self.rows.sparkSession.sparkContext._jsc.sc(), self._rdd.id())


@contextmanager
def materialized(rows: DataFrame, storage_level: str) -> Iterator[Materialized]:
    """Keep the rows until the block ends, once they are computed.

    No job runs but those of shuffles and broadcasts, which adaptive execution begins with.

    Args:
        rows: The rows.
        storage_level: Name of a Spark storage level, e.g. `DISK_ONLY_2`.
    """
    spark = rows.sparkSession
    view = jvm_.jvm(spark)
    level = view.org.apache.spark.storage.StorageLevel.fromString(storage_level.upper())
    checkpoint = rows._jdf.localCheckpoint(False, level)
    kept = Materialized(jvm_.data_frame(spark, checkpoint), checkpoint.logicalPlan())
    try:
        yield kept
    finally:
        with letting_go("the materialized rows"):
            kept.drop()


def _size(context: JavaObject, rdd_id: int) -> int:
    # Not by getRDDStorageInfo: it lists all that is cached in the driver, also by others.
    try:
        stored = context.statusStore().rdd(rdd_id)
    except Exception as error:
        if "NoSuchElementException" not in str(error):
            raise
        return 0  # no block of it is known
    return int(stored.memoryUsed() + stored.diskUsed())
