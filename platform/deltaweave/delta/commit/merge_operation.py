"""The operation, tags and metrics of a MERGE commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import actions
from deltaweave.delta.statement import ResolvedMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_METRIC = "org.apache.spark.sql.execution.metric.SQLMetric"


def merge_operation(merge: ResolvedMerge) -> JavaObject:
    """Build Delta's `Merge` operation, with the condition and clauses that the history shows."""
    view = jvm_.jvm(merge.spark)
    operations = view.org.apache.spark.sql.delta.DeltaOperations
    predicate = jvm_.singleton(operations, "MergePredicate")

    def predicates(kind: str) -> JavaObject:
        return jvm_.seq(view, [predicate.apply(clause.node) for clause in merge.of_kind(kind)])

    empty = jvm_.option(view, None)
    return operations.Merge(
        jvm_.option(view, merge.condition_expression),
        empty,
        empty,
        empty,
        predicates("matched"),
        predicates("not_matched"),
        predicates("not_matched_by_source"),
    )


def tags_of_merge(spark: SparkSession, snapshot: JavaObject) -> JavaObject:
    """Return the commit's tags: for tables that track rows, whether the rows kept their ids."""
    view = jvm_.jvm(spark)
    row_tracking = jvm_.singleton(view.org.apache.spark.sql.delta, "RowTracking")
    return row_tracking.addPreservedRowTrackingTagIfNotSet(snapshot, jvm_.scala_map(view, {}))


def sql_metrics(spark: SparkSession, metrics: Mapping[str, int]) -> JavaObject:
    """Build the SQL metrics from which Delta writes the history, by name.

    A few calls make and set any number of them.
    """
    view = jvm_.jvm(spark)

    def new_metric() -> JavaObject:
        context = spark.sparkContext._jsc.sc()
        utils = jvm_.singleton(view.org.apache.spark.sql.execution.metric, "SQLMetrics")
        return jvm_.function_of_text(spark, utils, "createMetric", context)

    def set_metric() -> JavaObject:
        number = view.java.lang.Long.TYPE
        return jvm_.setter(spark, _METRIC, "set", number)

    listed = list(metrics)
    names = jvm_.made_once(spark, f"texts {listed}", lambda: jvm_.texts(view, listed))
    created = names.map(jvm_.made_once(spark, "a new metric", new_metric))
    numbers = actions.json_numbers(spark, list(metrics.values()))
    values = jvm_.map_of_pairs(view, created, jvm_.scala_buffer(view, numbers))
    jvm_.java_map(view, values).forEach(jvm_.made_once(spark, "the value of a metric", set_metric))
    return jvm_.map_of_pairs(view, names, created)
