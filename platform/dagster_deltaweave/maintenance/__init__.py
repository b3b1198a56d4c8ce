"""Maintenance of Delta tables: OPTIMIZE, VACUUM and rematerialization when they are due.

- `policy`: the numbers at which a table needs maintenance.
- `operations`: what maintenance does to a table, and what it records.
- `jobs`: jobs and schedules that maintain tables.
- `rematerialization_policy`: when pending changes are due to be merged into the base.
"""

from __future__ import annotations

from dagster_deltaweave.maintenance.jobs import build_upkeep_job, build_upkeep_schedule
from dagster_deltaweave.maintenance.operations import OPERATIONS
from dagster_deltaweave.maintenance.policy import UpkeepPolicy
from dagster_deltaweave.maintenance.rematerialization_policy import RematerializationPolicy

__all__ = [
    "OPERATIONS",
    "RematerializationPolicy",
    "UpkeepPolicy",
    "build_upkeep_job",
    "build_upkeep_schedule",
]
