"""Dagster components: tables, their sensors, checks and maintenance, declared in YAML.

- `table_assets`: `MergeAssetComponent`, `CdcAssetComponent` and `MergeOnReadAssetComponent`, the
  YAML forms of the three decorators.
- `automation`: `LandingSensorComponent`, `MaintenanceComponent` and `TableChecksComponent`, the
  YAML forms of `build_partition_sensor`, `build_upkeep_schedule`, and `build_table_checks` with
  `build_merge_checks`.
- `found_tables`: `DeltaTablesComponent`, tables that others write as external assets.
- `table_component`: what the components of tables have in common: their asset, the source of its
  rows, and how other components find them.
"""

from __future__ import annotations

from dagster_deltaweave.components.automation import (
    LandingSensorComponent,
    MaintenanceComponent,
    TableChecksComponent,
)
from dagster_deltaweave.components.found_tables import DeltaTablesComponent
from dagster_deltaweave.components.table_assets import (
    CdcAssetComponent,
    MergeAssetComponent,
    MergeOnReadAssetComponent,
)

__all__ = [
    "CdcAssetComponent",
    "DeltaTablesComponent",
    "LandingSensorComponent",
    "MaintenanceComponent",
    "MergeAssetComponent",
    "MergeOnReadAssetComponent",
    "TableChecksComponent",
]
