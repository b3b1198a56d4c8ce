"""What the resolved statement says of rows: their clauses, new values, and evolved schema."""

from __future__ import annotations

from deltaweave.engine.statement.broken_constraints import with_broken
from deltaweave.engine.statement.clause_expressions import (
    asked_after_join,
    clause_taken,
    first_insert,
    first_match,
    insert_places,
    insertable,
    updated,
)
from deltaweave.engine.statement.schema_evolution import changes_nothing, columns_before

__all__ = [
    "asked_after_join",
    "changes_nothing",
    "clause_taken",
    "columns_before",
    "first_insert",
    "first_match",
    "insert_places",
    "insertable",
    "updated",
    "with_broken",
]
