"""The number of rows in a data file, by its statistics in the log."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from deltaweave.delta.log.statistic_bounds import whole

Statistics = dict[str, Any]
"""A file's statistics as Delta's log has them: parsed JSON, numbers with all of their digits."""

NUM_RECORDS = StructField("numRecords", LongType())


def parsed(text: str | None) -> Statistics:
    """Parse a file's statistics, with all digits of their numbers; empty if they are no object."""
    try:
        found = json.loads(text or "{}", parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def num_physical_rows(statistics: Statistics) -> int | None:
    """Return the number of rows in a file, deleted rows included; None without statistics."""
    number = whole(statistics.get("numRecords"))
    return number if number is None or number >= 0 else None


def num_physical_rows_column() -> Column:
    """Build the column of a file's number of rows, deleted rows included, over AddFile's fields."""
    return F.from_json("stats", StructType([NUM_RECORDS]))["numRecords"]
