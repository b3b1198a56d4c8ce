"""Runs Delta's own MERGE, with which the engine is compared.

The engine runs it only if a caller allows that (`delta/statement/builtin.py`). The benchmark runs
it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def builtin_merge(spark: SparkSession, statement: str) -> Mapping[str, int]:
    """Run a MERGE statement as Spark runs it.

    Returns:
        The numbers of rows it updated, deleted and inserted, under the names of Delta's metrics.
    """
    (counts,) = spark.sql(statement).collect()
    return {
        "numTargetRowsUpdated": counts["num_updated_rows"],
        "numTargetRowsDeleted": counts["num_deleted_rows"],
        "numTargetRowsInserted": counts["num_inserted_rows"],
    }
