"""The Dagster side of deltaweave: Delta tables as assets, each materialization one merge.

The public names are here, and they are lazy: importing the package imports no pyspark and no
pandas, and nothing in it starts a JVM before a run asks for the session.

What starts a merge by itself: source partitions that land (`build_partition_sensor`), a source
Delta table that changes (`build_table_sensor`), and upstream assets. For the last there is nothing
here, because Dagster has it: give the asset an automation condition.

>>> @merge_asset(keys=["id"], automation_condition=AutomationCondition.eager())
... def customers(raw_customers: DataFrame) -> DataFrame: ...

It follows partition mappings, waits until no upstream is missing or in progress, and runs as long
as the sensor `default_automation_condition_sensor` is switched on. For partitions of time, `eager`
looks at the newest alone: where older ones are delivered again, take it
`.without(AutomationCondition.in_latest_time_window())`. Commits of other writers to a table reach
the assets downstream through `build_commit_observer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_deltaweave.asset_decorator import merge_asset
    from dagster_deltaweave.cdc_decorator import cdc_asset
    from dagster_deltaweave.changes import Changes
    from dagster_deltaweave.checks import build_table_checks
    from dagster_deltaweave.commit_observer import build_commit_observer
    from dagster_deltaweave.component import MergeAssetComponent
    from dagster_deltaweave.declaration import MergeDeclaration
    from dagster_deltaweave.io_manager import SparkDeltaIOManager
    from dagster_deltaweave.landing import partition_path
    from dagster_deltaweave.landing_sensor import build_partition_sensor
    from dagster_deltaweave.merge_checks import build_merge_checks
    from dagster_deltaweave.merge_on_read_decorator import MergeOnReadAssets, merge_on_read_asset
    from dagster_deltaweave.orphan_changes import build_orphan_changes_check
    from dagster_deltaweave.pending_check import build_pending_changes_check
    from dagster_deltaweave.rematerialization import (
        build_rematerialization_schedule,
        build_rematerialization_sensor,
    )
    from dagster_deltaweave.rematerialization_policy import RematerializationPolicy
    from dagster_deltaweave.run_partitions import is_full_refresh, partition_keys, partition_tags
    from dagster_deltaweave.source_partition import read_source_partition
    from dagster_deltaweave.spark import SparkResource
    from dagster_deltaweave.streams import build_stream_job
    from dagster_deltaweave.table_sensor import build_table_sensor
    from dagster_deltaweave.upkeep import build_upkeep_job, build_upkeep_schedule
    from dagster_deltaweave.upkeep_policy import UpkeepPolicy

__all__ = [
    "Changes",
    "MergeAssetComponent",
    "MergeDeclaration",
    "MergeOnReadAssets",
    "RematerializationPolicy",
    "SparkDeltaIOManager",
    "SparkResource",
    "UpkeepPolicy",
    "build_commit_observer",
    "build_merge_checks",
    "build_orphan_changes_check",
    "build_partition_sensor",
    "build_pending_changes_check",
    "build_rematerialization_schedule",
    "build_rematerialization_sensor",
    "build_stream_job",
    "build_table_checks",
    "build_table_sensor",
    "build_upkeep_job",
    "build_upkeep_schedule",
    "cdc_asset",
    "is_full_refresh",
    "merge_asset",
    "merge_on_read_asset",
    "partition_keys",
    "partition_path",
    "partition_tags",
    "read_source_partition",
]

_HOMES = {
    "Changes": "changes",
    "MergeAssetComponent": "component",
    "MergeDeclaration": "declaration",
    "MergeOnReadAssets": "merge_on_read_decorator",
    "RematerializationPolicy": "rematerialization_policy",
    "SparkDeltaIOManager": "io_manager",
    "SparkResource": "spark",
    "UpkeepPolicy": "upkeep_policy",
    "build_commit_observer": "commit_observer",
    "build_merge_checks": "merge_checks",
    "build_orphan_changes_check": "orphan_changes",
    "build_partition_sensor": "landing_sensor",
    "build_pending_changes_check": "pending_check",
    "build_rematerialization_schedule": "rematerialization",
    "build_rematerialization_sensor": "rematerialization",
    "build_stream_job": "streams",
    "build_table_checks": "checks",
    "build_table_sensor": "table_sensor",
    "build_upkeep_job": "upkeep",
    "build_upkeep_schedule": "upkeep",
    "cdc_asset": "cdc_decorator",
    "is_full_refresh": "run_partitions",
    "merge_asset": "asset_decorator",
    "merge_on_read_asset": "merge_on_read_decorator",
    "partition_keys": "run_partitions",
    "partition_path": "landing",
    "partition_tags": "run_partitions",
    "read_source_partition": "source_partition",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dagster_deltaweave' has no attribute {name!r}")
    return getattr(import_module(f"dagster_deltaweave.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
