"""Columns of a table that no message of a batch has: a name may be wrong, and would be null."""

from __future__ import annotations

import logging

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave.delta.jvm import grouped
from deltaweave.identifiers import column

ABSENT = "_cdc_absent"
"""Column of events: the columns that the event's message does not have (array of strings)."""

_FIELD = "absent"

logger = logging.getLogger(__name__)


def absent_of(source: DataFrame, message: str | None) -> list[Column]:
    """Return `_cdc_absent` of a source's rows, if their messages say it.

    Args:
        source: The rows.
        message: Column with the message, a struct that may have the field `absent`, or None.
    """
    of_type = None if message is None else source.schema[message].dataType
    if message is None or not isinstance(of_type, StructType) or _FIELD not in of_type.names:
        return []
    return [column(message)[_FIELD].alias(ABSENT)]


def warnings_of(rows: DataFrame, is_upsert: Column, table: str) -> tuple[str, ...]:
    """Return a warning that names the columns that no upsert's message has, and log it.

    Args:
        rows: The usable events, kept in the executors' memory.
        is_upsert: Whether an event inserts or updates.
        table: The table, for the warning.
    """
    if ABSENT not in rows.columns:
        return ()
    of_upserts = rows.where(is_upsert).select(ABSENT)
    # Most batches have a message with all columns, which ends the first job.
    if of_upserts.where(F.coalesce(F.size(ABSENT) <= 0, F.lit(True))).take(1):
        return ()
    count = F.lit(of_upserts.count())
    names_of_events = of_upserts.select(F.explode(ABSENT).alias("name"))
    of_column = grouped(names_of_events, ["name"], [F.count(F.lit(1)).alias("count")])
    names = sorted(row["name"] for row in of_column.where(F.col("count") == count).collect())
    if not names:
        return ()
    warning = (
        f"{table}: no message of the batch has the column {', '.join(names)}, which stays as it "
        "is, or null: is the name right in schema=?"
    )
    logger.warning(warning)
    return (warning,)
