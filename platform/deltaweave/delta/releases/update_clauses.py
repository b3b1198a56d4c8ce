"""Spark's node of an UPDATE clause: since 4.1 it says whether it was a star."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def update_action(
    spark: SparkSession, condition: JavaObject, assignments: JavaObject
) -> JavaObject:
    """Build an UPDATE clause before analysis, from a Scala Option and a Scala Seq."""
    plans = jvm_.jvm(spark).org.apache.spark.sql.catalyst.plans.logical
    of_a_star = (False,) if jvm_.spark_line(spark) >= (4, 1) else ()
    return plans.UpdateAction(condition, assignments, *of_a_star)
