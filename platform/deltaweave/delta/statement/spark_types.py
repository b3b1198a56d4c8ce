"""Data types of the JVM as PySpark's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_COLUMNS = 60
"""Schemas of up to so many columns are mostly one part of an answer, so they are read at once."""


def spark_type(java_type: JavaObject) -> DataType:
    """A JVM data type as PySpark has it."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def spark_schema(spark: SparkSession, java_schema: JavaObject, *, columns: int = 0) -> StructType:
    """A JVM schema as PySpark has it.

    Args:
        spark: The session.
        java_schema: The schema.
        columns: About how many columns it has, if that is known: those of many are read in pieces.
    """
    if columns <= FEW_COLUMNS:
        return StructType.fromJson(json.loads(java_schema.json()))
    return StructType.fromJson(json_in_pieces(spark, java_schema))


def json_in_pieces(spark: SparkSession, java_schema: JavaObject) -> Any:
    """The JSON of a JVM schema of many columns, parsed (`jvm.text_of`)."""
    [schema] = jvm_.json_of(spark, "org.apache.spark.sql.types.DataType", "json", [java_schema])
    return schema
