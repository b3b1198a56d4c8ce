"""What a row of the changes leaves of its key when it is merged, by the declared clauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from deltaweave.identifiers import unquoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from dagster_deltaweave.tables import MergeDeclaration
    from deltaweave.clauses import Clause

DEPENDS = "depends"
"""A row leaves what the table's row decides, too."""

_ITSELF, _NOTHING = "itself", "nothing"


def inserted_rows(rows: DataFrame, declaration: MergeDeclaration) -> DataFrame:
    """Return the rows that a clause inserts where the table lacks their key."""
    inserts = [takes(each) for each in declaration.clauses if each.kind == "not_matched"]
    return rows.alias("s").where(reduce(lambda one, other: one | other, inserts, F.lit(False)))


def left_of_key(rows: DataFrame, declaration: MergeDeclaration, columns: Collection[str]) -> Column:
    """Return what a row leaves of its key if that does not depend on the table; else `DEPENDS`.

    Args:
        rows: The changes, by the name `s`.
        declaration: How they are merged.
        columns: The columns of the table.
    """
    clauses = declaration.clauses
    matched, unmatched = (
        [clause for clause in clauses if clause.kind == kind] for kind in ("matched", "not_matched")
    )
    written = {_written(clause, rows) for clause in clauses if clause.action != "delete"}
    if len(written) > 1 or len(matched) + len(unmatched) < len(clauses):
        return F.lit(DEPENDS)
    deletes = any(clause.action == "delete" for clause in clauses)
    names = {name for values in written for name, _ in values}
    if deletes and {name.lower() for name in columns} - names:
        return F.lit(DEPENDS)  # a row that was deleted has lost its other columns
    where_there = _first(matched, otherwise=DEPENDS)
    # Without inserts, older rows leave nothing where the table lacks the key.
    where_not = _first(unmatched, otherwise=_NOTHING) if unmatched else where_there
    try:
        rows.select(where_there, where_not).schema  # noqa: B018  conditions may name the table
    except AnalysisException:
        return F.lit(DEPENDS)
    return F.when(where_there == where_not, where_there).otherwise(DEPENDS)


def _first(clauses: Sequence[Clause], *, otherwise: str) -> Column:
    """Return what the first clause that takes a row leaves of its key."""
    left = F.lit(otherwise)
    for clause in reversed(clauses):
        leaves = F.lit(_NOTHING if clause.action == "delete" else _ITSELF)
        left = F.when(takes(clause), leaves).otherwise(left)
    return left


def _written(clause: Clause, rows: DataFrame) -> frozenset[tuple[str, str]]:
    """Return the columns that a clause writes, with values, to compare with other clauses'."""
    if clause.assignments is None:
        return frozenset((name.lower(), "its own") for name in rows.columns)
    values = clause.assignments.items()
    return frozenset((unquoted(name).lower(), str(value)) for name, value in values)


def takes(clause: Clause) -> Column:
    """Return whether a clause takes a row; a condition that is null takes none, as in MERGE."""
    if clause.condition is None:
        return F.lit(True)
    return F.coalesce(F.expr(str(clause.condition)), F.lit(False))
