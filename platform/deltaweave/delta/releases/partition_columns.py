"""Whether data files may hold partition columns, too: since 4.4 they do, unless a table says no."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_may_hold_partition_columns(spark: SparkSession) -> bool:
    """Return whether a table has the property `delta.writePartitionColumnsToParquet`."""
    return jvm_.delta_line(spark) >= (4, 4)
