"""Whether an RDD holds rows that were made in Python, as `createDataFrame` of a list does."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_RDDS = "org.apache.spark.rdd."
_PYTHON = "org.apache.spark.api.python.PythonRDD"
_MAPPED, _LOCAL = f"{_RDDS}MapPartitionsRDD", f"{_RDDS}ParallelCollectionRDD"
# What Spark makes of an Arrow table that is too big for a plan, and calls so.
_OF_ARROW, _ARROW = [_MAPPED, _LOCAL], "arrow"
# PySpark makes five RDDs of a list.
_MAX_DEPTH = 8


def holds_rows_of_python(spark: SparkSession, rdd: JavaObject, schema: JavaObject) -> bool:
    """Return whether an RDD converts rows that Python sent, and does nothing else.

    Its RDDs are exactly those that PySpark makes. A JVM program's RDD may begin with local rows
    too, and read files by them. A query's RDD does not count, even if it begins with rows of
    Python: a broadcast join, for example, reads a table that is no parent of the RDD. Nor does one
    with a Python function of a user.

    Args:
        spark: The session.
        rdd: The RDD.
        schema: The type of its rows, Spark's StructType.
    """
    chain = _chain(rdd)
    classes = _classes(chain)
    if classes == _OF_ARROW:
        return bool(rdd.name() == _ARROW)
    if classes.count(_PYTHON) != 1:
        return False
    context: Any = spark.sparkContext
    of_list = context.parallelize([], 1)
    if classes != _classes(_chain(_made(spark, of_list, "v INT"))):
        return False
    found = _shape(_command(spark, chain[classes.index(_PYTHON)]))
    if found == _shape(_command(spark, of_list._pickled()._jrdd.rdd())):
        return True
    made = _chain(_made(spark, of_list, spark_schema(spark, schema, columns=schema.length())))
    return found == _shape(_command(spark, made[classes.index(_PYTHON)]))


def _chain(rdd: JavaObject) -> list[JavaObject]:
    """Return an RDD, its parent, and so on, while each has one parent."""
    chain = [rdd]
    while len(chain) < _MAX_DEPTH:
        parents = chain[-1].dependencies()  # those of a checkpoint, if there is one
        if parents.size() != 1:
            break
        chain.append(parents.head().rdd())
    return chain


def _classes(chain: list[JavaObject]) -> list[str]:
    return [str(rdd.getClass().getName()) for rdd in chain]


def _made(spark: SparkSession, rows: Any, schema: StructType | str) -> JavaObject:
    """Return the RDD that PySpark makes of rows."""
    return spark.createDataFrame(rows, schema)._jdf.queryExecution().analyzed().rdd()


def _command(spark: SparkSession, rdd: JavaObject) -> bytes:
    """Return the pickled function of a Python RDD."""
    field = jvm_.class_of_delta(spark, _PYTHON).getDeclaredField("func")
    field.setAccessible(True)
    tags = jvm_.singleton(jvm_.jvm(spark).scala.reflect, "ClassTag")
    return bytes(field.get(rdd).command().toArray(tags.Byte()))


def _shape(pickled: bytes) -> list[tuple[str, object]]:
    """Return a pickle's parts without its numbers: batches of rows have several sizes."""
    return [
        ("number", None) if isinstance(argument, int) else (code.name, argument)
        for code, argument, _ in pickletools.genops(pickled)
    ]
