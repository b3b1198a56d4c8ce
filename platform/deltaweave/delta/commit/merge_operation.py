"""The operation, tags and metrics of a MERGE commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement import ResolvedMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def merge_operation(merge: ResolvedMerge) -> JavaObject:
    """Delta's `Merge` operation, with the condition and the clauses that the history shows."""
    view = jvm_.jvm(merge.spark)
    operations = view.org.apache.spark.sql.delta.DeltaOperations
    predicate = jvm_.singleton(operations, "MergePredicate")

    def predicates(kind: str) -> JavaObject:
        return jvm_.seq(view, [predicate.apply(clause.node) for clause in merge.of_kind(kind)])

    empty = jvm_.option(view, None)
    return operations.Merge(
        jvm_.option(view, merge.node.condition()),
        empty,
        empty,
        empty,
        predicates("matched"),
        predicates("not_matched"),
        predicates("not_matched_by_source"),
    )


def tags_of_merge(spark: SparkSession, snapshot: JavaObject) -> JavaObject:
    """The commit's tags: for tables that track rows, whether the rows kept their ids."""
    view = jvm_.jvm(spark)
    row_tracking = jvm_.singleton(view.org.apache.spark.sql.delta, "RowTracking")
    return row_tracking.addPreservedRowTrackingTagIfNotSet(snapshot, jvm_.scala_map(view, {}))


def sql_metrics(spark: SparkSession, metrics: Mapping[str, int]) -> JavaObject:
    """Metrics by name, as the SQL metrics from which Delta writes the history."""
    view = jvm_.jvm(spark)
    made = jvm_.singleton(view.org.apache.spark.sql.execution.metric, "SQLMetrics")
    context = spark.sparkContext._jsc.sc()
    names = jvm_.texts(view, list(metrics))
    # A few calls make all of them; only those that are not 0 take two more each.
    created = names.map(jvm_.function_of_text(spark, made, "createMetric", context))
    for place, value in enumerate(metrics.values()):
        if value:
            created.apply(place).set(value)
    return jvm_.map_of_pairs(view, names, created)
