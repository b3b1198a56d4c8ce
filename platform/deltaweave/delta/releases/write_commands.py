"""Delta's command that writes rows: since 4.3 it says whether saveAsTable began it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_command(spark: SparkSession, *arguments: JavaObject) -> JavaObject:
    """Build Delta's write command: log, mode, options, partition columns, configuration, rows."""
    commands = jvm_.jvm(spark).org.apache.spark.sql.delta.commands
    by_save_as_table = (False,) if jvm_.delta_line(spark) >= (4, 3) else ()
    return commands.WriteIntoDelta(*arguments, *by_save_as_table)
