"""Finds the log of a table, and a version of the table in its log."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject, translated
from deltaweave.delta.log.catalogs import log_by_name
from deltaweave.delta.log.snapshot import TableSnapshot, data_path
from deltaweave.delta.releases import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_log(spark: SparkSession, parts: list[str]) -> JavaObject:
    """Open Delta's log of the table with these name parts; `["delta", path]` is a path."""
    label = ".".join(parts)
    with translated(label, operation="opening"):
        if len(parts) == 2 and parts[0].lower() == "delta":
            logs = jvm_.jvm(spark).org.apache.spark.sql.delta.DeltaLog
            return logs.forTable(spark._jsparkSession, parts[1])
        return log_by_name(spark, parts)


def latest(spark: SparkSession, log: JavaObject) -> TableSnapshot:
    """Read the newest version of a table from its log; its number is -1 if there is no table.

    Delta's own `snapshot` and `tableExists` say what this JVM saw last.
    """
    empty = jvm_.option(jvm_.jvm(spark), None)
    return TableSnapshot(spark, log, log.update(False, empty, empty))


def at_version(
    spark: SparkSession, log: JavaObject, version: int, newest: TableSnapshot | None = None
) -> TableSnapshot:
    """Read a version of a table.

    Args:
        spark: The session.
        log: Delta's log of the table.
        version: The version.
        newest: The newest version, if it is known already.

    Raises:
        TableNotFoundError: The log no longer holds, or never held, that version.
    """
    newest = newest or latest(spark, log)
    if newest.version == version:
        return newest
    if version > newest.version:
        raise errors.TableNotFoundError(
            f"it has no version {version}; the newest is {newest.version}.",
            table=data_path(log),
            operation="reading a version",
        )
    with translated(data_path(log), operation="reading a version", version=version):
        return TableSnapshot(spark, log, snapshot_at(spark, log, version))


def version_at(spark: SparkSession, name: str, time: datetime) -> int | None:
    """Return the newest version that was committed at or before a time, or None.

    Args:
        spark: The session.
        name: The table's quoted name.
        time: The time, with its time zone.
    """
    history = spark.sql(f"DESCRIBE HISTORY {name}")
    row = history.where(F.col("timestamp") <= F.lit(time)).agg(F.max("version")).first()
    assert row is not None
    return None if row[0] is None else int(row[0])
