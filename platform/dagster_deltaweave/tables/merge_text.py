"""The SQL text of declared merges: conditions, clauses and assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deltaweave import clauses as when
from deltaweave.clauses import Clause
from deltaweave.identifiers import quoted, unquoted

if TYPE_CHECKING:
    pass

UPSERT_CLAUSES: tuple[Clause, ...] = (
    when.when_matched_update_all(),
    when.when_not_matched_insert_all(),
)
"""The clauses of an asset that declares none: update matched rows, insert the others."""
_WHEN = {
    "matched": "MATCHED",
    "not_matched": "NOT MATCHED",
    "not_matched_by_source": "NOT MATCHED BY SOURCE",
}


def equal_keys_condition(keys: tuple[str, ...]) -> str:
    """Build the merge condition that all these columns are equal in target and source."""
    return " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)


def with_written_out_stars(clause: Clause, columns: Sequence[str]) -> Clause:
    """Replace the clause's `*`, if any, by these columns of the source."""
    assignments = {quoted(name): f"s.{quoted(name)}" for name in columns}
    if clause.action == "update_all":
        return when.when_matched_update(assignments, clause.condition)
    if clause.action == "insert_all":
        return when.when_not_matched_insert(assignments, clause.condition)
    return clause


def not_older(clause: Clause, sequence: str | None) -> Clause:
    """Restrict the clause to source rows that are not older than the matched target row.

    A target row without a sequence is older than all source rows. A source row without a sequence
    is older than all target rows with one.

    Args:
        clause: The clause.
        sequence: Column of source and target that says which row is newer; None if none does.
    """
    if sequence is None or clause.kind != "matched":
        return clause
    column = quoted(unquoted(sequence))
    condition = f"(t.{column} IS NULL OR s.{column} >= t.{column})"
    if clause.condition is not None:
        condition = f"({clause.condition}) AND {condition}"
    return replace(clause, condition=condition)


def clause_text(clause: Clause) -> str:
    """Write a WHEN clause as SQL."""
    condition = "" if clause.condition is None else f" AND ({clause.condition})"
    return f"WHEN {_WHEN[clause.kind]}{condition} THEN {_action_text(clause)}"


def _action_text(clause: Clause) -> str:
    assignments = clause.assignments or {}
    if clause.action == "update":
        return "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in assignments.items())
    if clause.action == "insert":
        names, values = ", ".join(assignments), ", ".join(map(str, assignments.values()))
        return f"INSERT ({names}) VALUES ({values})"
    return {"update_all": "UPDATE SET *", "insert_all": "INSERT *", "delete": "DELETE"}[
        clause.action
    ]
