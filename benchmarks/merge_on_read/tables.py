"""The merge-on-read tables that are measured, and the changes to them.

- web_returns (`returns_table`): most changes update a row, some delete a row, and some insert one.
- A wide table (`UseCase`) that gets partial updates every minute, spread over all of its days.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from assets import tpcds
from benchmarks.data.tables import TARGET_FILES, Workspace
from deltaweave.changes.merge_on_read import MergeOnReadTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEW_ORDERS = 10**12  # above those of any scale

DAYS = 2_000
_LEAST_ROWS_OF_A_FILE = 1_000
_COLUMNS = [f"c{number:02}" for number in range(1, 22)]
UPDATED = _COLUMNS[:2]
"""The columns that each update sets."""


def returns_table(spark: SparkSession, base: Path, changes: Path) -> MergeOnReadTable:
    """Return the table with this base and this changeset."""
    return MergeOnReadTable(
        spark,
        str(base),
        changes=str(changes),
        keys=tpcds.KEY,
        sequence_by="version",
        apply_as_deletes="op = 'delete'",
        inserts="op = 'insert'",
        except_column_list=["op", "version"],
    )


def changed_table(workspace: Workspace, changed: float) -> Path:
    """Return the directory of `base`, a file for each part, and of `changes`, one batch.

    Args:
        workspace: Where the directory is kept.
        changed: The share of the base's rows that have a change.
    """

    def make(path: Path) -> None:
        path.mkdir()
        filled = returns_table(workspace.spark, path / "base", path / "first")
        filled.append(_first_events(workspace))
        filled.rematerialize("overwrite")
        shutil.rmtree(path / "first")
        table = returns_table(workspace.spark, path / "base", path / "changes")
        table.append(drawn_changes(workspace, changed))

    return workspace.made_once(f"merge-on-read-{changed:g}", make)


def drawn_changes(workspace: Workspace, changed: float) -> DataFrame:
    """Return change events for rows that are drawn evenly."""
    draw = F.pmod(F.xxhash64(*tpcds.KEY), F.lit(1_000_000)) / 1_000_000
    drawn = workspace.returns().withColumn("draw", draw).where(F.col("draw") < changed)
    share = F.col("draw") / changed
    op = F.when(share < 0.02, "delete").when(share < 0.05, "insert").otherwise("update")
    order = F.col(tpcds.KEY[0])
    return (
        drawn.withColumn("op", op)
        .withColumn(
            tpcds.KEY[0], F.when(F.col("op") == "insert", order + _NEW_ORDERS).otherwise(order)
        )
        .withColumn("wr_return_quantity", F.col("wr_return_quantity") + 1)
        .withColumn("version", F.lit(2))
        .drop("draw")
    )


def _first_events(workspace: Workspace) -> DataFrame:
    """Return the base's rows as the events that fill it."""
    return workspace.returns().withColumns({"op": F.lit("upsert"), "version": F.lit(1)})


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
        """Return the table in a directory; `make` fills its base."""
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
        """Return updates of rows that are drawn evenly.

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
