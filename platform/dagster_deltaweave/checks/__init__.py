"""Asset checks of Delta tables and of what runs did to them.

- `table_rows`: unique keys, nulls, schema and age of a table, in one pass over it.
- `merge_results`: row counts of a merge, read from the metadata that it recorded.
- `delivered_changes`: whether the changes that were delivered are in the table, wait in a
  merge-on-read table, or were put aside because they could not be applied.
- `check_definition`: specs, results and the table of all checks; which run a check judges.
"""

from __future__ import annotations

from dagster_deltaweave.checks.delivered_changes import (
    build_orphan_changes_check,
    build_pending_changes_check,
    build_rescued_events_check,
)
from dagster_deltaweave.checks.merge_results import CHECKS_OF_MERGES, build_merge_checks
from dagster_deltaweave.checks.table_rows import build_table_checks

__all__ = [
    "CHECKS_OF_MERGES",
    "build_merge_checks",
    "build_orphan_changes_check",
    "build_pending_changes_check",
    "build_rescued_events_check",
    "build_table_checks",
]
