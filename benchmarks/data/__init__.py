"""The benchmark's tables.

- `tables`: targets, sources and clones in the benchmark's directory.
- `changed_returns`: web_returns as a merge-on-read table with changes.
- `written_tables`: Delta tables that are written without Spark.
- `use_case`: a table of 24 columns that gets partial updates, for ingestion and decay.
"""

from __future__ import annotations

from benchmarks.data.changed_returns import changed_table, drawn_changes, returns_table
from benchmarks.data.tables import (
    TARGET_FILES,
    Fractions,
    KeyType,
    Workspace,
    clone,
    session_options,
    sql_name,
)
from benchmarks.data.use_case import UPDATED, UseCase
from benchmarks.data.written_tables import (
    add_type,
    table_actions,
    write_checkpoint,
    write_commit,
    write_file,
)

__all__ = [
    "TARGET_FILES",
    "UPDATED",
    "Fractions",
    "KeyType",
    "UseCase",
    "Workspace",
    "add_type",
    "changed_table",
    "clone",
    "drawn_changes",
    "returns_table",
    "session_options",
    "sql_name",
    "table_actions",
    "write_checkpoint",
    "write_commit",
    "write_file",
]
