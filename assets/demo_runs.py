"""Runs that the landing sensor requests, executed in this process.

They are runs of the code location in `workspace.yaml`, as those that the daemon starts: Dagster's
UI shows no others in its timeline and on the page of their job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    TableMetadataValue,
    build_sensor_context,
)

from assets.definitions import defs
from assets.sensors import merge_web_returns, web_returns_landed
from assets.web_returns import web_returns
from dagster_deltaweave.dagster_private import (
    PARTITION_NAME_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    SINGLETON_REPOSITORY_NAME,
    InMemoryJob,
    RemoteRepositoryOrigin,
    execute_run,
    location_origins_from_yaml_paths,
)

if TYPE_CHECKING:
    from dagster import (
        AddDynamicPartitionsRequest,
        DeleteDynamicPartitionsRequest,
        JobExecutionResult,
    )

_WORKSPACE = Path(__file__).resolve().parent.parent / "workspace.yaml"


class RunFailedError(RuntimeError):
    """A run of the demo failed; the message is its error's."""


@dataclass(frozen=True)
class Merged:
    """What one run merged into web_returns, as its materialization's metadata says.

    Attributes:
        partition: The source partition.
        metadata: Metadata key to value.
    """

    partition: str
    metadata: Mapping[str, object]


def requested_runs(instance: DagsterInstance) -> list[RunRequest]:
    """Return the runs that failed before, and those that the landing sensor requests now.

    The sensor requests a failed run again after a pause, and some times only. Whoever runs the demo
    again does not wait.
    """
    requests = {each.partition_key: each for each in _failed_before(instance)}
    # The reference lets the sensor look up dynamic partitions.
    context = build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), definitions=defs
    )
    tick = web_returns_landed.evaluate_tick(context)
    for request in tick.run_requests or ():
        requests.setdefault(request.partition_key, request)
    _add_partitions(instance, tick.dynamic_partitions_requests or ())
    for event in tick.asset_events:
        instance.report_runless_asset_event(event)
    return list(requests.values())


def execute(instance: DagsterInstance, request: RunRequest) -> Merged:
    """Execute a requested run; what it merged.

    Raises:
        RunFailedError: The run failed.
    """
    job = defs.resolve_job_def(merge_web_returns.name)
    resolved = request.with_resolved_tags_and_config(job, (), instance)
    run = instance.create_run_for_job(
        job,
        run_config=resolved.run_config,
        tags={**job.run_tags, **resolved.tags, **_tags(request)},
        remote_job_origin=_repository().get_job_origin(job.name),
    )
    result = execute_run(InMemoryJob(job), run, instance)
    partition = request.partition_key or ""
    if not result.success:
        raise RunFailedError(f"The run of {partition} failed. {_error_of(result)}")
    return _merged(result, partition)


@cache
def _repository() -> RemoteRepositoryOrigin:
    """Return the definitions as `dagster dev` finds them by the workspace."""
    [location] = location_origins_from_yaml_paths([str(_WORKSPACE)])
    return RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)


def _failed_before(instance: DagsterInstance) -> list[RunRequest]:
    """Return a run request for each partition whose newest run failed."""
    newest: dict[str, DagsterRun] = {}
    for run in instance.get_runs(RunsFilter(tags={SENSOR_NAME_TAG: web_returns_landed.name})):
        newest.setdefault(run.tags[PARTITION_NAME_TAG], run)
    return [
        RunRequest(
            run_key=run.tags[RUN_KEY_TAG],
            partition_key=partition,
            # Also those that Dagster's pages hide: `.dagster/deltaweave.…`.
            tags={name: tag for name, tag in run.tags.items() if "deltaweave" in name},
        )
        for partition, run in sorted(newest.items())
        if run.status in (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
    ]


def _tags(request: RunRequest) -> dict[str, str]:
    """Return the tags by which Dagster knows the run of a sensor's request."""
    return {SENSOR_NAME_TAG: web_returns_landed.name, RUN_KEY_TAG: request.run_key or ""}


def _add_partitions(
    instance: DagsterInstance,
    requests: Sequence[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest],
) -> None:
    for request in requests:
        instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)


def _error_of(result: JobExecutionResult) -> str:
    for event in result.all_events:
        if event.is_step_failure and (error := event.step_failure_data.error):
            # Dagster's own error names the step; its cause is what the asset or the merge raised.
            return (error.cause or error).message.strip()
    return "\n".join(event.message or "" for event in result.all_events if event.is_failure)


def _merged(result: JobExecutionResult, partition: str) -> Merged:
    (materialization,) = (
        event.step_materialization_data.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == web_returns.key
    )
    values = {key: entry.value for key, entry in materialization.metadata.items()}
    table = materialization.metadata["merge/metrics"]
    assert isinstance(table, TableMetadataValue)
    numbers = {str(each.data["metric"]): each.data["value"] for each in table.records}
    return Merged(partition, {**values, **numbers})
