"""The commands `history`, the merges of a table, and `inspect`, how its rows are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave.cli.charts import plot_files, plot_merges
from deltaweave.cli.commits import Commit, commits_on_disk
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    Plot,
    TableName,
    Verbose,
    print_json,
    working,
)
from deltaweave.terminal import FAILED, check_outputs, fail

if TYPE_CHECKING:
    from pyspark.sql import Row

    from deltaweave.delta.log import KeyOverlap, TableSnapshot

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
_MEBIBYTE = 1 << 20
# With more, the ranges of the columns that `--key` names are compared alone.
_FILES_OF_ALL_COLUMNS = 10_000


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

    Of a table on a disk, the log is read without Spark.
    """
    check_outputs(None, plot)
    merges: Sequence[Commit | Row] | None = _merges_on_disk(table, limit)
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


def _merges_on_disk(table: str, limit: int) -> list[Commit] | None:
    """The newest merges of a table, if its log can be read without Spark."""
    try:
        found = commits_on_disk(table)
        if found is None:
            return None
        return list(islice((each for each in found if each.operation == "MERGE"), limit))
    except OSError as error:
        fail(f"The log of {table} cannot be read: {error.strerror}.", FAILED)


def inspect(
    table: TableName,
    key: Annotated[
        list[str],
        typer.Option(help="A column whose ranges in the files are compared; repeatable."),
    ] = [],  # noqa: B006  # typer reads it and hands on a list of its own
    small: Annotated[
        float, typer.Option(help="Files below this many MiB count as small.", min=0)
    ] = 16,
    plot: Plot = None,
    conf: Conf = [],  # noqa: B006  # as above
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print how the rows of a table are spread over its files, by the log.

    Files with floating bounds are those of earlier releases by whose footers Spark may miss rows
    with NaN; `maintain` rewrites them.
    """
    from deltaweave import Table

    check_outputs(None, plot)
    small_bytes = int(small * _MEBIBYTE)
    with working("Reading the log", conf, catalog, verbose=verbose) as spark:
        target = Table(spark, table)
        snapshot = target.snapshot()
        layout = snapshot.layout(small_bytes)
        facts: dict[str, Any] = {
            "table": table,
            "location": snapshot.data_path,
            "version": snapshot.version,
            "partition_columns": snapshot.partition_columns,
            **asdict(layout),
            "mean_file_bytes": layout.size_in_bytes // layout.files if layout.files else 0,
            "indexed_column": target.indexed_column(),
            # Above 0, `deltaweave maintain` rewrites them; None if tasks cannot read footers.
            "files_with_floating_bounds": target.count_floating_bounds(),
        }
        keys = key or _bounded_columns(snapshot, layout.files)
        overlaps = target.key_overlaps(keys, snapshot.version)
        sizes = _files_by_size(snapshot) if plot is not None else {}
    if plot is not None:
        plot_files(sizes, small_bytes, table, plot)
    if json:
        print_json({**facts, "key_overlaps": [asdict(overlap) for overlap in overlaps]})
        return
    shown = Shown("", "", show_header=False)
    if facts["files_with_floating_bounds"] is None:
        facts["files_with_floating_bounds"] = "not known"
    for name, value in facts.items():
        shown.add_row(name.replace("_", " "), _as_text(value))
    console = Console(highlight=False)
    console.print(shown)
    if overlaps:
        console.print(_as_table(overlaps))


def _bounded_columns(snapshot: TableSnapshot, files: int) -> list[str]:
    """The columns that are looked at if none is named; none in tables of many files."""
    from deltaweave.delta.log import are_bounded

    if files > _FILES_OF_ALL_COLUMNS:
        return []
    # Delta keeps statistics of the first 32 columns, by default.
    first = snapshot.schema.fields[:32]
    return [field.name for field in first if are_bounded(field.dataType)]


def _as_table(overlaps: list[KeyOverlap]) -> Shown:
    shown = Shown("column", box=SIMPLE_HEAD, padding=0, title="files that may hold a key")
    for name in ("mean", "most", "of", "overlapping", "no bounds"):
        shown.add_column(name, justify="right")
    for each in overlaps:
        counts = (each.most_files_per_key, each.files, each.overlapping_files)
        unknown = each.files_without_bounds
        mean = f"{each.mean_files_per_key:,.2f}"
        shown.add_row(each.column, mean, *[f"{count:,}" for count in (*counts, unknown)])
    return shown


def _files_by_size(snapshot: TableSnapshot) -> dict[int, int]:
    """The number of files by the power of two at which their sizes begin."""
    from pyspark.sql import functions as F

    from deltaweave.delta.jvm import grouped

    # An empty file has no logarithm.
    power = F.floor(F.log2(F.greatest("size", F.lit(1)))).cast("int").alias("power")
    counted = grouped(snapshot.files, [power], [F.count(F.lit(1)).alias("files")])
    return {row.power: row.files for row in counted.collect()}


def _as_json(merge: Commit | Row) -> dict[str, Any]:
    metrics = {name: int(value) for name, value in (merge.operationMetrics or {}).items()}
    return {"version": merge.version, "timestamp": merge.timestamp.isoformat(), "metrics": metrics}


def _as_text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
