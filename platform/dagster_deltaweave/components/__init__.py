"""Dagster components: tables, their sensors, checks and maintenance, declared in YAML.

- `merge_asset`: `MergeAssetComponent`, the YAML form of `@merge_asset`.
- `cdc_asset`: `CdcAssetComponent`, that of `@cdc_asset`.
- `merge_on_read_asset`: `MergeOnReadAssetComponent`, that of `@merge_on_read_asset`.
- `landing_sensor`: `LandingSensorComponent`, that of `build_partition_sensor`.
- `table_checks`: `TableChecksComponent`, that of `build_table_checks` and `build_merge_checks`.
- `maintenance`: `MaintenanceComponent`, that of `build_upkeep_schedule`.
- `found_tables`: `DeltaTablesComponent`, tables that others write as external assets.
- `table_component`: what the components of tables have in common, and how others find them.
- `merge_sources`: the sources of a table's rows.
"""

from __future__ import annotations

from dagster_deltaweave.components.cdc_asset import CdcAssetComponent
from dagster_deltaweave.components.found_tables import DeltaTablesComponent
from dagster_deltaweave.components.landing_sensor import LandingSensorComponent
from dagster_deltaweave.components.maintenance import MaintenanceComponent
from dagster_deltaweave.components.merge_asset import MergeAssetComponent
from dagster_deltaweave.components.merge_on_read_asset import MergeOnReadAssetComponent
from dagster_deltaweave.components.table_checks import TableChecksComponent

__all__ = [
    "CdcAssetComponent",
    "DeltaTablesComponent",
    "LandingSensorComponent",
    "MaintenanceComponent",
    "MergeAssetComponent",
    "MergeOnReadAssetComponent",
    "TableChecksComponent",
]
