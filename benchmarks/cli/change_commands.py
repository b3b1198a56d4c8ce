"""The commands of merge on read: `read`, `read-peers`, `ingest` and `decay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.cli.merge_commands import DIRECTORY, Directory, Json, Runs, Scale
from benchmarks.cli.peer_commands import install
from deltaweave.terminal import FAILED, check_outputs, fail, session, writable

of_changes = typer.Typer()

_Plot = Annotated[Path | None, typer.Option(help="Draw the times here (.png, .svg, .pdf).")]
_Changed = Annotated[
    float, typer.Option(help="Share of the rows that have a change.", min=0.0001, max=1)
]
_Rows = Annotated[int, typer.Option(help="Rows of the base.", min=1)]


@of_changes.command("read")
def bench_read(
    scale: Scale = 1,
    changed: _Changed = 0.01,
    runs: Runs = 3,
    json: Json = None,
    plot: _Plot = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Read a merge-on-read table by each method, and rematerialize its base by each strategy.

    Compare with a plain scan of the base, and with Delta's own MERGE of the same changes. Each
    measurement has its own session; all must give the same rows.
    """
    from benchmarks.data import Workspace
    from benchmarks.merge import environment_of
    from benchmarks.merge_on_read import measure_reads, read_report

    check_outputs(json, plot)
    directory = writable(directory)
    with session(directory) as spark:
        workspace = Workspace(spark, directory, scale, deletion_vectors=True)
        timings = measure_reads(workspace, changed=changed, runs=runs)
        environment = environment_of(spark)
    Console(highlight=False).print(read_report.as_table(timings))
    if json is not None:
        settings = {"scale": scale, "runs": runs, "environment": environment}
        read_report.write_json(timings, settings, json)
    if plot is not None:
        read_report.plot(timings, plot)
    if not timings.rows_equal:
        fail("The ways of reading and writing do not end with the same rows.", FAILED)


@of_changes.command("read-peers")
def bench_read_peers(
    scale: Scale = 1,
    changed: _Changed = 0.01,
    runs: Runs = 3,
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Upsert into a merge-on-read table and read it, beside Apache Iceberg and Apache Hudi.

    All have the same rows and get the same changes. Each peer runs on its own Spark, in an
    environment that the first call creates in the directory. If a peer does not run here, the
    report shows its error.
    """
    from benchmarks.data import Workspace
    from benchmarks.merge import environment_of
    from benchmarks.merge_on_read import compare, read_peers_report

    check_outputs(json)
    directory = writable(directory)
    console = Console(highlight=False)
    with session(directory) as spark:
        workspace = Workspace(spark, directory, scale, deletion_vectors=True)
        comparison = compare(
            workspace,
            changed=changed,
            runs=runs,
            install=lambda peer: install(console, peer, directory),
        )
        environment = environment_of(spark)
    console.print(read_peers_report.as_table(comparison))
    if json is not None:
        settings = {"scale": scale, "runs": runs, "environment": environment}
        read_peers_report.write_json(comparison, settings, json)
    problems = [side.error for side in comparison.sides if side.error is not None]
    if not comparison.rows_equal:
        problems.append("The tables do not end with the same rows.")
    if problems:
        fail("\n".join(problems), FAILED)


@of_changes.command("ingest")
def bench_ingest(
    rows: _Rows = 1_000_000,
    per_minute: Annotated[
        list[int] | None,
        typer.Option(help="Changes a minute; repeatable. [default: 12,000, then 4 times that]"),
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
    from benchmarks.merge import environment_of
    from benchmarks.merge_on_read import ingestion

    check_outputs(json)
    directory = writable(directory)
    rates = sorted(per_minute) if per_minute else [12_000 * 4**step for step in range(6)]
    with session(directory) as spark:
        results = list(
            ingestion.measure_ingestion(
                spark, directory, rows=rows, rates=rates, seconds=seconds, every=every
            )
        )
        environment = environment_of(spark)
    Console(highlight=False).print(ingestion.as_table(results, rows))
    if json is not None:
        settings = {"rows": rows, "seconds": seconds, "every": every, "environment": environment}
        ingestion.write_json(results, settings, json)
    if not all(each.rows_equal for each in results):
        fail("Changes were lost, or appended twice.", FAILED)


@of_changes.command("decay")
def bench_decay(
    rows: _Rows = 1_000_000,
    batch_rows: Annotated[int, typer.Option(help="Changes in a batch.", min=1)] = 12_000,
    batches: Annotated[int, typer.Option(help="Batches that are appended.", min=1)] = 12,
    trigger_rows: Annotated[
        int, typer.Option(help="Pending changes that trigger a rematerialization.", min=1)
    ] = 48_000,
    runs: Runs = 3,
    json: Json = None,
    plot: _Plot = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Read a merge-on-read table after each batch, with and without rematerialization."""
    from benchmarks.merge import environment_of
    from benchmarks.merge_on_read import decay

    check_outputs(json, plot)
    directory = writable(directory)
    with session(directory) as spark:
        results = decay.measure_decay(
            spark,
            directory,
            rows=rows,
            batch_rows=batch_rows,
            batches=batches,
            trigger_rows=trigger_rows,
            runs=runs,
        )
        environment = environment_of(spark)
    Console(highlight=False).print(decay.as_table(results, rows))
    if json is not None:
        settings = {"rows": rows, "batch_rows": batch_rows, "environment": environment}
        decay.write_json(results, settings, json)
    if plot is not None:
        decay.plot(results, plot)
