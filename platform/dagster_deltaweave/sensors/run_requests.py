"""Shared by sensors: Dagster's own arguments, run keys, run requests and dynamic partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterInvalidDefinitionError,
    DagsterRun,
    DagsterRunStatus,
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    RunsFilter,
    SensorEvaluationContext,
    TimeWindowPartitionsDefinition,
)

from dagster_deltaweave.dagster_private import (
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    RemoteJobOrigin,
    RemotePartitionSetOrigin,
)
from dagster_deltaweave.partitions import keys_of_windows


class SensorArguments(TypedDict, total=False):
    """Arguments of Dagster's `sensor` that are passed on as they are."""

    metadata: Mapping[str, Any] | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None


def check_least(sensor: str, least: int, **given: float) -> None:
    """Refuse numbers below the least with which a sensor does anything."""
    for name, number in given.items():
        if not number >= least:  # nor may it be NaN
            raise DagsterInvalidDefinitionError(
                f"sensor {sensor}: {name} is {number}, and must be at least {least}."
            )


def check_marker(sensor: str, marker: str | None) -> None:
    """Refuse a marker without a name: each directory has it, also while it is being copied."""
    if marker is not None and not marker.strip():
        raise DagsterInvalidDefinitionError(
            f"sensor {sensor}: marker is empty. Give the name of the file that is written last, or "
            "None if none is."
        )


Candidate = TypeVar("Candidate")
Request = TypeVar("Request")

_LOOK_UPS_PER_TICK = 1_000

_IN_NO_KEY = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]|\.\.\.")


def has_run(context: SensorEvaluationContext, sensor_name: str, run_key: str) -> bool:
    """Return whether a run that a sensor requested with a run key need not be requested again.

    Dagster drops a request whose run key it has seen, and reports it only in the daemon's log.
    After a lost cursor, a sensor would fill many ticks with such requests. So it looks up
    beforehand which run keys Dagster has seen, one by one as the daemon does.

    If a run was created but never launched, the daemon launches it when it is requested again.
    """
    runs = runs_with_key(context, run_key)
    own = [each for each in runs if is_of_sensor(context, sensor_name, each)]
    return bool(own) and own[0].status != DagsterRunStatus.NOT_STARTED


def runs_with_key(context: SensorEvaluationContext, run_key: str) -> list[DagsterRun]:
    """Return the runs that were requested with a run key, by any sensor, the newest first."""
    wanted = RunsFilter(tags={RUN_KEY_TAG: run_key})
    return [each.dagster_run for each in context.instance.get_run_records(wanted)]


def is_of_sensor(context: SensorEvaluationContext, sensor_name: str, run: DagsterRun) -> bool:
    """Return whether Dagster counts a run as one of this sensor, and drops its run key."""
    has_name = run.tags.get(SENSOR_NAME_TAG) == sensor_name
    return has_name and is_here(context, run.remote_job_origin)


def is_here(
    context: SensorEvaluationContext, origin: RemoteJobOrigin | RemotePartitionSetOrigin | None
) -> bool:
    """Return whether a run or a backfill is of the sensor's code location; also if unknown.

    Another code location may have jobs and sensors of the same names.
    """
    ours = context.code_location_origin
    if origin is None or ours is None:
        return True
    theirs = origin.repository_origin
    return (
        theirs.code_location_origin.location_name == ours.location_name
        and theirs.repository_name == context.repository_name
    )


def first_without_a_run(
    candidates: Sequence[Candidate],
    *,
    request: Callable[[Candidate], Request | None],
    limit: int,
) -> tuple[list[Request], list[Candidate]]:
    """Choose the first candidates without a run.

    After `limit` requests, or a thousand look-ups, the rest is left for the next tick.

    Args:
        candidates: What is to have a run, in order.
        request: Returns the request for a candidate; None if it has a run.
        limit: The most requests.

    Returns:
        The requests, and the candidates that have a run already.
    """
    chosen: list[Request] = []
    passed: list[Candidate] = []
    for candidate in candidates[:_LOOK_UPS_PER_TICK]:
        if len(chosen) == limit:
            break
        requested = request(candidate)
        if requested is None:
            passed.append(candidate)
        else:
            chosen.append(requested)
    return chosen, passed


def added_partitions(
    context: SensorEvaluationContext,
    partitions_def: PartitionsDefinition[str] | None,
    partitions: Sequence[str],
) -> list[AddDynamicPartitionsRequest]:
    """Return the request that adds the partitions that Dagster does not have yet, if any."""
    if not isinstance(partitions_def, DynamicPartitionsDefinition) or not partitions_def.name:
        return []
    missing = [
        partition
        for partition in partitions
        if not context.instance.has_dynamic_partition(partitions_def.name, partition)
    ]
    return [partitions_def.build_add_request(missing)] if missing else []


def is_key(partition: str) -> bool:
    """Return whether Dagster accepts a text as a partition key; other keys fail the tick."""
    return partition != "" and not _IN_NO_KEY.search(partition)


def known_partitions(
    context: SensorEvaluationContext, partitions_def: PartitionsDefinition[str] | None
) -> frozenset[str] | None:
    """Return the partitions that a definition has now, or None if it takes any."""
    if partitions_def is None or isinstance(partitions_def, DynamicPartitionsDefinition):
        return None
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return keys_of_windows(partitions_def)
    # A dimension may be dynamic.
    return frozenset(partitions_def.get_partition_keys(dynamic_partitions_store=context.instance))
