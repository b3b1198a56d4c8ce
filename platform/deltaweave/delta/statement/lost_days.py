"""Days of October 1582 in a statement: Spark's filters on Parquet files cannot express them.

Spark hands dates and times to Parquet as `java.sql.Date` and `java.sql.Timestamp`. The calendar of
these lacks 5 to 14 October 1582, and each of them becomes the 15th: a scan with such a filter skips
row groups that hold the row. So rows may be overlooked wherever a condition, or what Spark derives
from the source's query, compares a column with such a day.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, DateType, StructType, TimestampType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject, said_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_MONTH = "1582-10-"
_WITH_NEW_DATES = "spark.sql.datetime.java8API.enabled"
_PLAN = "org.apache.spark.sql.catalyst.plans.QueryPlan"
_LOGICAL_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"


def may_lose_days(kind: DataType) -> bool:
    """Return whether a column of this type may be compared with such days by Parquet."""
    if isinstance(kind, StructType):
        return any(may_lose_days(field.dataType) for field in kind.fields)
    return isinstance(kind, (DateType, TimestampType))


def names_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether a constant of the statement or of the source's query is in that month.

    If a constant cannot be computed, it may be.

    Args:
        spark: The session.
        node: Delta's resolved MERGE.
    """
    if jvm_.is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    try:
        return any(_MONTH in str(texts.mkString(" ")) for texts in _constants(spark, node))
    except Exception as error:
        logger.debug("the constants of a statement are not known: %s", said_by(error))
        return True


def may_filter_by_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether Spark may compare a column with such a day.

    Spark also filters by the values of scalar subqueries, which are known at run time alone.

    Args:
        spark: The session.
        node: Delta's resolved MERGE.
    """
    if jvm_.is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    subquery = jvm_.jvm(spark).org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()
    if node.containsPattern(subquery) or node.source().containsPattern(subquery):
        return True
    return names_lost_days(spark, node)


def _constants(spark: SparkSession, node: JavaObject) -> Iterator[JavaObject]:
    """Yield Scala Seqs of the expressions with constants, computed as far as they can be."""
    view = jvm_.jvm(spark)
    fold = jvm_.singleton(view.org.apache.spark.sql.catalyst.optimizer, "ConstantFolding")
    yield jvm_.nodes_within(spark, fold.apply(node).expressions())
    source = fold.apply(node.source())
    nodes = jvm_.nodes_within(spark, jvm_.seq(view, [source]))
    yield nodes.flatMap(jvm_.function(spark, _PLAN, "expressions"))
    # A checkpoint does not show its query, but what holds of its rows.
    yield source.collectLeaves().flatMap(jvm_.function(spark, _LOGICAL_PLAN, "constraints"))
