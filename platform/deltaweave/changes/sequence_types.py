"""Types by which events can be ordered, and sequences that are missing."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType


def has_order(data_type: DataType) -> bool:
    """Return whether values of the type can be ordered."""
    if isinstance(data_type, StructType):
        return all(has_order(field.dataType) for field in data_type)
    return not isinstance(data_type, (MapType, VariantType, ArrayType))


def is_null(at: Column, data_type: DataType) -> Column:
    """Return whether a sequence, or a part of it, is missing."""
    missing = at.isNull()
    if isinstance(data_type, StructType):
        for field in data_type:
            missing = missing | is_null(at[field.name], field.dataType)
    return missing


def nullable(data_type: DataType) -> DataType:
    """Return the type with nulls allowed at every depth.

    Types that require values are other types to Spark, and Delta has none within maps and arrays.
    So the values of a table and of its events have types without requirements before they meet.
    """
    return data_type._as_nullable()
