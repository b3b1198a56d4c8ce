"""A Delta-enabled SparkSession; the one place that knows `spark.*` keys for starting Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

DELTA_CONF: Mapping[str, str] = {
    "spark.jars.packages": DELTA_PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# Spark's and Delta's defaults are for clusters: 200 shuffle partitions and 50 partitions of the
# snapshot's file list make a small table on one machine ten times slower than it need be.
_ONE_MACHINE_CONF: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists directories in this many tasks; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.showConsoleProgress": "false",
}


def local_conf(spark_conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """The configuration of a session on this machine: Delta's keys, our tuning, then the caller's.

    The caller's packages and extensions are added to Delta's; other keys replace ours.
    """
    merged = {**DELTA_CONF, **_ONE_MACHINE_CONF}
    for key, value in (spark_conf or {}).items():
        if key in ("spark.jars.packages", "spark.sql.extensions") and value != merged[key]:
            merged[key] = f"{merged[key]},{value}"
        else:
            merged[key] = value
    return merged


def local_session(**spark_conf: str) -> SparkSession:
    """A Delta-enabled session, tuned for one machine; an active session is reused as Spark does.

    Args:
        **spark_conf: Spark configuration on top, e.g. `**{"spark.driver.memory": "4g"}`.
    """
    from pyspark.sql import SparkSession

    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("deltaweave")
    for key, value in local_conf(spark_conf).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
