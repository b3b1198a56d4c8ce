"""The commands `history`, the merges of a table, and `inspect`, how its rows are laid out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave.cli.options import Conf, Json, TableName, Verbose, print_json, working

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
    "executionTimeMs": "ms",
}
_MEBIBYTE = 1 << 20


def history(
    table: TableName,
    limit: Annotated[int, typer.Option(help="How many of the newest merges.", min=1)] = 20,
    conf: Conf = [],  # noqa: B006  # typer reads it and hands on a list of its own
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the merges of a table with their metrics, the newest first."""
    from deltaweave import Table

    with working("Reading the log", conf, verbose=verbose) as spark:
        merges = Table(spark, table).history().where("operation = 'MERGE'").limit(limit).collect()
    if json:
        print_json([_as_json(merge) for merge in merges])
        return
    shown = Shown("version", "time", box=SIMPLE_HEAD, padding=0)
    for name in _COLUMNS.values():
        shown.add_column(name, justify="right")
    for merge in merges:
        metrics = merge.operationMetrics or {}
        counts = [f"{int(metrics.get(name, 0)):,}" for name in _COLUMNS]
        shown.add_row(str(merge.version), f"{merge.timestamp:%Y-%m-%d %H:%M}", *counts)
    Console(highlight=False).print(shown)


def inspect(
    table: TableName,
    small: Annotated[
        float, typer.Option(help="Files below this many MiB count as small.", min=0)
    ] = 16,
    conf: Conf = [],  # noqa: B006  # as above
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say how the rows of a table are spread over its files, by the log alone."""
    from deltaweave import Table

    with working("Reading the log", conf, verbose=verbose) as spark:
        target = Table(spark, table)
        snapshot = target.snapshot()
        layout = snapshot.layout(int(small * _MEBIBYTE))
        facts: dict[str, Any] = {
            "table": table,
            "location": snapshot.data_path,
            "version": snapshot.version,
            "partition_columns": snapshot.partition_columns,
            **asdict(layout),
            "mean_file_bytes": layout.size_in_bytes // layout.files if layout.files else 0,
            "indexed_column": target.indexed_column(),
        }
    if json:
        print_json(facts)
        return
    shown = Shown("", "", show_header=False)
    for name, value in facts.items():
        shown.add_row(name.replace("_", " "), _as_text(value))
    Console(highlight=False).print(shown)


def _as_json(merge: Row) -> dict[str, Any]:
    metrics = {name: int(value) for name, value in (merge.operationMetrics or {}).items()}
    return {"version": merge.version, "timestamp": merge.timestamp.isoformat(), "metrics": metrics}


def _as_text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
