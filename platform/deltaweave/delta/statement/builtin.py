"""Delta's own MERGE, a fallback for tables with features that the engine does not support.

Nowhere else does Delta execute a merge, and it does here only with `fallback="builtin"`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import said_by, translated
from deltaweave.delta.statement.parsed import ParsedMerge

logger = logging.getLogger(__name__)

# Setting in which Delta notes the version of the session's last commit, to any table.
_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"


@dataclass(frozen=True)
class BuiltinMerge:
    """What Delta's own MERGE did.

    Attributes:
        version: The version of its commit; None if it committed nothing or the version is unknown.
        metrics: Its metrics, from the table's history.
        warnings: What failed after it ran.
    """

    version: int | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def run_builtin_merge(parsed: ParsedMerge, location: str) -> BuiltinMerge:
    """Run a parsed MERGE as Spark runs it.

    Args:
        parsed: The statement, as the parser or the builder made it.
        location: Where the target's data is.
    """
    from delta.tables import DeltaTable

    spark, table = parsed.spark, parsed.table
    with translated(table):
        [newest] = DeltaTable.forPath(spark, location).history(1).collect()
    with translated(table, version=newest["version"], commits=True):
        before = spark.conf.get(_LAST_COMMIT, None)
        spark.conf.unset(_LAST_COMMIT)
        try:
            jvm_.data_frame_of_plan(spark, parsed.plan)  # a command runs when its DataFrame is made
        finally:
            last = spark.conf.get(_LAST_COMMIT, None)
            if last is None and before is not None:
                spark.conf.set(_LAST_COMMIT, before)
    if last is None:
        return BuiltinMerge()  # it committed nothing
    try:
        history = DeltaTable.forPath(spark, location).history()
        later = history.where(f"version > {newest['version']} AND operation = 'MERGE'").collect()
        # Others may have merged meanwhile, or the session may have committed to another table.
        own = next((commit for commit in later if str(commit["version"]) == last), None)
        if own is None:
            return _of_unknown_version(table, f"the session's last commit is of version {last}")
        metrics = {name: int(value) for name, value in own["operationMetrics"].items()}
        return BuiltinMerge(own["version"], metrics)
    except Exception as error:
        return _of_unknown_version(table, said_by(error), exc_info=True)


def _of_unknown_version(table: str, why: str, *, exc_info: bool = False) -> BuiltinMerge:
    warning = f"Delta's own MERGE ran; its version is not known: {why}"
    logger.warning("%s: %s", table, warning, exc_info=exc_info)
    return BuiltinMerge(warnings=(warning,))
