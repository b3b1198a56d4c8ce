"""Small tables that lie in a table's directory, where VACUUM passes by, and forget after a time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from deltaweave.changes.events import PREFIX
from deltaweave.table import Table

NOTED = f"{PREFIX}noted_at"
"""Column of such a table: when a row was noted."""


def newest_version(kept_in: Table) -> int:
    """Its newest version; -1 where there is no such table yet."""
    return kept_in.version() if kept_in.exists() else -1


def noted_before(keep_for: timedelta) -> str:
    """The SQL condition of rows that were noted longer ago."""
    before = (datetime.now(timezone.utc) - keep_for).isoformat()
    return f"{NOTED} < TIMESTAMP '{before}'"
