"""Sensors evaluated as the daemon does, on a real instance, and what they asked for."""

from __future__ import annotations

from dagster import AssetKey, DagsterInstance, Definitions, build_sensor_context
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import PARTITION_NAME_TAG, RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.test_utils import create_run_for_test


def tick(
    defs: Definitions,
    instance: DagsterInstance,
    cursor: str | None = None,
    *,
    name: str | None = None,
) -> SensorExecutionData:
    """Evaluate a sensor of these definitions, by default the only one."""
    if name is None:
        [sensor] = defs.sensors or []
        name = sensor.name
    # The reference lets the sensor look up dynamic partitions.
    context = build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, definitions=defs
    )
    return defs.resolve_sensor_def(name).evaluate_tick(context)


def requested(data: SensorExecutionData) -> list[str | None]:
    return [request.partition_key for request in data.run_requests or []]


def run_keys(data: SensorExecutionData) -> list[str | None]:
    return [request.run_key for request in data.run_requests or []]


def launch(
    instance: DagsterInstance,
    sensor: str,
    data: SensorExecutionData,
    status: DagsterRunStatus = DagsterRunStatus.SUCCESS,
) -> None:
    """Let the requested runs be in the instance, as after the daemon launched them."""
    for request in data.run_requests or []:
        tags = {RUN_KEY_TAG: str(request.run_key), SENSOR_NAME_TAG: sensor, **request.tags}
        if request.partition_key:
            tags[PARTITION_NAME_TAG] = request.partition_key
        create_run_for_test(
            instance, tags=tags, status=status, asset_selection=frozenset([AssetKey("orders")])
        )


def launched_tick(
    defs: Definitions, instance: DagsterInstance, cursor: str | None = None
) -> SensorExecutionData:
    """Evaluate the one sensor of these definitions, and let its runs of `orders` succeed."""
    data = tick(defs, instance, cursor)
    [sensor] = defs.sensors or []
    launch(instance, sensor.name, data)
    return data
