"""Which commit last changed a table's rows: upkeep makes versions too, and changes none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from dagster_deltaweave.observations import sql_name

if TYPE_CHECKING:
    from pyspark.sql import Row

    from deltaweave import Table

SAME_ROWS = frozenset(
    {
        "ADD CONSTRAINT",
        "CLUSTER BY",
        "COMPUTE STATS",
        "DOMAIN METADATA CLEANUP",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "OPTIMIZE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Operations of Delta's history after which a table has the rows it had before."""

_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_AT_FIRST = 100
"""How many commits are looked at first; each is a file of the log."""


@dataclass(frozen=True)
class Change:
    """The commit that changed a table's rows last, as far as its log tells.

    Attributes:
        version: The version it made.
        committed_at: When, in UTC.
        is_in_log: Whether the log still holds it. Where all commits that the log holds left the
            rows as they were, this is the oldest of them: the change is that old, or older.
        newest: The newest version that was looked at: it has the rows of `version`.
    """

    version: int
    committed_at: datetime
    is_in_log: bool
    newest: int


def last_change(table: Table) -> Change:
    """The newest commit of a table that is not known to have left its rows as they were.

    Raises:
        DeltaweaveError: There is no table.
    """
    table.version()  # names the table in the error where there is none
    limit = _AT_FIRST
    while True:
        commits = _newest_commits(table, limit)
        for commit in commits:
            if not _left_rows(commit.operation, commit.operationMetrics):
                return _change(commit, commits, is_in_log=True)
        if len(commits) < limit:
            return _change(commits[-1], commits, is_in_log=False)
        limit *= 10  # so that all that is read again is little beside what is read last


def _newest_commits(table: Table, limit: int) -> list[Row]:
    history = table.spark.sql(f"DESCRIBE HISTORY {sql_name(table.path_or_name)} LIMIT {limit}")
    # The moment itself: Spark hands out timestamps in local time, of which an hour comes twice.
    moment = "unix_millis(timestamp) AS ms"
    return history.selectExpr("version", moment, "operation", "operationMetrics").collect()


def _change(commit: Row, commits: list[Row], *, is_in_log: bool) -> Change:
    committed_at = datetime.fromtimestamp(commit.ms / 1000, timezone.utc)
    return Change(commit.version, committed_at, is_in_log, commits[0].version)


def _left_rows(operation: str, metrics: Mapping[str, str] | None) -> bool:
    """Whether a commit left the rows as they were; a merge may commit an idempotency pair alone."""
    if operation == "MERGE":
        return all((metrics or {}).get(name) == "0" for name in _CHANGED)
    return operation in SAME_ROWS
