"""The benchmark's tables.

- `tpcds`: generates TPC-DS web_returns.
- `tables`: targets, sources and clones in the benchmark's directory.
- `changed_returns`: web_returns as a merge-on-read table with changes.
- `use_case`: a table of 24 columns that takes partial updates, for ingestion and decay.
"""

from __future__ import annotations

from deltaweave.bench.data.changed_returns import changed_table, drawn_changes, returns_table
from deltaweave.bench.data.tables import (
    TARGET_FILES,
    Fractions,
    KeyType,
    Workspace,
    clone,
    session_options,
    sql_name,
)
from deltaweave.bench.data.tpcds import AMOUNTS, IDENTIFIERS, TABLE, GeneratorError
from deltaweave.bench.data.use_case import UPDATED, UseCase

__all__ = [
    "AMOUNTS",
    "IDENTIFIERS",
    "TABLE",
    "TARGET_FILES",
    "UPDATED",
    "Fractions",
    "GeneratorError",
    "KeyType",
    "UseCase",
    "Workspace",
    "changed_table",
    "clone",
    "drawn_changes",
    "returns_table",
    "session_options",
    "sql_name",
]
