"""Delta's operations; newer releases record more of them in the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_operation(spark: SparkSession, mode: JavaObject, predicate: JavaObject) -> JavaObject:
    """Build the operation of an append or overwrite; the predicate is a Scala Option of text."""
    view = jvm_.jvm(spark)
    delta = jvm_.delta_line(spark)
    number = 1 if delta < (4, 1) else 4 if delta < (4, 3) else 6
    none = jvm_.option(view, None)
    operations = view.org.apache.spark.sql.delta.DeltaOperations
    return operations.Write(mode, none, predicate, *[none] * number)


def replace_operation(spark: SparkSession, metadata: JavaObject) -> JavaObject:
    """Build the operation that replaces a table by an empty one with other metadata."""
    view = jvm_.jvm(spark)
    number = 2 if jvm_.delta_line(spark) < (4, 1) else 7
    nothing = [jvm_.option(view, None)] * number
    operations = view.org.apache.spark.sql.delta.DeltaOperations
    return operations.ReplaceTable(metadata, False, False, False, *nothing)
