"""The rows that the strategies write, as Spark queries."""

from __future__ import annotations

from deltaweave.engine.write.rows.changed import changed_rows, may_join_once, remaining_rows
from deltaweave.engine.write.rows.from_source import (
    inserts_only,
    may_insert,
    rows_after_scan,
    updates_from_source,
)
from deltaweave.engine.write.rows.parts import (
    inserted_rows,
    rows_from_source_alone,
    together,
    updated_and_inserted,
)

__all__ = [
    "changed_rows",
    "inserted_rows",
    "inserts_only",
    "may_insert",
    "may_join_once",
    "remaining_rows",
    "rows_after_scan",
    "rows_from_source_alone",
    "together",
    "updated_and_inserted",
    "updates_from_source",
]
