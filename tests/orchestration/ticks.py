"""Sensors evaluated as the daemon does, on a real instance, and what they asked for."""

from __future__ import annotations

from dagster import DagsterInstance, Definitions, build_sensor_context
from dagster._core.definitions.sensor_definition import SensorExecutionData


def tick(
    defs: Definitions, instance: DagsterInstance, cursor: str | None = None
) -> SensorExecutionData:
    """Evaluate the one sensor of these definitions."""
    [sensor] = defs.sensors or []
    # The reference lets the sensor look up dynamic partitions.
    context = build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, definitions=defs
    )
    return defs.resolve_sensor_def(sensor.name).evaluate_tick(context)


def requested(data: SensorExecutionData) -> list[str | None]:
    return [request.partition_key for request in data.run_requests or []]


def run_keys(data: SensorExecutionData) -> list[str | None]:
    return [request.run_key for request in data.run_requests or []]
