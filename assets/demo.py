"""`make demo`: lands the demo lake, merges what is new through Dagster, and shows what was merged.

It does what Dagster's daemon does with the landing sensor turned on: it evaluates the sensor and
executes the runs that it requests, in order. Here they run in this process, so that all share one
JVM. The runs, their metadata and logs are in Dagster's home, where `make ui` shows them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    build_sensor_context,
)
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from assets import demo_data
from assets.definitions import defs
from assets.demo_places import PLACE
from assets.own_screen import run_on_own_screen
from assets.returns_by_reason import returns_by_reason
from assets.sensors import merge_web_returns, web_returns_landed
from assets.web_returns import web_returns
from dagster_deltaweave.dagster_private import PARTITION_NAME_TAG, RUN_KEY_TAG, SENSOR_NAME_TAG
from deltaweave.bench.data import GeneratorError
from resources.environments import lake

if TYPE_CHECKING:
    from dagster import (
        AddDynamicPartitionsRequest,
        DeleteDynamicPartitionsRequest,
        ExecuteInProcessResult,
    )

NOTHING_NEW = "Nothing new: every landed partition is already merged."
_PLACE = os.environ.get(PLACE, "local")
OPEN_THE_UI = "See runs, lineage and metrics in the Dagster UI: make ui"
OPEN_THE_UI += "" if _PLACE == "local" else f" ON={_PLACE}"

_HOME = Path(__file__).resolve().parent.parent / ".dagster"
_COLUMNS = {
    "rows\nupdated": "merge/rows_updated",
    "rows\ninserted": "merge/rows_inserted",
    "rows\ndeleted": "merge/rows_deleted",
    "rows\ncopied": "merge/rows_copied",
    "files\nbefore\nskipping": "merge/files_before_skipping",
    "files\nafter\nskipping": "merge/files_after_skipping",
    "files\nrewritten": "merge/files_removed",
    "seconds": "merge/seconds",
}


class RunFailedError(RuntimeError):
    """A run of the demo failed; the message is its error's."""


@dataclass(frozen=True)
class Merged:
    """What one run merged into web_returns, as its materialization's metadata says.

    Attributes:
        partition: The source partition.
        metadata: Metadata key to number.
    """

    partition: str
    metadata: dict[str, object]


def main() -> int:
    """Run the demo; the exit code."""
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(_HOME)))
    home.mkdir(parents=True, exist_ok=True)

    def demo(console: Console) -> None:
        with DagsterInstance.get() as instance:
            _demo(console, instance)

    return run_on_own_screen(home / "demo.log", demo, GeneratorError, RunFailedError)


def _demo(console: Console, instance: DagsterInstance) -> None:
    with console.status("Landing TPC-DS web returns"):
        new = demo_data.land(lake())
    if new:
        console.print(f"Landed {len(new)} source partitions, {new[0]} to {new[-1]}.")
    requests = requested_runs(instance)
    if not requests:
        console.print(NOTHING_NEW)
    else:
        merges = _merges_table(_execute(console, instance, requests))
        console.print("\nWhat each run merged into web_returns", merges)
        console.print(
            "The five most frequent reasons, from returns_by_reason", _top_reasons(instance)
        )
    console.print(OPEN_THE_UI)


def requested_runs(instance: DagsterInstance) -> list[RunRequest]:
    """The runs that failed before, and those that the landing sensor requests now.

    The sensor passes over what has a run, as it must where the daemon ran it: whether a failed run
    is repeated is for people to say, and whoever runs the demo again says so.
    """
    requests = _failed_before(instance)
    cursor = None
    while True:
        # The reference lets the sensor look up dynamic partitions.
        context = build_sensor_context(
            instance=instance, instance_ref=instance.get_ref(), cursor=cursor, definitions=defs
        )
        tick = web_returns_landed.evaluate_tick(context)
        if not tick.run_requests:
            return requests
        cursor = tick.cursor
        requests += tick.run_requests
        _add_partitions(instance, tick.dynamic_partitions_requests or ())
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)


def _failed_before(instance: DagsterInstance) -> list[RunRequest]:
    """The deliveries whose newest run failed, by partition."""
    newest: dict[str, DagsterRun] = {}
    for run in instance.get_runs(RunsFilter(tags={SENSOR_NAME_TAG: web_returns_landed.name})):
        newest.setdefault(run.tags[RUN_KEY_TAG], run)
    return [
        RunRequest(
            run_key=run_key,
            partition_key=run.tags[PARTITION_NAME_TAG],
            tags={name: tag for name, tag in run.tags.items() if name.startswith("deltaweave/")},
        )
        for run_key, run in sorted(newest.items())
        if run.status in (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
    ]


def _tags(request: RunRequest) -> dict[str, str]:
    """The tags by which Dagster knows the run of a sensor's request."""
    return {SENSOR_NAME_TAG: web_returns_landed.name, RUN_KEY_TAG: request.run_key or ""}


def _add_partitions(
    instance: DagsterInstance,
    requests: Sequence[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest],
) -> None:
    for request in requests:
        instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)


def _execute(
    console: Console, instance: DagsterInstance, requests: Sequence[RunRequest]
) -> list[Merged]:
    job = defs.resolve_job_def(merge_web_returns.name)
    merged = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        bar = progress.add_task("Merging", total=len(requests))
        for request in requests:
            partition = request.partition_key or ""
            progress.update(bar, description=f"Merging {partition}")
            result = job.execute_in_process(
                instance=instance,
                partition_key=partition,
                tags={**request.tags, **_tags(request)},
                raise_on_error=False,
            )
            if not result.success:
                raise RunFailedError(f"The run of {partition} failed. {_error_of(result)}")
            merged.append(_merged(result, partition))
            progress.advance(bar)
        progress.update(bar, description="Merged")
    return merged


def _error_of(result: ExecuteInProcessResult) -> str:
    for event in result.all_events:
        if event.is_step_failure and (error := event.step_failure_data.error):
            # Dagster's own error names the step; its cause is what the asset or the merge raised.
            return (error.cause or error).message.strip()
    return "\n".join(event.message or "" for event in result.all_events if event.is_failure)


def _merged(result: ExecuteInProcessResult, partition: str) -> Merged:
    (materialization,) = (
        event.step_materialization_data.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == web_returns.key
    )
    return Merged(partition, {k: v.value for k, v in materialization.metadata.items()})


def _merges_table(merged: Sequence[Merged]) -> Table:
    table = Table(box=box.SIMPLE, padding=0)
    table.add_column("partition", vertical="bottom")
    for heading in _COLUMNS:
        table.add_column(heading, justify="right", vertical="bottom")
    for run in merged:
        table.add_row(run.partition, *(_cell(run.metadata[key]) for key in _COLUMNS.values()))
    return table


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


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
