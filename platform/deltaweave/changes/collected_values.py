"""Collects values from Spark and turns them back into constants, without loss."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

_EPOCH = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_MICROSECOND = "INTERVAL '0.000001' SECOND"


def collectable(value: Column, data_type: DataType) -> Column:
    """Convert a value to a form that can be collected without loss; `constant` reverses it.

    Python collects times in its local zone, where one hour in autumn occurs twice, and has no dates
    after the year 9999. So times and dates are collected as numbers.
    """
    if isinstance(data_type, StructType):
        fields = [
            collectable(value[each.name], each.dataType).alias(each.name) for each in data_type
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(data_type, TimestampType):
        return F.unix_micros(value)
    if isinstance(data_type, TimestampNTZType):
        return value - F.expr(_EPOCH)
    return F.unix_date(value) if isinstance(data_type, DateType) else value


def constant(collected: Any, data_type: DataType) -> Column | None:
    """Convert a collected `collectable` value to a constant of its type; None for null."""
    if collected is None:
        return None
    if isinstance(data_type, StructType):
        fields = []
        for part, field in zip(collected, data_type, strict=True):
            value = constant(part, field.dataType)
            missing = F.lit(None).cast(field.dataType)
            fields.append((missing if value is None else value).alias(field.name))
        return F.struct(*fields)
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(F.lit(collected))
    if isinstance(data_type, TimestampNTZType):
        micros = collected // timedelta(microseconds=1)
        return F.expr(_EPOCH) + F.expr(_MICROSECOND) * F.lit(micros)
    if isinstance(data_type, DateType):
        return F.date_from_unix_date(F.lit(collected))
    return F.lit(collected).cast(data_type)
