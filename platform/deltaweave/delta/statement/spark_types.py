"""Data types of the JVM as PySpark's."""

from __future__ import annotations

import json

from pyspark.sql.types import DataType, StructType

from deltaweave.delta.jvm import JavaObject


def spark_type(java_type: JavaObject) -> DataType:
    """A JVM data type as PySpark has it."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def spark_schema(java_schema: JavaObject) -> StructType:
    """A JVM schema as PySpark has it."""
    return StructType.fromJson(json.loads(java_schema.json()))
