"""Delta's snapshot of an old version: since 4.1 it may be asked of a catalog, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def snapshot_at(spark: SparkSession, log: JavaObject, version: int) -> JavaObject:
    """Read the snapshot at a version that the log has."""
    none = jvm_.option(jvm_.jvm(spark), None)
    enforces_time_travel = (True,) if jvm_.delta_line(spark) >= (4, 1) else ()
    return log.getSnapshotAt(version, none, none, *enforces_time_travel)
