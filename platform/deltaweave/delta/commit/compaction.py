"""Delta's compaction of small files after a commit, for tables or sessions that ask for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def compaction(spark: SparkSession) -> JavaObject:
    """Return the post-commit hook by which Delta compacts."""
    return jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta.hooks, "AutoCompact")


def leave_out_compaction(spark: SparkSession, transaction: JavaObject) -> None:
    """Keep Delta from compacting after this transaction's commit."""
    hook = jvm_.instances_of(spark, compaction(spark).getClass())
    transaction.unregisterPostCommitHooksWhere(hook)


def leave_out_lenient_compaction(spark: SparkSession, transaction: JavaObject, table: str) -> None:
    """Keep Delta from compacting if its reads would pass over files: their rows would be lost."""
    if not jvm_.reads_leniently(spark):
        return
    conf = spark._jsparkSession.sessionState().conf()
    if compaction(spark).getAutoCompactType(conf, transaction.metadata()).isDefined():
        logger.warning(
            "%s is not compacted: Spark passes over files that it cannot read (%s)",
            table,
            " or ".join(jvm_.IGNORING_FILES),
        )
        leave_out_compaction(spark, transaction)
