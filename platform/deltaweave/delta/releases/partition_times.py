"""Partitions by TIMESTAMP: before 4.4, Delta's writer may put other times into the log.

Spark names a directory by the session's zone. Delta 4.0 takes the name for a time of the JVM's
zone, and so do 4.1 to 4.3 if partition values are not written in UTC. Up to 4.1, a write cannot
name its files either, by which those of the second of two hours with one name are found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IN_UTC = "spark.databricks.delta.write.utcTimestampPartitionValues"


def partition_times_are_kept(spark: SparkSession) -> bool:
    """Return whether times become partition values as they are, in the session's zone.

    Of two hours with one name, the second may be refused. The zone of executors on other machines
    is not known: there, they are taken not to be kept.
    """
    release = jvm_.delta_line(spark)
    if release >= (4, 4):
        return True
    finds_files = release >= (4, 2)
    if finds_files and jvm_.is_on(spark, _IN_UTC, otherwise=True):
        return True
    if not str(spark.sparkContext.master).startswith("local"):
        return False
    rules = jvm_.zone_rules(spark, spark._jsparkSession)
    of_jvm = jvm_.jvm(spark).java.time.ZoneId.systemDefault().getRules()
    return bool(rules.equals(of_jvm) and (finds_files or rules.isFixedOffset()))
