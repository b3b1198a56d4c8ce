"""Makes a DataFrame of a few numbers that no job computes, as Spark returns of a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from deltaweave.delta.jvm.gateway import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_of_numbers(
    spark: SparkSession, rows: Sequence[Sequence[int]], columns: Sequence[str]
) -> DataFrame:
    """Build a DataFrame of BIGINT columns, with the rows in its plan; the active session stays."""
    view, gateway = jvm(spark), spark.sparkContext._gateway
    java_rows = view.java.util.ArrayList()
    for row in rows:
        numbers: Any = gateway.new_array(gateway.jvm.long, len(row))  # type: ignore[union-attr]
        for place, number in enumerate(row):
            numbers[place] = number
        # Objects of Long: py4j would make an Integer of a small number.
        objects = view.java.util.stream.LongStream.of(numbers).boxed().toArray()
        java_rows.add(view.org.apache.spark.sql.RowFactory.create(objects))
    schema = StructType([StructField(name, LongType()) for name in columns])
    java_schema = view.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(spark._jsparkSession.createDataFrame(java_rows, java_schema), spark)
