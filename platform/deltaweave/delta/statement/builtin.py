"""Delta's own MERGE, a fallback for tables with features that the engine does not support.

Nowhere else does Delta execute a merge, and it does here only with `fallback="builtin"`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Row

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import LAST_COMMIT, said_by, translated
from deltaweave.delta.statement.parsed import ParsedMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


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

    Raises:
        SettingError: Spark passes over files that it cannot read.
        DeltaweaveError: It failed. The state is unknown only if the session has committed, or the
            table's history has a commit since that may be a MERGE, or cannot be read.
    """
    from delta.tables import DeltaTable

    spark, table = parsed.spark, parsed.table
    jvm_.refuse_lenient_reads(spark, table, "MERGE")
    with translated(table):
        [newest] = DeltaTable.forPath(spark, location).history(1).collect()
    before = spark.conf.get(LAST_COMMIT, None)
    spark.conf.unset(LAST_COMMIT)
    try:
        jvm_.data_frame_of_plan(spark, parsed.plan)  # a command runs when its DataFrame is made
    except Exception:
        has_committed = spark.conf.get(LAST_COMMIT, None) is not None
        may_be_committed = has_committed or _may_be_committed(spark, location, newest["version"])
        with translated(table, version=newest["version"], commits=may_be_committed):
            raise
    finally:
        last = spark.conf.get(LAST_COMMIT, None)
        if last is None and before is not None:
            spark.conf.set(LAST_COMMIT, before)
    if last is None:
        return BuiltinMerge()  # it committed nothing
    try:
        later = _merges_after(spark, location, newest["version"])
        # Others may have merged meanwhile, or the session may have committed to another table.
        own = next((commit for commit in later if str(commit["version"]) == last), None)
        if own is None:
            return _of_unknown_version(table, f"the session's last commit is of version {last}")
        metrics = {name: int(value) for name, value in own["operationMetrics"].items()}
        return BuiltinMerge(own["version"], metrics)
    except Exception as error:
        return _of_unknown_version(table, said_by(error), exc_info=True)


def _merges_after(
    spark: SparkSession, location: str, version: int, *, or_unknown: bool = False
) -> list[Row]:
    from delta.tables import DeltaTable

    history = DeltaTable.forPath(spark, location).history()
    unknown = " OR operation IS NULL" if or_unknown else ""
    is_one = f"version > {version} AND (operation = 'MERGE'{unknown})"
    return history.where(is_one).collect()


def _may_be_committed(spark: SparkSession, location: str, read: int) -> bool:
    """Return whether a failed merge may be one that the table's history has since a version."""
    try:
        # Without information about commits, a later one may be any operation.
        return bool(_merges_after(spark, location, read, or_unknown=True))
    except Exception as error:
        logger.warning("%s: the history cannot be read: %s", location, said_by(error))
        return True


def _of_unknown_version(table: str, why: str, *, exc_info: bool = False) -> BuiltinMerge:
    warning = f"Delta's own MERGE ran; its version is not known: {why}"
    logger.warning("%s: %s", table, warning, exc_info=exc_info)
    return BuiltinMerge(warnings=(warning,))
