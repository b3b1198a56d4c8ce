"""What sensors request of Dagster: runs by run key, and the dynamic partitions they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterRun,
    DagsterRunStatus,
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    RunsFilter,
    SensorEvaluationContext,
)
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG

T = TypeVar("T")

_LOOK_UPS_PER_TICK = 1_000


def first_without_a_run(
    context: SensorEvaluationContext,
    sensor_name: str,
    candidates: Sequence[T],
    *,
    run_key: Callable[[T], str],
    limit: int,
) -> tuple[list[T], list[T]]:
    """The first candidates whose run key this sensor has not used, and those before that it has.

    Dagster drops a request whose run key it has seen, and says so only in the daemon's log: after
    a lost cursor a sensor would fill tick after tick with requests that come to nothing. Which run
    keys it has seen is therefore asked beforehand, one by one as the daemon does.

    Args:
        context: The tick's.
        sensor_name: The sensor's name.
        candidates: In the order in which they are to be requested.
        run_key: A candidate's run key.
        limit: How many to return at most.

    Returns:
        Those to request, and those that have a run. Together they are the first candidates: after
        `limit` of the former, or a thousand look-ups, the rest is left for the next tick.
    """
    chosen: list[T] = []
    passed: list[T] = []
    for candidate in candidates[:_LOOK_UPS_PER_TICK]:
        if len(chosen) == limit:
            break
        (passed if _has_run(context, sensor_name, run_key(candidate)) else chosen).append(candidate)
    return chosen, passed


def _has_run(context: SensorEvaluationContext, sensor_name: str, run_key: str) -> bool:
    runs = context.instance.get_runs(RunsFilter(tags={RUN_KEY_TAG: run_key}))
    return any(_is_of(context, sensor_name, run) for run in runs)


def _is_of(context: SensorEvaluationContext, sensor_name: str, run: DagsterRun) -> bool:
    # Of a run that was created and never launched the daemon takes care when it is requested again.
    if run.status == DagsterRunStatus.NOT_STARTED:
        return False
    if run.tags.get(SENSOR_NAME_TAG) != sensor_name:
        return False
    origin, ours = run.remote_job_origin, context.code_location_origin
    if origin is None or ours is None:
        return True
    theirs = origin.repository_origin
    return (
        theirs.code_location_origin.location_name == ours.location_name
        and theirs.repository_name == context.repository_name
    )


def additions(
    context: SensorEvaluationContext,
    partitions_def: PartitionsDefinition[str] | None,
    partitions: Sequence[str],
) -> list[AddDynamicPartitionsRequest]:
    """The request that adds those of the partitions that Dagster does not have yet, if any."""
    if not isinstance(partitions_def, DynamicPartitionsDefinition) or not partitions_def.name:
        return []
    missing = [
        partition
        for partition in partitions
        if not context.instance.has_dynamic_partition(partitions_def.name, partition)
    ]
    return [partitions_def.build_add_request(missing)] if missing else []
