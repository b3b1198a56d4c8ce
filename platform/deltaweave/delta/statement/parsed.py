"""A MERGE statement before analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ParsedMerge:
    """A MERGE that was parsed or built, and not analyzed yet.

    Attributes:
        spark: The session that it is for.
        plan: Spark's unresolved plan of it.
        table: What messages call the target.
    """

    spark: SparkSession
    plan: JavaObject
    table: str
