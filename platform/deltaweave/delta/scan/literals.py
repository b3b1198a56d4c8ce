"""Collected values as Spark literals, without a loss."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

# Types that a literal has without a cast.
_OF_LIT = (BooleanType, DoubleType, IntegerType, StringType)


def literal(value: Any, data_type: DataType) -> Column:
    """Convert a Python value to a literal of its type.

    PySpark's `lit` converts dates and times by java.sql. That refuses years before 1000, lacks the
    days between the old calendar and the new one, and reads times without a zone in Python's zone.

    Args:
        value: The value, or None; a struct's as a Row.
        data_type: Its type.
    """
    if value is None:
        return F.lit(None).cast(data_type)
    if isinstance(data_type, StructType):
        fields = [literal(value[each.name], each.dataType).alias(each.name) for each in data_type]
        return F.struct(*fields)
    if isinstance(data_type, DateType | TimestampNTZType):
        return F.lit(value.isoformat()).cast(data_type.simpleString())
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(F.lit(_microseconds(value)))
    constant = F.lit(value)
    return constant if isinstance(data_type, _OF_LIT) else constant.cast(data_type.simpleString())


def _microseconds(time: datetime) -> int:
    """Convert a time to µs since 1970; times without a zone are in Python's zone."""
    if time.tzinfo is None and 1 < time.year < 9999:
        # PySpark's own conversion below confuses the hours before and after a clock is set back.
        return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond
    return int(TimestampType().toInternal(time))
