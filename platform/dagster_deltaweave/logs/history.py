"""Finds the commits that changed a table's rows: upkeep makes versions too, but changes no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from deltaweave.delta.commit import made_unwritten
from deltaweave.errors import CommitConflictError
from deltaweave.identifiers import table_name

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
"""Operations in Delta's history that leave the table's rows as they were."""

_CREATED_EMPTY = "CREATE TABLE"
_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_AT_FIRST = 100
"""How many commits are read at first; each is a file of the log."""


@dataclass(frozen=True)
class LastChange:
    """The last commit that changed a table's rows, as far as its log shows.

    Attributes:
        version: The version that it made.
        committed_at: When, in UTC.
        is_in_log: Whether the log still holds it. If all commits in the log left the rows as they
            were, this is the oldest of them, and the change is at least that old.
        newest: The newest version that was read: it has the rows of `version`.
    """

    version: int
    committed_at: datetime
    is_in_log: bool
    newest: int


def last_change(table: Table) -> LastChange:
    """Return the newest commit of a table that may have changed its rows.

    Raises:
        DeltaweaveError: There is no table.
    """
    table.version()  # raises an error with the table's name if there is none
    for commits, is_all in _growing_pages(table):
        for commit in commits:
            if not _left_rows(commit):
                return _change(commit, commits, is_in_log=True)
        if is_all:
            return _change(commits[-1], commits, is_in_log=False)
    raise AssertionError("the last commits are all of them")


def version_with_rows_of(table: Table, time_ms: int) -> int:
    """Return the newest version with the rows that the table had at a time.

    It is later than the version of that time if the commits since then left the rows as they were.
    If the newest version is not later than the time, this needs no Spark job. A commit counts as
    later if the storage may have rounded its time down to the second.

    Args:
        table: The table.
        time_ms: The time, in ms since 1970.

    Raises:
        CommitConflictError: There was no table then, and the commit that created it added rows.
        DeltaweaveError: There is no table.
    """
    newest = table.snapshot()
    if _latest(newest.committed_at_ms) <= time_ms:
        return newest.version
    commits: list[Row] = []
    for commits, _ in _growing_pages(table):
        if _latest(commits[-1].ms) <= time_ms:
            break
    since = [each for each in commits if _latest(each.ms) > time_ms]
    seen: int = since[-1].version - 1 if since else newest.version
    for commit in reversed(since):
        if seen == -1 and commit.operation != _CREATED_EMPTY:
            raise _created_meanwhile(table, commit)
        if seen != -1 and not _left_rows(commit):
            break
        seen = commit.version
    return seen


def _latest(ms: int) -> int:
    """Return the latest possible time of a commit: object stores keep only whole seconds."""
    return ms + 999 if ms % 1000 == 0 else ms


def _created_meanwhile(table: Table, commit: Row) -> CommitConflictError:
    return CommitConflictError(
        f"another writer created the table with rows in the meantime, by {commit.operation}.",
        table=table.path_or_name,
        operation="writing",
        version=commit.version,
        hint="Run it again: it will see these rows.",
    )


def _growing_pages(table: Table) -> Iterator[tuple[list[Row], bool]]:
    """Yield the newest commits, ten times as many in each step, and whether they are all."""
    limit = _AT_FIRST
    while True:
        commits = _newest_commits(table, limit)
        is_all = len(commits) < limit
        yield commits, is_all
        if is_all:
            return
        limit *= 10  # each step reads again at most a tenth of its commits


def _newest_commits(table: Table, limit: int) -> list[Row]:
    history = table.spark.sql(f"DESCRIBE HISTORY {table_name(table.path_or_name)} LIMIT {limit}")
    # In ms, because Spark returns timestamps in local time, where one hour a year is ambiguous.
    moment = "unix_millis(timestamp) AS ms"
    properties = "operationParameters['properties'] AS properties"
    columns = ("version", moment, "operation", "operationMetrics", properties)
    return history.selectExpr(*columns).collect()


def _change(commit: Row, commits: list[Row], *, is_in_log: bool) -> LastChange:
    committed_at = datetime.fromtimestamp(commit.ms / 1000, timezone.utc)
    return LastChange(commit.version, committed_at, is_in_log, commits[0].version)


def _left_rows(commit: Row) -> bool:
    """Return whether a commit left the rows as they were, e.g. with an idempotency pair alone."""
    if commit.operation == "MERGE":
        metrics: Mapping[str, str] = commit.operationMetrics or {}
        return all(metrics.get(name) == "0" for name in _CHANGED)
    return commit.operation in SAME_ROWS or made_unwritten(
        commit.version, commit.operation, commit.properties
    )
