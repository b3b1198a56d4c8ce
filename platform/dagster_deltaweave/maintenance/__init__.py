"""Maintenance of Delta tables: OPTIMIZE, VACUUM and rematerialization when they are due.

- `jobs`: jobs and schedules that maintain tables, by `deltaweave.maintenance`, and the policy that
  says when pending changes are due to be merged into the base.
"""

from __future__ import annotations

from dagster_deltaweave.maintenance.jobs import (
    RematerializationPolicy,
    build_upkeep_job,
    build_upkeep_schedule,
)
from deltaweave.maintenance import OPERATIONS, UpkeepPolicy

__all__ = [
    "OPERATIONS",
    "RematerializationPolicy",
    "UpkeepPolicy",
    "build_upkeep_job",
    "build_upkeep_schedule",
]
