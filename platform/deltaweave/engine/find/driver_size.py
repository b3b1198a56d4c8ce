"""How much of a table a merge on the driver reads and copies, by where Spark's executors are."""

from __future__ import annotations

from pyspark.sql import SparkSession

from deltaweave.engine import limits


def most_on_driver(limit: int, spark: SparkSession) -> int:
    """A limit of rows or bytes of target files, in this session.

    Executors on other machines bring cores and disks of their own, so that the driver leaves them
    more than those of a local master, which has the driver's own.
    """
    is_local = str(spark.sparkContext.master).startswith("local")
    return limit * limits.TIMES_ON_LOCAL_MASTER if is_local else limit
