"""The metadata of row tracking's columns: since 4.1 they may have a field id for Iceberg."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tracked_metadata(spark: SparkSession, owner: str, name: str) -> JavaObject:
    """Build the Metadata by which Delta's writer accepts a column of row ids or versions.

    Args:
        spark: The session.
        owner: Delta's object of the kind: `RowId` or `RowCommitVersion`.
        name: The column's name.
    """
    found = jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta, owner)
    # Tables that want a field id are refused (see features).
    has_field_id = (False,) if jvm_.delta_line(spark) >= (4, 1) else ()
    return found.columnMetadata(name, *has_field_id)
