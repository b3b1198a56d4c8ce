"""The setting of what merges do on the driver."""

from __future__ import annotations

from pyspark.sql import SparkSession

ON_DRIVER = "spark.deltaweave.merge.onDriver"
"""Whether small merges run on the driver, with few Spark jobs or none: `auto`, the default (if the
source is known or estimated to be small), `true` (if it turns out to be small) or `false`. With
`false`, Spark also finds all matches; else a driver with a local master looks them up for merges of
up to 4 million source rows, which Spark writes."""


def setting_on_driver(spark: SparkSession) -> str:
    """Return the value of `ON_DRIVER`; what is none of the three means `false`."""
    return (spark.conf.get(ON_DRIVER, "auto") or "auto").lower()
