"""Small tables that lie in a table's directory, where VACUUM passes by, and forget after a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.changes.events import PREFIX, SEQUENCE
from deltaweave.engine import clauses
from deltaweave.table import Table

NOTED = f"{PREFIX}noted_at"
"""Column of such a table: when a row was noted."""


def newest_version(kept_in: Table) -> int:
    """Its newest version; -1 where there is no such table yet."""
    return kept_in.version() if kept_in.exists() else -1


def note(kept_in: Table, rows: DataFrame, same: Sequence[str], keep_for: timedelta) -> int | None:
    """Note rows, of which the later by sequence stays, and forget those of longer ago.

    Args:
        kept_in: The table.
        rows: Rows with its columns but for the time of noting.
        same: Conditions under which a noted row `t` and a new one `s` are of the same thing.
        keep_for: How long rows are kept.

    Returns:
        The version committed, or None where nothing changed.
    """
    before = (datetime.now(timezone.utc) - keep_for).isoformat()
    noted = rows.withColumn(NOTED, F.current_timestamp())
    merge = kept_in.merge(noted, on=" AND ".join(same)).add(
        clauses.when_matched_update_all(condition=f"s.{SEQUENCE} > t.{SEQUENCE}"),
        clauses.when_not_matched_insert_all(),
        clauses.when_not_matched_by_source_delete(condition=f"t.{NOTED} < TIMESTAMP '{before}'"),
    )
    return merge.execute().version
