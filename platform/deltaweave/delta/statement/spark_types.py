"""Data types of the JVM as PySpark's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Schemas of as many columns, without comments, are one answer of py4j (`jvm.text_of`).
_FEW_COLUMNS = 60


def spark_type(java_type: JavaObject) -> DataType:
    """A JVM data type as PySpark has it."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def spark_schema(spark: SparkSession, java_schema: JavaObject) -> StructType:
    """A JVM schema as PySpark has it."""
    return StructType.fromJson(schema_json(spark, java_schema))


def schema_json(spark: SparkSession, java_schema: JavaObject) -> Any:
    """The JSON of a JVM schema, parsed; that of many columns is read in pieces."""
    if java_schema.length() <= _FEW_COLUMNS:
        return json.loads(java_schema.json())
    [schema] = jvm_.json_of(spark, "org.apache.spark.sql.types.DataType", "json", [java_schema])
    return schema
