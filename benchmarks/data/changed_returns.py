"""web_returns as a merge-on-read table, and changes to rows that are drawn evenly.

Most changes update a row, some delete a row, and some insert one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets import tpcds
from benchmarks.data.tables import Workspace
from deltaweave.changes.merge_on_read import MergeOnReadTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEW_ORDERS = 10**12  # above those of any scale


def returns_table(spark: SparkSession, base: Path, changes: Path) -> MergeOnReadTable:
    """Open the merge-on-read table with this base and this changeset."""
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
    """Return the directory of `base`, with a file for each part, and `changes`, with one batch.

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
    """Change events for rows that are drawn evenly."""
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
