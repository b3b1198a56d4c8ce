"""Texts, schemas and JSON of several objects come from the JVM as they are, however long."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from deltaweave.delta.jvm import json_of
from deltaweave.delta.jvm.gateway import text_of
from deltaweave.delta.statement import spark_schema

DATA_TYPE = "org.apache.spark.sql.types.DataType"


@pytest.mark.parametrize("length", [0, 1, 3_999, 4_000, 4_001, 9_000])
@pytest.mark.parametrize("character", ["a", "ü", "\\", "\n", "\U0001f600"])
def test_long_text_comes_as_it_is(spark: SparkSession, length: int, character: str) -> None:
    text = "x" * (length % 2) + character * (length // 2)
    view = spark.sparkContext._jvm
    assert view is not None
    buffer = view.java.lang.StringBuffer()
    buffer.append(text)
    assert text_of(buffer) == text


@pytest.mark.parametrize("number", [1, 60, 61, 300])
@pytest.mark.parametrize(
    "data_type",
    [
        DoubleType(),
        DecimalType(38, 18),
        NullType(),
        CharType(3),
        StringType("UNICODE_CI"),
        StructType([StructField("x y", StringType(), nullable=False)]),
    ],
    ids=str,
)
def test_a_schema_is_that_of_spark_whatever_its_width(
    spark: SparkSession, number: int, data_type: DataType
) -> None:
    said = {"comment": 'it\'s "quoted", \\ and \n and \U0001f600', "id": 1}
    schema = StructType(
        [StructField(f"\U0001f600 column.{i}", data_type, i % 2 == 0, said) for i in range(number)]
    )
    view = spark.sparkContext._jvm
    assert view is not None
    java_schema = view.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    assert spark_schema(spark, java_schema) == schema
    assert spark_schema(spark, java_schema, columns=number) == schema


def test_json_of_several_objects_comes_in_their_order(spark: SparkSession) -> None:
    view = spark.sparkContext._jvm
    assert view is not None
    types = ["array<int>", "string", "array<int>"]
    parsed = [view.org.apache.spark.sql.types.DataType.fromDDL(each) for each in types]
    array = {"type": "array", "elementType": "integer", "containsNull": True}
    assert json_of(spark, DATA_TYPE, "json", parsed) == [array, "string", array]
    assert json_of(spark, DATA_TYPE, "json", []) == []
