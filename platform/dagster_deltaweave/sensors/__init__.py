"""Sensors and schedules that start runs or record what others committed.

- `landing`: requests runs for source partitions that landed.
- `delivery_plan`: what of that is left to request, in order.
- `target_tables`: the assets of a sensor's target, and which deliveries their tables hold.
- `delivery_runs`: the runs that materialize these assets, what they say of a delivery, and the
  request of one.
- `table`: requests runs for new versions of a source Delta table.
- `commit_observer`: records commits of other writers, which no run made, as observations.
- `rematerialization`: starts the merging of pending changes.
- `run_requests`: Dagster's own arguments of sensors, run keys, run requests, dynamic partitions.
"""

from __future__ import annotations

from dagster_deltaweave.sensors.commit_observer import build_commit_observer
from dagster_deltaweave.sensors.landing import build_partition_sensor
from dagster_deltaweave.sensors.rematerialization import (
    build_rematerialization_schedule,
    build_rematerialization_sensor,
)
from dagster_deltaweave.sensors.table import build_table_sensor

__all__ = [
    "build_commit_observer",
    "build_partition_sensor",
    "build_rematerialization_schedule",
    "build_rematerialization_sensor",
    "build_table_sensor",
]
