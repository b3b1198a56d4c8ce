"""Which commit last changed a table's rows: upkeep makes versions too, and changes none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_deltaweave.observations import sql_name

if TYPE_CHECKING:
    from deltaweave import Table

SAME_ROWS = (
    "OPTIMIZE",
    "REORG",
    "VACUUM START",
    "VACUUM END",
    "CLUSTER BY",
    "COMPUTE STATS",
    "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES",
)
"""Operations of Delta's history after which a table has the rows it had before."""

_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
_NEWEST = 100
"""How many commits are looked at; each is a file of the log."""


@dataclass(frozen=True)
class Change:
    """A commit that may have changed rows.

    Attributes:
        version: The version it made.
        committed_at: When, with its time zone.
    """

    version: int
    committed_at: datetime


def last_change(table: Table) -> Change:
    """The newest commit of a table that is not known to have left its rows as they were.

    Where the newest 100 commits are all upkeep, the oldest of them: no later one changed a row.

    Raises:
        DeltaweaveError: There is no table.
    """
    table.version()  # names the table in the error where there is none
    history = table.spark.sql(f"DESCRIBE HISTORY {sql_name(table.path_or_name)} LIMIT {_NEWEST}")
    commits = history.select("version", "timestamp", "operation", "operationMetrics").collect()
    changes = (each for each in commits if not _left_rows(each.operation, each.operationMetrics))
    commit = next(changes, commits[-1])
    # Spark hands out local time without its zone.
    return Change(commit.version, commit.timestamp.astimezone())


def _left_rows(operation: str, metrics: Mapping[str, str] | None) -> bool:
    """Whether a commit left the rows as they were; a merge may commit an idempotency pair alone."""
    if operation == "MERGE":
        return all((metrics or {}).get(name) == "0" for name in _CHANGED)
    return operation in SAME_ROWS
