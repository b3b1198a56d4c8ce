"""Whether a query reads rows that Spark has cached: Delta asks that since 4.1."""

from __future__ import annotations

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject


def reads_cached_rows(node: JavaObject, rows: DataFrame) -> bool:
    """Return whether Spark would read a part of the rows from its cache.

    Args:
        node: Delta's resolved MERGE node.
        rows: The rows.
    """
    if jvm_.delta_line(rows.sparkSession) >= (4, 1):
        return bool(node.planContainsCachedRelation(rows._jdf))
    leaves = rows._jdf.queryExecution().withCachedData().collectLeaves()
    return any(
        leaf.getClass().getSimpleName() == "InMemoryRelation" for leaf in jvm_.iterate(leaves)
    )
