"""Hashes of values of any type: different values have different hashes."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    VariantType,
)

from deltaweave.delta.jvm import json_text
from deltaweave.identifiers import quoted


def hashed(value: Column, data_type: DataType, name: str) -> list[Column]:
    """Return the arguments for `xxhash64`, so that different values have different hashes.

    `xxhash64` skips nulls, also in structs and arrays, and flattens arrays of arrays. So each value
    comes with a name, and values in arrays and maps are hashed one by one.
    """
    is_there = F.when(value.isNotNull(), F.lit(name))
    if isinstance(data_type, StructType):
        parts = [is_there]
        for field in data_type:
            parts += hashed(value[field.name], field.dataType, f"{name}.{quoted(field.name)}")
        return parts
    if isinstance(data_type, ArrayType):
        of = data_type.elementType
        return [is_there, F.transform(value, lambda item: F.xxhash64(*hashed(item, of, "")))]
    if isinstance(data_type, MapType):
        of_key, of_value = data_type.keyType, data_type.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.xxhash64(
                *hashed(entry["key"], of_key, "key"), *hashed(entry["value"], of_value, "value")
            ),
        )
        return [is_there, F.array_sort(entries)]  # the order of a map's entries does not matter
    if isinstance(data_type, VariantType):
        return [is_there, json_text(value)]
    if isinstance(data_type, (FloatType, DoubleType)):
        return [is_there, value.cast("string")]  # 0.0 and -0.0 have the same hash
    if isinstance(data_type, IntegralType):
        return [is_there, value.cast("bigint")]  # the same when the column is widened
    return [is_there, value]


def _is_compared_exactly(data_type: DataType) -> bool:
    """Return whether `=` compares values of the type exactly."""
    if isinstance(data_type, StructType):
        return all(_is_compared_exactly(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _is_compared_exactly(data_type.elementType)
    return not isinstance(data_type, (MapType, VariantType, FloatType, DoubleType))


def comparable(rows: DataFrame, struct: str, name: str) -> Column:
    """Return a field of a struct of `rows` in a form that `=` compares exactly.

    Maps, variants, and numbers with 0.0 and -0.0, which are equal, are compared by their hashes.
    """
    fields = rows.schema[struct].dataType
    assert isinstance(fields, StructType)
    value, data_type = F.col(struct)[name], fields[name].dataType
    if _is_compared_exactly(data_type):
        return value
    return F.xxhash64(*hashed(value, data_type, name))
