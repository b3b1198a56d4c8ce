"""`make demo`: lands the demo lake, merges what is new through Dagster, and shows what was merged.

It does what Dagster's daemon does with the landing sensor turned on: it evaluates the sensor and
executes the runs that it requests, in order. Here they run in this process, so that all share one
JVM. The runs, their metadata and logs are in Dagster's home, where `make ui` shows them. Delta's
own MERGE then merges the same into a copy, and both are compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dagster import DagsterInstance, RunRequest
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from assets import demo_data
from assets.console_command import run_with_console
from assets.definitions import defs
from assets.demo_copy import SECONDS, BuiltInCopy, Compared, RowsDifferError
from assets.demo_environments import DEMO_ENVIRONMENT
from assets.demo_runs import Merged, RunFailedError, execute, requested_runs
from assets.returns_by_reason import returns_by_reason
from assets.sensors import web_returns_landed
from assets.tpcds import GeneratorError
from resources.environments import lake, resources

NOTHING_NEW = "Nothing new: every landed partition is already merged."
_ENVIRONMENT = os.environ.get(DEMO_ENVIRONMENT, "local")
_ON = "" if _ENVIRONMENT == "local" else f" ON={_ENVIRONMENT}"
OPEN_THE_UI = f"""See runs, lineage and metrics in the Dagster UI: make ui{_ON}
Switch on its sensor {web_returns_landed.name}, and land the next month: make land"""

# The later months are left for `make land`.
_LANDED_AT_FIRST = 10

_HOME = Path(__file__).resolve().parent.parent / ".dagster"
_HEADINGS = (
    "rows\nupdated",
    "rows\ninserted",
    "rows\ndeleted",
    "rows\ncopied",
    "files\nscanned",
    "deletion\nvectors",
    "files\nrewritten",
    "seconds",
)


def main() -> int:
    """Run the demo; the exit code."""
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(_HOME)))
    home.mkdir(parents=True, exist_ok=True)

    def demo(console: Console) -> None:
        with DagsterInstance.get() as instance:
            _demo(console, instance)

    known = (GeneratorError, RunFailedError, RowsDifferError)
    return run_with_console(home / "demo.log", demo, *known)


def _demo(console: Console, instance: DagsterInstance) -> None:
    with console.status(
        "Landing TPC-DS web returns; the first time, their generator is downloaded"
    ):
        new = demo_data.land(lake(), upto=_LANDED_AT_FIRST)
    if new:
        console.print(f"Landed {len(new)} source partitions, {new[0]} to {new[-1]}.")
    requests = requested_runs(instance)
    if not requests:
        console.print(NOTHING_NEW)
    else:
        merged, compared = _execute(console, instance, requests)
        console.print("\nWhat each run merged into web_returns", _merges_table(merged))
        console.print(
            "The five most frequent reasons, from returns_by_reason", _top_reasons(instance)
        )
        console.print("The same partitions, merged into a copy by Delta's own MERGE")
        console.print(_compared_table(compared))
        console.print(f"Both tables hold the same {compared.num_rows:,} rows.\n")
    console.print(OPEN_THE_UI)


def _execute(
    console: Console, instance: DagsterInstance, requests: Sequence[RunRequest]
) -> tuple[list[Merged], Compared]:
    copy: BuiltInCopy | None = None
    merged: list[Merged] = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("Merging", total=len(requests))
        for request in requests:
            progress.update(bar, description=f"Merging {request.partition_key}")
            merged.append(execute(instance, request))
            progress.update(bar, description=f"Merging {request.partition_key} into the copy")
            copy = copy or BuiltInCopy(resources()["io_manager"].locator)
            copy.merge(merged[-1])
            progress.advance(bar)
        progress.update(bar, description="Comparing")
        assert copy is not None
        compared = copy.compared(merged)
        progress.update(bar, description="Merged")
    return merged, compared


def _merges_table(merged: Iterable[Merged]) -> Table:
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("partition", vertical="bottom")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", vertical="bottom")
    for run in merged:
        table.add_row(run.partition, *_cells(run))
    return table


def _cells(run: Merged) -> Iterator[str]:
    def count(*keys: str) -> str:
        return f"{sum(int(str(run.metadata.get(key, 0))) for key in keys):,}"

    for changed in ("updated", "inserted", "deleted", "copied"):
        yield count(f"merge/rows_{changed}")
    yield f"{count('merge/files_after_skipping')} of {count('merge/files_before_skipping')}"
    yield count("merge/deletion_vectors_added", "merge/deletion_vectors_updated")
    yield count("merge/files_removed")
    yield f"{float(str(run.metadata[SECONDS])):.1f}"


def _compared_table(compared: Compared) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for heading in (
        "files\nscanned",
        "bytes\nscanned",
        "rows\ncopied",
        "bytes\nwritten",
        "seconds",
    ):
        table.add_column(heading, justify="right")
    for name, totals in (("deltaweave", compared.ours), ("built-in MERGE", compared.built_in)):
        table.add_row(
            name,
            f"{totals['merge/files_after_skipping']:,.0f}",
            decimal(int(totals["merge/bytes_after_skipping"])),
            f"{totals['merge/rows_copied']:,.0f}",
            decimal(int(totals["merge/bytes_added"])),
            f"{totals[SECONDS]:.1f}",
        )
    return table


def _top_reasons(instance: DagsterInstance) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("reason", "returns", "quantity"):
        table.add_column(heading, justify="right")
    with defs.get_asset_value_loader(instance) as loader:
        rows = loader.load_asset_value(returns_by_reason.key)
        for row in (
            rows.where("wr_reason_sk IS NOT NULL").orderBy("returns", ascending=False).take(5)
        ):
            table.add_row(str(row.wr_reason_sk), f"{row.returns:,}", f"{row.quantity:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
