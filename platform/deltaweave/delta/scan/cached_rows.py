"""Rows that Spark caches, by a plan that is the cache alone.

Spark analyzes, compares and copies the whole plan of cached rows again in each query over them. The
plan of a batch of changes is large: this took most of a batch's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import letting_go


@contextmanager
def cached(rows: DataFrame, what: str) -> Iterator[DataFrame]:
    """Keep rows in the executors' memory until the block ends; what they lose is computed again.

    Args:
        rows: The rows, which the first query over them computes.
        what: What they are, for the log.
    """
    kept = rows.persist()
    try:
        yield from_cache(kept)
    finally:
        with letting_go(what):
            kept.unpersist()


def from_cache(kept: DataFrame) -> DataFrame:
    """Return persisted rows by a plan that is the cache alone, with their attribute ids."""
    spark = kept.sparkSession
    leaf = kept._jdf.queryExecution().withCachedData()
    if leaf.getClass().getSimpleName() != "InMemoryRelation":  # e.g. beneath a hint
        return kept
    view = jvm_.jvm(spark)
    # With its order, Spark 4.2 cannot join it with itself: the order keeps the old attribute ids.
    # Scans take the order from the plan that filled the cache.
    relations = jvm_.singleton(view.org.apache.spark.sql.execution.columnar, "InMemoryRelation")
    relation = relations.apply(
        leaf.output(), leaf.cacheBuilder(), jvm_.seq(view, []), leaf.statsOfPlanToCache()
    )
    return jvm_.data_frame_of_plan(spark, relation)
