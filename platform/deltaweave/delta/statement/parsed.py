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
        is_of_delta_builder: Whether Delta's own builder made it, which resolves the names in each
            clause by the tables that it may read. The analyzer takes those of both.
    """

    spark: SparkSession
    plan: JavaObject
    table: str
    is_of_delta_builder: bool = False
