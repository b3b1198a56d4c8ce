"""The log store by which commits to S3 exclude those of other drivers; the jar that holds it.

Delta's own log store for S3 excludes the commits of one driver. That of `ConditionalPutLogStore`
has the store refuse a version's file if there is one, which holds for all drivers and tools that
write so. `.ci/log-store` makes the jar of the source beside it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = Path(__file__).parent / "deltaweave-log-store.jar"
CLASS = "deltaweave.ConditionalPutLogStore"

STATE_UNKNOWN = f"{CLASS}$CommitStateUnknownException"
"""Raised if neither a store's answers nor its files show whether a commit succeeded."""

_OF_SCHEME = "spark.delta.logStore.{}.impl"
_OF_ALL = "spark.delta.logStore.class"
_OF_ONE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"
_SCHEMES = ("s3a", "s3", "s3n")

logger = logging.getLogger(__name__)

_warned: WeakSet[object] = WeakSet()


def use_log_store(spark: SparkSession) -> None:
    """Let tables in S3 be committed to by the log store, unless the settings name another.

    Call it for a session that deltaweave has started. The settings are known once the JVM runs:
    those of spark-defaults.conf, too.
    """
    context: Any = spark.sparkContext
    conf = context._jsc.sc().conf()  # Delta asks it when it opens a table
    name = _OF_SCHEME.format("s3a")
    if not JAR.is_file() or _names_a_log_store(conf, name):
        return
    jvm = context._jvm
    url = jvm.java.io.File(str(JAR)).toURI().toURL()
    try:
        jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader().addURL(url)
    except Exception as error:  # a loader that takes no jars: commits to S3 warn of it
        logger.info("The log store for S3 is not added to this JVM: %s", error)
        return
    conf.set(name, CLASS)


def _names_a_log_store(conf: Any, of_scheme: str) -> bool:
    return bool(conf.contains(of_scheme) or conf.contains(_OF_ALL))


def warn_of_other_drivers(spark: SparkSession, location: str) -> None:
    """Warn once in a Spark application if commits to S3 exclude those of its own driver alone."""
    scheme = location.partition(":")[0].lower()
    if scheme not in _SCHEMES or spark.sparkContext in _warned:
        return
    _warned.add(spark.sparkContext)
    conf = spark.sparkContext.getConf()
    name = _OF_SCHEME.format(scheme)
    if _names_a_log_store(conf, name):
        return
    logger.warning(
        "%s: if another driver commits to this table at the same time, a commit can be LOST: "
        "Delta's log store for S3 excludes the commits of one driver. Start Spark with "
        "spark.jars=%s and %s=%s, or let one driver write at a time and set %s=%s.",
        *(location, JAR, name, CLASS, name, _OF_ONE_DRIVER),
    )
