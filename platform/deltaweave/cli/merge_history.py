"""The command `history`: the merges of a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave._terminal import check_plot
from deltaweave.cli.charts import plot_merges
from deltaweave.cli.commits import Commit, commits_on_disk
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    Plot,
    TableName,
    Verbose,
    print_json,
    reading_disk,
    working,
)

if TYPE_CHECKING:
    from pyspark.sql import Row

# A metric of the history, and what its column is called.
_COLUMNS = {
    "numTargetRowsUpdated": "updated",
    "numTargetRowsInserted": "inserted",
    "numTargetRowsDeleted": "deleted",
    "numTargetRowsCopied": "copied",
    "numTargetFilesRemoved": "files -",
    "numTargetFilesAdded": "files +",
}
_TIME = "executionTimeMs"


def history(
    table: TableName,
    limit: Annotated[int, typer.Option(help="How many of the newest merges.", min=1)] = 20,
    plot: Plot = None,
    conf: Conf = [],  # noqa: B006  # typer reads it and hands on a list of its own
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the merges of a table with their metrics, the newest first.

    For a table on a disk, the log is read without Spark.
    """
    check_plot(plot)
    merges: Sequence[Commit | Row] | None = None
    with reading_disk(table):
        found = commits_on_disk(table, conf)
        if found is not None:
            merges = list(islice((each for each in found if each.operation == "MERGE"), limit))
    if merges is None:
        from deltaweave import Table

        with working("Reading the log", conf, catalog, verbose=verbose) as spark:
            of_merges = Table(spark, table).history().where("operation = 'MERGE'")
            merges = of_merges.limit(limit).collect()
    if plot is not None:
        plot_merges([_as_json(merge) for merge in merges], table, plot)
    if json:
        print_json([_as_json(merge) for merge in merges])
        return
    shown = Shown("version", box=SIMPLE_HEAD, padding=0)
    shown.add_column("time", no_wrap=True)
    for name in (*_COLUMNS.values(), "s"):
        shown.add_column(name, justify="right")
    for merge in merges:
        metrics = merge.operationMetrics or {}
        counts = [f"{int(metrics.get(name, 0)):,}" for name in _COLUMNS]
        seconds = f"{int(metrics.get(_TIME, 0)) / 1000:,.2f}"
        shown.add_row(str(merge.version), f"{merge.timestamp:%Y-%m-%d %H:%M}", *counts, seconds)
    Console(highlight=False).print(shown)


def _as_json(merge: Commit | Row) -> dict[str, Any]:
    metrics = {name: int(value) for name, value in (merge.operationMetrics or {}).items()}
    return {"version": merge.version, "timestamp": merge.timestamp.isoformat(), "metrics": metrics}
