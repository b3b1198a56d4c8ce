"""Print how runs spend the time from their request to their merge's commit, by the event log.

    python -m dagster_deltaweave.latency --last 10

reads the instance that DAGSTER_HOME names, and prints a line for the first merge of each run, the
latest run first. The time before the request, which is not shown, is the sensor's interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, EventLogEntry, RunsFilter

_MERGE_SECONDS = "merge/seconds"


@dataclass(frozen=True)
class Latency:
    """The seconds of each stage from a run's request to its first materialization by a merge.

    Attributes:
        run_id: The run.
        asset: The asset that was merged.
        queued: Until the daemon took the run from the queue; 0 if there is no queue.
        starting: Then, until the run's process had loaded the definitions and began.
        preparing: Then, until the asset's function had returned: Spark, and what it read.
        merging: The merge itself.
        storing: Other work of the IO manager before the commit, such as creating the table.
        recording: The run's work after the commit: the metadata of the materialization.
    """

    run_id: str
    asset: str
    queued: float
    starting: float
    preparing: float
    merging: float
    storing: float
    recording: float

    @property
    def beyond_the_merge(self) -> float:
        """The time up to the commit without the merge itself."""
        return self.queued + self.starting + self.preparing + self.storing


def latencies(instance: DagsterInstance, last: int = 10) -> Iterator[Latency]:
    """Yield the latency of each of the last successful runs that merged, the latest run first."""
    successful = RunsFilter(statuses=[DagsterRunStatus.SUCCESS])
    for run in instance.get_runs(successful, limit=last):
        latency = _latency_of_run(instance.all_logs(run.run_id))
        if latency is not None:
            yield latency


def _latency_of_run(events: Iterable[EventLogEntry]) -> Latency | None:
    at: dict[DagsterEventType, float] = {}
    returned: dict[str | None, float] = {}
    committed: dict[str | None, float] = {}
    for event in events:
        if event.dagster_event is None:
            continue
        at[event.dagster_event.event_type] = event.timestamp
        # Several steps may run at once, and each may be tried again.
        step = event.dagster_event.step_key
        if event.dagster_event.event_type == DagsterEventType.STEP_OUTPUT:
            returned[step] = event.timestamp
            committed.pop(step, None)
        observation = event.asset_observation
        if observation is not None and any(
            key.startswith("merge/") for key in observation.metadata
        ):
            # It is recorded as soon as the merge returned.
            committed.setdefault(step, event.timestamp)
        materialization = event.asset_materialization
        if materialization is None or _MERGE_SECONDS not in materialization.metadata:
            continue
        merging = float(str(materialization.metadata[_MERGE_SECONDS].value))
        began = at[DagsterEventType.PIPELINE_START]
        launched = at.get(DagsterEventType.PIPELINE_STARTING, began)
        requested = at.get(DagsterEventType.PIPELINE_ENQUEUED, launched)
        merged = committed[step]
        return Latency(
            run_id=event.run_id,
            asset=materialization.asset_key.to_user_string(),
            queued=launched - requested,
            starting=began - launched,
            preparing=returned[step] - began,
            merging=merging,
            storing=merged - returned[step] - merging,
            recording=event.timestamp - merged,
        )
    return None


def main() -> None:
    """Print the latencies of an instance's last runs."""
    parser = argparse.ArgumentParser(description="Where the seconds of merging runs go.")
    parser.add_argument("--last", type=int, default=10, help="how many runs to look at")
    last = parser.parse_args().last
    columns = (
        "queued",
        "starting",
        "preparing",
        "storing",
        "beyond_the_merge",
        "merging",
        "recording",
    )
    print(f"{'run':8} {'asset':24} " + " ".join(f"{name:>16}" for name in columns))
    with DagsterInstance.get() as instance:
        for each in latencies(instance, last):
            seconds = " ".join(f"{getattr(each, name):16.1f}" for name in columns)
            print(f"{each.run_id[:8]} {each.asset:24} {seconds}")


if __name__ == "__main__":
    main()
