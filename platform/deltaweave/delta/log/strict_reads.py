"""Reads of tables that fail at what they cannot read, whatever the session's settings say.

`spark.sql.files.ignoreCorruptFiles` and `ignoreMissingFiles` make Spark pass over files, or the
rest of a file. A merge, statistics or an index would take their rows as missing, for good. Delta
reads its own log in this way, too (DeltaLog.indexToRelation, Delta 4.4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.file_index import changed_scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
"""Spark's relation of files."""

STRICTLY = {key.rpartition(".")[2]: "false" for key in jvm_.IGNORING_FILES}
"""The options of a read that fails at what it cannot read."""


def strict(rows: DataFrame) -> DataFrame:
    """Read the rows of a table strictly.

    Where no setting says otherwise they stay as they are: Spark may take them from its cache, which
    commits renew.
    """
    return always_strict(rows) if jvm_.reads_leniently(rows.sparkSession) else rows


def always_strict(rows: DataFrame) -> DataFrame:
    """Read the rows of a query strictly, also if a later setting is lenient."""
    spark = rows.sparkSession
    plan = strict_plan(spark, rows._jdf.queryExecution().analyzed())
    return jvm_.data_frame_of_plan(spark, plan)


def strict_plan(spark: SparkSession, plan: JavaObject) -> JavaObject:
    """Make a plan's scans of files strict."""
    children = list(jvm_.iterate(plan.children()))
    if children:
        below = [strict_plan(spark, child) for child in children]
        return plan.withNewChildren(jvm_.seq(jvm_.jvm(spark), below))
    options = options_of_files(spark, plan)
    if options is None:
        return plan
    for key, value in STRICTLY.items():
        options = options.updated(key, value)
    return changed_scan(spark, plan, plan.relation().location(), options)


def options_of_files(spark: SparkSession, plan: JavaObject) -> JavaObject | None:
    """Return the options by which a node of a plan reads files; None if it reads none."""
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = plan.relation()
    if not jvm_.is_a(spark, relation, FILE_RELATION):
        return None
    catalyst = jvm_.jvm(spark).org.apache.spark.sql.catalyst
    return jvm_.singleton(catalyst.util, "CaseInsensitiveMap").apply(relation.options())
