"""Rows computed once and kept on the executors, as a local checkpoint or in Spark's cache.

The checkpoint cuts the lineage, so that no later phase computes the rows again with other results.
If the executors that hold it die, the rows are lost, and reading them fails with
`CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND`.

Cached rows are read by a plan that is the cache alone. Spark analyzes, compares and copies the
whole plan of cached rows again in each query over them. The plan of a batch of changes is large:
this took most of a batch's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import JavaObject, Jvm, suppress_cleanup_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "mergeMaterializedSource"


@dataclass(frozen=True)
class Materialized:
    """Checkpointed rows.

    Attributes:
        rows: The rows, with the attribute ids of the materialized DataFrame.
        num_rows: How many there are.
        total: The sum of an expression over the rows, or None if none was asked for.
    """

    rows: DataFrame
    num_rows: int
    total: int | None


@contextmanager
def materialized(
    rows: DataFrame, storage_level: str, summed: str | None = None
) -> Iterator[Materialized]:
    """Compute the rows in one job and keep them until the block ends.

    Args:
        storage_level: Name of a Spark storage level, e.g. `DISK_ONLY_2`.
        summed: SQL of a BIGINT to sum over the rows in the same job.
    """
    spark = rows.sparkSession
    jvm = Jvm.of(spark)
    level = jvm.org.apache.spark.storage.StorageLevel.fromString(storage_level.upper())
    if summed is not None:
        rows = rows.observe(NAME, F.expr(f"sum({summed})"))
    kept = jvm.data_frame(rows._jdf.localCheckpoint(False, level))
    rdd = kept._jdf.queryExecution().analyzed().rdd()
    rdd.setName(NAME)
    try:
        # This count fills the checkpoint. It is one of the RDD and not of SQL, so it reads every
        # row.
        num_rows = int(rdd.count())
        yield Materialized(kept, num_rows, None if summed is None else _observed(rows))
    finally:
        with suppress_cleanup_errors("the materialized rows"):
            rdd.unpersist(False)


def _observed(rows: DataFrame) -> int | None:
    """Return the sum that the checkpoint's job observed, since it ran the plan of these rows."""
    values = rows._jdf.queryExecution().observedMetrics().get(NAME)
    if values.isEmpty():
        return None
    row = values.get()
    return 0 if row.isNullAt(0) else int(row.getLong(0))


def checkpointed(rows: DataFrame) -> DataFrame:
    """Compute rows once and keep them on the executors, and remember what they are computed from.

    A merge that reads them can then be run again after a lost commit, if that is not the target.
    """
    kept = rows.localCheckpoint()
    rdd = kept._jdf.queryExecution().analyzed().rdd()
    _origins(rows.sparkSession).put(rdd, rows._jdf.queryExecution().analyzed())
    return kept


def origin_of(spark: SparkSession, rdd: JavaObject) -> JavaObject | None:
    """Return the plan of the rows that `checkpointed` keeps in an RDD; None for other RDDs."""
    return _origins(spark).get(rdd)


def _origins(spark: SparkSession) -> JavaObject:
    """Return the map from RDDs to plans, which lasts as long as the JVM keeps the RDDs."""

    def make() -> JavaObject:
        util = Jvm.of(spark).java.util
        return util.Collections.synchronizedMap(util.WeakHashMap())

    return Jvm.of(spark).made_once("plans of checkpoints", make)


@contextmanager
def cached(rows: DataFrame, what: str) -> Iterator[DataFrame]:
    """Keep rows in the executors' memory until the block ends; what they lose is computed again.

    Args:
        rows: The rows, which the first query over them computes.
        what: The name of the rows in the log.
    """
    kept = rows.persist()
    try:
        yield from_cache(kept)
    finally:
        with suppress_cleanup_errors(what):
            kept.unpersist()


def from_cache(kept: DataFrame) -> DataFrame:
    """Return persisted rows by a plan that is the cache alone, with their attribute ids."""
    spark = kept.sparkSession
    leaf = kept._jdf.queryExecution().withCachedData()
    if leaf.getClass().getSimpleName() != "InMemoryRelation":  # e.g. beneath a hint
        return kept
    jvm = Jvm.of(spark)
    # With its order, Spark 4.2 cannot join it with itself: the order keeps the old attribute ids.
    # Scans take the order from the plan that filled the cache.
    relations = Jvm.singleton(jvm.sql.execution.columnar, "InMemoryRelation")
    relation = relations.apply(
        leaf.output(), leaf.cacheBuilder(), jvm.seq([]), leaf.statsOfPlanToCache()
    )
    return jvm.data_frame_of_plan(relation)
