"""Which commits a version of a table consists of, and what they applied, after RESTORE and CLONE.

- `commit_lines`: the commits of a version, by the log alone.
- `lineage`: the remembered events and transaction ids that a version has, by these commits.
"""

from __future__ import annotations

from deltaweave.changes.restores.commit_lines import (
    RESTORED,
    Log,
    applied_in_line,
    begins_history,
    keep,
    version_before,
)
from deltaweave.changes.restores.lineage import (
    LOOKED_AT,
    NOTED_EVERY,
    Lineage,
    LineageLease,
    LogOf,
    cloned_by,
    id_to_commit,
    last_look,
    lineage_lease,
    newest_in_line,
    noted_by_clone,
    source_of,
    was_restored_or_replaced,
)

__all__ = [
    "LOOKED_AT",
    "NOTED_EVERY",
    "RESTORED",
    "Lineage",
    "LineageLease",
    "Log",
    "LogOf",
    "applied_in_line",
    "begins_history",
    "cloned_by",
    "id_to_commit",
    "keep",
    "last_look",
    "lineage_lease",
    "newest_in_line",
    "noted_by_clone",
    "source_of",
    "version_before",
    "was_restored_or_replaced",
]
