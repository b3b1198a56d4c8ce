"""The actions that put deletion vectors in place: since 4.1 Delta takes what statistics keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def actions_of_vectors(
    spark: SparkSession, marked: JavaObject, snapshot: JavaObject, string_prefix_length: int
) -> JavaObject:
    """Build the actions that put deletion vectors in place, a Scala Seq, and a Map of counts.

    Args:
        spark: The session.
        marked: A Scala Seq of Delta's files with their new vectors.
        snapshot: The version that they are of.
        string_prefix_length: How many characters of a text statistics keep.
    """
    commands = jvm_.jvm(spark).org.apache.spark.sql.delta.commands
    helper = jvm_.singleton(commands, "DMLWithDeletionVectorsHelper")
    kept = (string_prefix_length,) if jvm_.delta_line(spark) >= (4, 1) else ()
    return helper.processUnmodifiedData(spark._jsparkSession, marked, snapshot, *kept)
