"""Texts, schemas and JSON of several objects come from the JVM as they are, however long."""

from __future__ import annotations

import pytest
from py4j.java_gateway import GatewayClient
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

from deltaweave.delta.jvm import Jvm
from deltaweave.delta.statement import spark_schema

PART, SEGMENT = 8_192, 65_483  # bytes: of an answer of py4j, of a segment on loopback
DATA_TYPE = "org.apache.spark.sql.types.DataType"


@pytest.mark.parametrize("length", [0, 1, 2_699, 2_700, 2_701, 9_000, 200_001])
@pytest.mark.parametrize("character", ["a", "ü", "列", "\\", "\n", "\U0001f600"])
def test_long_text_comes_as_it_is_in_answers_that_do_not_wait(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, length: int, character: str
) -> None:
    text = "x" * (length % 2) + character * (length // 2)
    view = spark.sparkContext._jvm
    assert view is not None
    buffer = view.java.lang.StringBuffer()
    buffer.append(text)
    answers: list[str] = []
    ask = GatewayClient.send_command

    def listen(self: GatewayClient, command: str, *args: object) -> str:
        answers.append(ask(self, command, *args))
        return answers[-1]

    with monkeypatch.context() as patch:
        patch.setattr(GatewayClient, "send_command", listen)
        assert Jvm.text_of(buffer) == text
    sizes = [len(answer.encode()) + 2 for answer in answers]  # "!" goes before, a new line after
    assert all(size <= PART or size > PART + SEGMENT for size in sizes), sizes


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
    assert Jvm.of(spark).json_of(DATA_TYPE, "json", parsed) == [array, "string", array]
    assert Jvm.of(spark).json_of(DATA_TYPE, "json", []) == []
