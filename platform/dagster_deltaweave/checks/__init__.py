"""Asset checks of Delta tables and of what runs did to them.

- `table_rows`: unique keys, nulls, schema and age of a table, in one pass over it.
- `table_findings`: reads the table for those checks.
- `check_definition`: specs, results and the table, shared by all checks.
- `merge_results`: row counts of a merge, read from the metadata that it recorded.
- `pending_changes`: how many changes a merge-on-read table has not merged yet.
- `orphan_changes`: whether the changes that were delivered are in the table.
- `rescued_events`: whether events were put aside because they could not be applied.
- `judged_run`: which run a check judges when several runs work at once.
"""

from __future__ import annotations

from dagster_deltaweave.checks.merge_results import CHECKS_OF_MERGES, build_merge_checks
from dagster_deltaweave.checks.orphan_changes import build_orphan_changes_check
from dagster_deltaweave.checks.pending_changes import build_pending_changes_check
from dagster_deltaweave.checks.rescued_events import build_rescued_events_check
from dagster_deltaweave.checks.table_rows import build_table_checks

__all__ = [
    "CHECKS_OF_MERGES",
    "build_merge_checks",
    "build_orphan_changes_check",
    "build_pending_changes_check",
    "build_rescued_events_check",
    "build_table_checks",
]
