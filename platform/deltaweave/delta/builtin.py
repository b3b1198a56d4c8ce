"""Delta's own MERGE, for tables with features that the engine refuses and callers that allow it.

The one place of the product where Delta executes a merge, and never without `fallback="builtin"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import Row

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_builtin_merge(
    spark: SparkSession, plan: JavaObject, location: str, table: str
) -> tuple[int | None, Mapping[str, int]]:
    """Run an unresolved MERGE plan as Spark runs it.

    Args:
        spark: The session.
        plan: The plan, as the parser or the builder made it.
        location: Where the target's data is.
        table: What messages call the target.

    Returns:
        The version of the merge's commit (None if it committed nothing), and its metrics as the
        table's history tells them.
    """
    before = _newest(spark, location)["version"]
    with translated(table):
        jvm_.data_frame_of_plan(spark, plan)  # a command runs when its DataFrame is made
    commit = _newest(spark, location)
    if commit["version"] == before or commit["operation"] != "MERGE":
        return None, {}
    return commit["version"], {name: int(v) for name, v in commit["operationMetrics"].items()}


def _newest(spark: SparkSession, location: str) -> Row:
    """The newest entry of the table's history."""
    from delta.tables import DeltaTable

    entry = DeltaTable.forPath(spark, location).history(1).first()
    assert entry is not None, "a table has at least one version"
    return entry
