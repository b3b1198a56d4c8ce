"""Delta's own MERGE, for tables with features that the engine refuses and callers that allow it.

The one place of the product where Delta executes a merge, and never without `fallback="builtin"`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import said_by, translated
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Where Delta notes the version of the session's last commit, to whatever table.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"


@dataclass(frozen=True)
class BuiltinMerge:
    """What Delta's own MERGE did.

    Attributes:
        version: The version of its commit; None where it committed nothing or that is not known.
        metrics: Its metrics, as the table's history tells them.
        warnings: What failed after it ran.
    """

    version: int | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def run_builtin_merge(
    spark: SparkSession, plan: JavaObject, location: str, table: str
) -> BuiltinMerge:
    """Run an unresolved MERGE plan as Spark runs it.

    Args:
        spark: The session.
        plan: The plan, as the parser or the builder made it.
        location: Where the target's data is.
        table: What messages call the target.
    """
    from delta.tables import DeltaTable

    with translated(table):
        [newest] = DeltaTable.forPath(spark, location).history(1).collect()
    with translated(table, version=newest["version"], commits=True):
        jvm_.data_frame_of_plan(spark, plan)  # a command runs when its DataFrame is made
    try:
        history = DeltaTable.forPath(spark, location).history()
        later = history.where(f"version > {newest['version']} AND operation = 'MERGE'").collect()
        last = spark.conf.get(_LAST_COMMIT, None)
    except Exception as error:
        warning = f"Delta's own MERGE ran; its version is not known: {said_by(error)}"
        logger.warning("%s: %s", table, warning, exc_info=True)
        return BuiltinMerge(warnings=(warning,))
    # Others may have merged meanwhile.
    own = [commit for commit in later if str(commit["version"]) == last] or later[:1]
    if not own:
        return BuiltinMerge()
    metrics = {name: int(value) for name, value in own[0]["operationMetrics"].items()}
    return BuiltinMerge(own[0]["version"], metrics)
