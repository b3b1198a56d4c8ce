"""The plan of a source: whether it gives the same rows again, and how many they may be."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import STRICTLY, options_of_files
from deltaweave.delta.releases import reads_cached_rows
from deltaweave.delta.statement import ResolvedMerge, asks_for_current

_FORCE_UNREADABLE = (
    "spark.databricks.delta.merge.forceSourceMaterializationWithUnreadableFilesConfig"
)
OPERATORS = "NON_DETERMINISTIC_SOURCE_OPERATORS"
_FORCE_CACHED = "spark.databricks.delta.merge.materializeCachedSource"


def reason_to_materialize(merge: ResolvedMerge, *, through_views: bool = False) -> str | None:
    """Return why evaluating the source twice could give two results, or None if it cannot.

    Reasons, order and names are those of Delta 4.4, except for the current time.

    Args:
        merge: The merge.
        through_views: Whether to look at the queries of views, which Delta takes for queries that
            may give other rows. What subqueries read is not looked at then.
    """
    spark, node = merge.spark, merge.node
    plan = merge.source_plan
    view = jvm_.jvm(spark)
    options = getattr(
        view.org.apache.spark.sql.delta.util, "DeltaSparkPlanUtils$CheckDeterministicOptions"
    )(True)
    if not node.planContainsOnlyDeltaScans(plan):
        return "NON_DETERMINISTIC_SOURCE_NON_DELTA"
    catalyst = view.org.apache.spark.sql.catalyst
    if through_views:
        plan = jvm_.singleton(catalyst.analysis, "EliminateView").apply(plan)
        if plan.containsPattern(catalyst.trees.TreePattern.PLAN_EXPRESSION()):
            return OPERATORS
    # Delta takes the time of day for a constant, and each query has another.
    if asks_for_current(spark, plan):
        return OPERATORS
    if not node.planIsDeterministic(plan, options):
        return OPERATORS
    if jvm_.is_on(spark, _FORCE_UNREADABLE, otherwise=True) and _ignores_unreadable_files(merge):
        return "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET"
    if node.planContainsUdf(plan):
        return "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF"
    if jvm_.is_on(spark, _FORCE_CACHED, otherwise=True) and is_cached(merge):
        return "SOURCE_CACHED"
    return None


def is_cached(merge: ResolvedMerge) -> bool:
    """Return whether Spark would read a part of the source from its cache."""
    return reads_cached_rows(merge.node, merge.source)


def estimated_bytes(rows: DataFrame) -> int:
    """Return Spark's estimate of a result's size, in bytes; very high where it knows nothing."""
    statistics = rows._jdf.queryExecution().optimizedPlan().stats()
    return int(str(statistics.sizeInBytes()))


def first_of_partitions(rows: DataFrame, number: int) -> DataFrame:
    """Take at most this many rows of each partition. A limit of all rows would take another job."""
    spark = rows.sparkSession
    plans = jvm_.jvm(spark).org.apache.spark.sql.catalyst.plans.logical
    at_most = jvm_.expression_of(spark, F.lit(number))
    plan = plans.LocalLimit(at_most, rows._jdf.queryExecution().analyzed())
    return jvm_.data_frame_of_plan(spark, plan)


def _ignores_unreadable_files(merge: ResolvedMerge) -> bool:
    if jvm_.reads_leniently(merge.spark):
        return True
    leaves = jvm_.iterate(merge.source_plan.collectLeaves())
    return any(_ignores_files(merge.spark, leaf) for leaf in leaves)


def _ignores_files(spark: SparkSession, leaf: JavaObject) -> bool:
    """Return whether a leaf of the plan reads files with an option to skip unreadable ones."""
    options = options_of_files(spark, leaf)
    if options is None:
        return False
    settings = [options.get(key) for key in STRICTLY]
    return any(found.isDefined() and found.get().lower() == "true" for found in settings)
