"""A Delta-enabled SparkSession; the one place that knows `spark.*` keys for starting Spark."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists directories in this many tasks; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.showConsoleProgress": "false",
}


# Whoever reaches the driver's ports could run code in it.
_THIS_MACHINE_ALONE: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Spark makes a secret of its own, for masters without executors in other processes.
_WITH_SECRET: Mapping[str, str] = {"spark.authenticate": "true"}

# Of Spark's UI there is no address in the configuration: it listens on this variable's.
_ADDRESS_OF_UI = "SPARK_LOCAL_IP"


def local_conf(spark_conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """The configuration of a session on this machine: Delta's keys, our tuning, then the caller's.

    The caller's packages and extensions are added to Delta's; other keys replace ours. With a local
    master, the driver listens on loopback and asks for a secret. Drivers of other masters listen as
    Spark's defaults or the caller say, because executors call them back.
    """
    given = dict(spark_conf or {})
    master = given.get("spark.master", _ONE_MACHINE_CONF["spark.master"])
    merged = {**DELTA_CONF, **_ONE_MACHINE_CONF}
    if master.startswith("local"):  # local-cluster[…], too
        merged |= _THIS_MACHINE_ALONE
    if re.fullmatch(r"local(\[.*\])?", master):
        merged |= _WITH_SECRET
    for key, value in given.items():
        if key in ("spark.jars.packages", "spark.sql.extensions") and value != merged[key]:
            merged[key] = f"{merged[key]},{value}"
        else:
            merged[key] = value
    return merged


def local_session(**spark_conf: str) -> SparkSession:
    """A Delta-enabled session, tuned for one machine; an active session is reused as Spark does.

    With a local master, all its ports are on loopback, the Spark UI's too. To reach the UI from
    elsewhere, set `spark.driver.bindAddress`, or the environment variable `SPARK_LOCAL_IP`.

    Args:
        **spark_conf: Spark configuration on top, e.g. `**{"spark.driver.memory": "4g"}`.
    """
    from pyspark.sql import SparkSession

    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("deltaweave")
    conf = local_conf(spark_conf)
    for key, value in conf.items():
        builder = builder.config(key, value)
    is_local = conf["spark.master"].startswith("local")
    with _ui_listens_on(conf["spark.driver.bindAddress"] if is_local else None):
        return builder.getOrCreate()


@contextmanager
def _ui_listens_on(address: str | None) -> Iterator[None]:
    """Start a JVM in the block whose UI listens on an address, unless the environment has one."""
    if address is None or _ADDRESS_OF_UI in os.environ:
        yield
        return
    os.environ[_ADDRESS_OF_UI] = address
    try:
        yield
    finally:
        del os.environ[_ADDRESS_OF_UI]
