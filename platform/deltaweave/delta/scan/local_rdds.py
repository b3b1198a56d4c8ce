"""Whether an RDD holds rows that were made in Python, as `createDataFrame` of a list does."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RDDS = "org.apache.spark.rdd."
_PYTHON = "org.apache.spark.api.python.PythonRDD"
_MAPPED, _LOCAL = f"{_RDDS}MapPartitionsRDD", frozenset({f"{_RDDS}ParallelCollectionRDD"})
# PySpark makes five RDDs of a list.
_MAX_DEPTH = 8


def holds_rows_of_python(spark: SparkSession, rdd: JavaObject, schema: JavaObject) -> bool:
    """Whether an RDD converts rows that Python sent, and does nothing else.

    A query's RDD does not count, even if it begins with such rows: a broadcast join, for example,
    reads a table that is no parent of the RDD. Nor does one with a Python function of a user.

    Args:
        spark: The session.
        rdd: The RDD.
        schema: The type of its rows, Spark's StructType.
    """
    for _ in range(_MAX_DEPTH):
        name = rdd.getClass().getName()
        if name in _LOCAL:
            return True
        if name == _PYTHON:
            if not _only_converts(spark, rdd, schema):
                return False
        elif name != _MAPPED:
            return False
        parents = rdd.dependencies()  # those of a checkpoint, if there is one
        if parents.size() != 1:
            return False
        rdd = parents.head().rdd()
    return False


def _only_converts(spark: SparkSession, rdd: JavaObject, schema: JavaObject) -> bool:
    """Whether the Python function of an RDD is the one by which PySpark converts rows."""
    context: Any = spark.sparkContext
    found = _shape(_command(spark, rdd))
    of_list = context.parallelize([], 1)
    if found == _shape(_command(spark, of_list._pickled()._jrdd.rdd())):
        return True
    of_type = spark_schema(spark, schema, columns=schema.length())
    made = spark.createDataFrame(of_list, of_type)._jdf.queryExecution().analyzed().rdd()
    while made.getClass().getName() == _MAPPED:
        made = made.dependencies().head().rdd()
    return found == _shape(_command(spark, made))


def _command(spark: SparkSession, rdd: JavaObject) -> bytes:
    """The pickled function of a Python RDD."""
    field = jvm_.class_of_delta(spark, _PYTHON).getDeclaredField("func")
    field.setAccessible(True)
    tags = jvm_.singleton(jvm_.jvm(spark).scala.reflect, "ClassTag")
    return bytes(field.get(rdd).command().toArray(tags.Byte()))


def _shape(pickled: bytes) -> list[tuple[str, object]]:
    """What a pickle consists of, without its numbers: batches of rows have several sizes."""
    return [
        ("number", None) if isinstance(argument, int) else (code.name, argument)
        for code, argument, _ in pickletools.genops(pickled)
    ]
