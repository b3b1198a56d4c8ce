"""A wide table that gets partial updates every minute, spread over all of its days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.data.tables import TARGET_FILES
from deltaweave.changes.merge_on_read import MergeOnReadTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = 2_000
_LEAST_ROWS_OF_A_FILE = 1_000
_COLUMNS = [f"c{number:02}" for number in range(1, 22)]
UPDATED = _COLUMNS[:2]
"""The columns that each update sets."""


@dataclass(frozen=True)
class UseCase:
    """A merge-on-read table of 24 columns, whose rows are spread over 2,000 days.

    Attributes:
        rows: How many rows the base has; their ids count from 0.
        table: The table. Events are ordered by `at`, a struct of a time and a number.
    """

    rows: int
    table: MergeOnReadTable

    @classmethod
    def at(cls, spark: SparkSession, directory: Path, rows: int) -> UseCase:
        """Open the use case's table in a directory; `make` fills its base."""
        table = MergeOnReadTable(
            spark,
            str(directory / "base"),
            keys=["id"],
            sequence_by="at",
            present_columns="present",
            except_column_list=["at"],
        )
        return cls(rows, table)

    def make(self) -> None:
        """Fill the base."""
        files = min(TARGET_FILES, 1 + self.rows // _LEAST_ROWS_OF_A_FILE)
        rows = self.table.spark.range(0, self.rows, 1, files)
        at = F.struct(F.timestamp_seconds(F.lit(0)).alias("time"), F.col("id").alias("number"))
        self.table.append(rows.select(*self._columns(_COLUMNS, F.lit(0)), at.alias("at")))
        self.table.rematerialize("overwrite")

    def updates(self, numbered: DataFrame) -> DataFrame:
        """Draw updates of rows evenly.

        Args:
            numbered: The number (`value`, bigint) and time (`timestamp`) of each update.
        """
        # The hash of its number chooses the row, so the draw is the same everywhere.
        of_row = numbered.withColumn("id", F.pmod(F.xxhash64("value"), F.lit(self.rows)))
        at = F.struct(F.col("timestamp").alias("time"), F.col("value").alias("number"))
        return of_row.select(*self._columns(UPDATED, F.col("value")), at.alias("at"))

    def _columns(self, spoken: Sequence[str], value: Column) -> list[Column]:
        # A null in a column that the event does not set leaves the column as it is.
        values = [
            F.when(F.lit(name in spoken), value.cast("bigint")).alias(name) for name in _COLUMNS
        ]
        day = F.date_add(F.lit("2020-01-01").cast("date"), (F.col("id") % DAYS).cast("int"))
        names = F.array(*map(F.lit, ["day", *spoken]))
        return [F.col("id"), day.alias("day"), *values, names.alias("present")]
