"""The Dagster side of deltaweave: Delta tables as assets, each materialization one merge.

The public names are here, and they are lazy: importing the package imports no pyspark and no
pandas, and nothing in it starts a JVM before a run asks for the session.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster_deltaweave.asset_decorator import merge_asset
    from dagster_deltaweave.changes import Changes
    from dagster_deltaweave.checks import build_table_checks
    from dagster_deltaweave.declaration import MergeDeclaration
    from dagster_deltaweave.io_manager import SparkDeltaIOManager
    from dagster_deltaweave.merge_checks import build_merge_checks
    from dagster_deltaweave.orphan_changes import build_orphan_changes_check
    from dagster_deltaweave.sensors import build_partition_sensor
    from dagster_deltaweave.source_partition import read_source_partition
    from dagster_deltaweave.spark import SparkResource
    from dagster_deltaweave.upkeep import build_upkeep_schedule

__all__ = [
    "Changes",
    "MergeDeclaration",
    "SparkDeltaIOManager",
    "SparkResource",
    "build_merge_checks",
    "build_orphan_changes_check",
    "build_partition_sensor",
    "build_table_checks",
    "build_upkeep_schedule",
    "merge_asset",
    "read_source_partition",
]

_HOMES = {
    "Changes": "changes",
    "MergeDeclaration": "declaration",
    "SparkDeltaIOManager": "io_manager",
    "SparkResource": "spark",
    "build_merge_checks": "merge_checks",
    "build_orphan_changes_check": "orphan_changes",
    "build_partition_sensor": "sensors",
    "build_table_checks": "checks",
    "build_upkeep_schedule": "upkeep",
    "merge_asset": "asset_decorator",
    "read_source_partition": "source_partition",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dagster_deltaweave' has no attribute {name!r}")
    return getattr(import_module(f"dagster_deltaweave.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
