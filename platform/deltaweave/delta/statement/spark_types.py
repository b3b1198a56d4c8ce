"""Data types of the JVM as PySpark's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructField, StructType

from deltaweave.delta.jvm import JavaObject, Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_LIMITED_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata that marks it as CHAR or VARCHAR, or has such a part."""

# Schemas of up to so many columns are mostly one part of an answer, so they are read at once.
_FEW_COLUMNS = 60


def spark_type(java_type: JavaObject) -> DataType:
    """Convert a JVM data type to PySpark's."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def spark_schema(spark: SparkSession, java_schema: JavaObject, *, columns: int = 0) -> StructType:
    """Convert a JVM schema to PySpark's; the arguments are those of `schema_json`."""
    return StructType.fromJson(schema_json(spark, java_schema, columns=columns))


def is_padded(column: StructField) -> bool:
    """Tell whether Spark pads a column, or a part of it, when it reads files without the blanks."""
    return re.search(r"\bchar\(", column.metadata.get(OF_LIMITED_LENGTH, "")) is not None


def schema_json(spark: SparkSession, java_schema: JavaObject, *, columns: int = 0) -> Any:
    """Parse the JSON of a JVM schema.

    Args:
        spark: The session.
        java_schema: The schema.
        columns: About how many columns it has, if that is known: those of many are read in pieces
            (`Jvm.text`).
    """
    if columns <= _FEW_COLUMNS:
        return json.loads(java_schema.json())
    [schema] = Jvm.of(spark).json_of("org.apache.spark.sql.types.DataType", "json", [java_schema])
    return schema
