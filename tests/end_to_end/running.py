"""A Dagster of a test's own: webserver, daemon and code location as `dagster dev` runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from assets.java_program import free_ports

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

_LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
_BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
_EXECUTE_AGAIN = """
mutation ($params: ReexecutionParams!) {
  launchRunReexecution(reexecutionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
_START_SENSOR = """
mutation ($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) {
    __typename
    ... on PythonError { message }
  }
}
"""


@dataclass(frozen=True)
class RunningDagster:
    """A webserver that answers, and the instance that it and the daemon work on.

    Attributes:
        url: The webserver's address.
        instance: The instance; what is started goes through the webserver all the same.
        location: Name of the code location.
        log: File of all that the processes print.
    """

    url: str
    instance: DagsterInstance
    location: str
    log: Path

    def start_sensor(self, name: str) -> None:
        self._mutate(_START_SENSOR, {"selector": {**self._repository(), "sensorName": name}})

    def launch(
        self, assets: Sequence[str], partition: str | None = None, job: str = "__ASSET_JOB"
    ) -> str:
        """Materialize assets in one run; its id."""
        tags = [] if partition is None else [{"key": "dagster/partition", "value": partition}]
        selector = {
            **self._repository(),
            "jobName": job,
            "assetSelection": [{"path": [name]} for name in assets],
        }
        params = {"selector": selector, "executionMetadata": {"tags": tags}, "mode": "default"}
        run_id: str = self._mutate(_LAUNCH, {"params": params})["run"]["runId"]
        return run_id

    def execute_again(self, run_id: str) -> str:
        """All steps of a run in a new run; its id."""
        params = {"parentRunId": run_id, "strategy": "ALL_STEPS"}
        new_id: str = self._mutate(_EXECUTE_AGAIN, {"params": params})["run"]["runId"]
        return new_id

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> str:
        """Materialize assets for partitions; the backfill's id."""
        params = {
            "assetSelection": [{"path": [name]} for name in assets],
            "partitionNames": list(partitions),
        }
        backfill_id: str = self._mutate(_BACKFILL, {"params": params})["backfillId"]
        return backfill_id

    def requested(self, partition: str) -> DagsterRun:
        """The run of a partition, once a sensor has requested it."""
        return self.eventually(
            f"a sensor has requested {partition}",
            lambda: next(
                (
                    run
                    for run in self.runs(dagster_partition=partition)
                    if "dagster/sensor_name" in run.tags
                ),
                None,
            ),
        )

    def finished(self, run_id: str, seconds: float = 180) -> DagsterRun:
        """The run, once it has ended."""
        return self.eventually(
            f"run {run_id} has ended",
            lambda: next(
                (run for run in [self.instance.get_run_by_id(run_id)] if run and run.is_finished),
                None,
            ),
            seconds,
        )

    def runs(self, **tags: str) -> list[DagsterRun]:
        """Runs with these tags (`_` stands for `/`), oldest first."""
        spelt = {name.replace("_", "/", 1): value for name, value in tags.items()}
        return list(reversed(self.instance.get_runs(RunsFilter(tags=spelt))))

    def eventually(self, what: str, look: Callable[[], T | None], seconds: float = 180) -> T:
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"Not within {seconds:.0f} s: {what}.\n{self.errors()}\n"
                    f"{self.log.read_text()[-3_000:]}"
                )
            time.sleep(0.2)
        return found

    def errors(self) -> str:
        """The errors of the runs that failed."""
        lines = []
        for run in self.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE])):
            for entry in self.instance.all_logs(run.run_id):
                event = entry.dagster_event
                if event and event.is_failure:
                    lines.append(f"{run.run_id}: {event.message} {event.event_specific_data}")
        return "\n".join(lines)

    def _repository(self) -> dict[str, str]:
        return {
            "repositoryName": "__repository__",
            "repositoryLocationName": self.location,
        }

    def _mutate(self, mutation: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        answer = requests.post(
            f"{self.url}/graphql", json={"query": mutation, "variables": variables}, timeout=60
        ).json()
        assert "errors" not in answer, answer["errors"]
        [result] = answer["data"].values()
        assert isinstance(result, dict)
        assert "message" not in result, result
        return result


@contextmanager
def running_dagster(
    command: Callable[[int], Sequence[str]],
    home: Path,
    *,
    location: str,
    settings: str,
    environment: Mapping[str, str],
) -> Iterator[RunningDagster]:
    """Start Dagster on a home of its own and end it afterwards.

    Args:
        command: What starts it on a port, from the repository's root.
        home: Dagster's home.
        location: Name of its code location.
        settings: Text of the home's `dagster.yaml`.
        environment: Variables on top of this process's.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "dagster.yaml").write_text(settings)
    [port] = free_ports(1)
    log = home / "dagster.log"
    with DagsterInstance.from_config(str(home)) as instance:
        # Makes the databases: Dagster's processes, all at once, at times fail to.
        instance.get_runs_count(), instance.get_asset_keys(), instance.all_instigator_state()
        with log.open("w") as output:
            process = subprocess.Popen(
                command(port),
                cwd=ROOT,
                env={**os.environ, "DAGSTER_HOME": str(home), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            dagster = RunningDagster(f"http://127.0.0.1:{port}", instance, location, log)
            dagster.eventually("the webserver answers", lambda: _answers(dagster.url, process))
            yield dagster
        finally:
            _end(process)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool | None:
    assert process.poll() is None, "dagster dev ended"
    try:
        return requests.get(f"{url}/server_info", timeout=5).ok or None
    except requests.ConnectionError:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let Dagster end its processes, then end what is left of the group."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
