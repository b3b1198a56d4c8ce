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
    LogOf,
    OfOneLine,
    cloned_by,
    has_left,
    id_to_commit,
    last_look,
    line_of,
    newest_in_line,
    noted_by_clone,
    source_of,
)

__all__ = [
    "LOOKED_AT",
    "NOTED_EVERY",
    "RESTORED",
    "Lineage",
    "Log",
    "LogOf",
    "OfOneLine",
    "applied_in_line",
    "begins_history",
    "cloned_by",
    "has_left",
    "id_to_commit",
    "keep",
    "last_look",
    "line_of",
    "newest_in_line",
    "noted_by_clone",
    "source_of",
    "version_before",
]
