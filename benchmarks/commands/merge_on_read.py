"""The commands of merge on read: `read`, `read-peers`, `ingest` and `decay`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.commands.running import (
    DIRECTORY,
    Directory,
    Json,
    Plot,
    Runs,
    Scale,
    announce,
    checked,
    session,
    show,
)
from benchmarks.data.tables import Workspace
from benchmarks.merge_on_read.decay import measure_decay
from benchmarks.merge_on_read.ingestion import measure_ingestion
from benchmarks.merge_on_read.read_peers import measure_upserts
from benchmarks.merge_on_read.reads import measure_reads

Changed = Annotated[
    float, typer.Option(help="Share of the rows that have a change.", min=0.0001, max=1)
]
Rows = Annotated[int, typer.Option(help="Rows of the base.", min=1)]


def read(
    scale: Scale = 1,
    changed: Changed = 0.01,
    runs: Runs = 3,
    json: Json = None,
    plot: Plot = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Read a merge-on-read table by each method, and rematerialize its base by each strategy.

    Compare with a plain scan of the base, and with Delta's own MERGE of the same changes. Each
    measurement has its own session; all must give the same rows.
    """
    directory = checked(directory, json, plot)
    with session(directory) as spark:
        workspace = Workspace(spark, directory, scale, deletion_vectors=True)
        report = measure_reads(workspace, changed=changed, runs=runs)
    show(report, json, plot)


def read_peers(
    scale: Scale = 1,
    changed: Changed = 0.01,
    runs: Runs = 3,
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Upsert into a merge-on-read table and read it, beside Apache Iceberg and Apache Hudi.

    All have the same rows and get the same changes. Each peer runs on its own Spark, in an
    environment that the first call creates in the directory. If a peer does not run here, the
    report shows its error.
    """
    directory = checked(directory, json)
    with session(directory) as spark:
        workspace = Workspace(spark, directory, scale, deletion_vectors=True)
        report = measure_upserts(workspace, changed=changed, runs=runs, announce=announce)
    show(report, json)


def ingest(
    rows: Rows = 1_000_000,
    per_minute: Annotated[
        list[int] | None,
        typer.Option(
            help="Changes a minute; repeatable. By default, 12,000, then 4 times as many each."
        ),
    ] = None,
    seconds: Annotated[int, typer.Option(help="How long each rate lasts.", min=1)] = 60,
    every: Annotated[str, typer.Option(help="How often a batch is appended.")] = "5 seconds",
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Append partial updates to a merge-on-read table at rising rates until it lags.

    Any day of the table may change at any moment: it has 24 columns and 2,000 days, and each update
    sets two columns of a row that is drawn evenly. A rate holds if readers see every change within
    a minute.
    """
    directory = checked(directory, json)
    rates = sorted(per_minute) if per_minute else [12_000 * 4**step for step in range(6)]
    with session(directory) as spark:
        report = measure_ingestion(
            spark, directory, rows=rows, rates=rates, seconds=seconds, every=every
        )
    show(report, json)


def decay(  # noqa: PLR0913 - options of the command
    rows: Rows = 1_000_000,
    batch_rows: Annotated[int, typer.Option(help="Changes in a batch.", min=1)] = 12_000,
    batches: Annotated[int, typer.Option(help="Batches that are appended.", min=1)] = 12,
    trigger_rows: Annotated[
        int, typer.Option(help="Pending changes that trigger a rematerialization.", min=1)
    ] = 48_000,
    runs: Runs = 3,
    json: Json = None,
    plot: Plot = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Read a merge-on-read table after each batch, with and without rematerialization."""
    directory = checked(directory, json, plot)
    with session(directory) as spark:
        report = measure_decay(
            spark,
            directory,
            rows=rows,
            batch_rows=batch_rows,
            batches=batches,
            trigger_rows=trigger_rows,
            runs=runs,
        )
    show(report, json, plot)
