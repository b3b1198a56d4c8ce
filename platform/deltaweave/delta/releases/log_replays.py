"""Delta's replay of its log in memory: until 4.0, it always asked which removals to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log_replay(spark: SparkSession) -> JavaObject:
    """Build an empty replay of the log that keeps application ids of any age."""
    view = jvm_.jvm(spark)
    any_age = jvm_.option(view, None)
    kept_since = any_age if jvm_.delta_line(spark) >= (4, 1) else 0
    return view.org.apache.spark.sql.delta.actions.InMemoryLogReplay(kept_since, any_age)
