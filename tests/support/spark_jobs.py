"""Counts the Spark jobs of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession


def jobs_of(spark: SparkSession, group: str, what: Callable[[], Any]) -> int:
    """How many Spark jobs a call runs."""
    context = spark.sparkContext
    context.setJobGroup(group, group)
    try:
        what()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    return len(context.statusTracker().getJobIdsForGroup(group))
