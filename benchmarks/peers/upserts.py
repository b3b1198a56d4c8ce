"""A batch of upserts on a table of any format: the timed operations, and a job for a peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.merge import checksums

PARQUET, PLAIN, UPSERT, AFTER = "parquet_scan", "plain_scan", "upsert", "read_after_upsert"
OPERATIONS = (PARQUET, PLAIN, UPSERT, AFTER)
"""The timed operations, in the order of each run."""


@dataclass(frozen=True)
class SqlUpsert:
    """How a peer creates a table with the rows of `base` and upserts those of `changes` into it.

    Attributes:
        table: The table's name.
        make: Statements that create it.
        statement: The statement that upserts.
    """

    table: str
    make: Sequence[str]
    statement: str


def upsert_job(
    sql: SqlUpsert,
    columns: Sequence[str],
    base_files: Sequence[Path],
    change_files: Sequence[Path],
    runs: int,
) -> dict[str, Any]:
    """Build a job for a peer's process: each run creates the table and runs all operations on it.

    Args:
        sql: How the peer creates the table and upserts.
        columns: The columns of the table, all of which are read.
        base_files: Parquet files of the table's rows.
        change_files: Parquet files of the changes.
        runs: How many timed runs.
    """
    listed = ", ".join(columns)
    read_table = f"SELECT {listed} FROM {sql.table}"
    return {
        "kind": "steps",
        "views": {
            "base": [str(file) for file in base_files],
            "changes": [str(file) for file in change_files],
        },
        "make": list(sql.make),
        "steps": [
            {"name": PARQUET, "read": f"SELECT {listed} FROM base"},
            {"name": PLAIN, "read": read_table},
            {"name": UPSERT, "run": sql.statement},
            {"name": AFTER, "read": read_table},
        ],
        "checked": read_table,
        "checksums": checksums(columns),
        "runs": runs,
    }
