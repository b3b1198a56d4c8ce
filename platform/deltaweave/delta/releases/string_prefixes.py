"""How much of a text statistics keep: since 4.1 a table may say it, before it the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SETTING = "spark.databricks.io.skipping.stringPrefixLength"
_DEFAULT = "32"


def string_prefix_length(spark: SparkSession, metadata: JavaObject) -> int:
    """Return how many characters of a text the statistics of new files keep, by the metadata."""
    if jvm_.delta_line(spark) < (4, 1):
        return int(spark.conf.get(_SETTING, _DEFAULT) or _DEFAULT)
    statistics = jvm_.jvm(spark).org.apache.spark.sql.delta.stats
    utils = jvm_.singleton(statistics, "StatsCollectionUtils")
    return int(utils.getDataSkippingStringPrefixLength(spark._jsparkSession, metadata))
