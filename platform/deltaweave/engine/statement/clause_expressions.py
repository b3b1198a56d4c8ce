"""The statement's clauses as columns, once for all strategies.

The columns say which clause takes a joined row, which one inserts a source row, and what values
they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from deltaweave.delta.jvm import constant, unique_number
from deltaweave.delta.statement import ResolvedClause, ResolvedMerge
from deltaweave.engine.columns import CLAUSE, NO_CLAUSE, SOURCE_ROW_PRESENT
from deltaweave.engine.statement.schema_evolution import changes_nothing


def clause_taken(merge: ResolvedMerge) -> Column:
    """Return the index of the first clause that takes a row of target joined with source, or -1.

    Each condition is computed once per joined row. For a joined row without a source row, the WHEN
    NOT MATCHED BY SOURCE clauses decide.
    """
    place = {id(clause): i for i, clause in enumerate(merge.clauses)}

    def taken(clause: ResolvedClause) -> Column:
        number = constant(merge.spark, place[id(clause)])
        if merge.skips_unchanged and clause.action == "update":
            return F.when(changes_nothing(merge, clause), NO_CLAUSE).otherwise(number)
        return number

    def first(clauses: Sequence[ResolvedClause]) -> Column:
        none = constant(merge.spark, NO_CLAUSE)
        return reduce(
            lambda later, clause: (
                taken(clause)
                if clause.condition is None
                else F.when(clause.condition, taken(clause)).otherwise(later)
            ),
            reversed(clauses),
            none,
        )

    without_source_row = F.col(SOURCE_ROW_PRESENT).isNull()
    by_source = first(merge.of_kind("not_matched_by_source"))
    return F.when(without_source_row, by_source).otherwise(first(merge.of_kind("matched")))


def asked_after_join(merge: ResolvedMerge, clause: Column) -> Column:
    """Evaluate the clause that takes a row after the join before it, where rows are filtered by it.

    Spark would evaluate conditions of one side before the join, where they may fail for rows that
    the clause is not for. A filter whose value may differ each time stays where it is.
    """
    return F.when(unique_number(merge.spark) >= 0, clause)


def insert_places(merge: ResolvedMerge) -> list[int]:
    """Return the indexes of the insert clauses in the statement."""
    return [i for i, clause in enumerate(merge.clauses) if clause.action == "insert"]


def first_insert(merge: ResolvedMerge) -> Column:
    """Return the index of the first insert clause that takes an unmatched source row, or -1."""
    return _first_place(merge, "not_matched")


def first_match(merge: ResolvedMerge) -> Column:
    """Return the index of the first WHEN MATCHED clause that takes a source row's matches, or -1.

    It is known without the matches if all conditions are of the source alone.
    """
    return _first_place(merge, "matched")


def _first_place(merge: ResolvedMerge, kind: str) -> Column:
    taken: Column | None = None
    for i, clause in reversed(list(enumerate(merge.clauses))):
        if clause.kind == kind:
            taken = _place_if(merge, clause.condition, i, taken)
    return constant(merge.spark, NO_CLAUSE) if taken is None else taken


def _place_if(
    merge: ResolvedMerge, condition: Column | None, place: int, otherwise: Column | None
) -> Column:
    number = constant(merge.spark, place)
    if condition is None:
        return number
    none = constant(merge.spark, NO_CLAUSE) if otherwise is None else otherwise
    return F.when(condition, number).otherwise(none)


def insertable(merge: ResolvedMerge) -> Column | None:
    """Return whether an insert clause takes an unmatched source row; None if not asked for.

    It is not asked for if there is no insert clause or one without a condition. Nor is it if a
    condition calls a Python function: MERGE evaluates these conditions for unmatched rows only, for
    other rows they may fail, and the failure of a Python function cannot be caught.
    """
    inserts = merge.of_kind("not_matched")
    if not inserts or any(clause.condition is None for clause in inserts):
        return None
    conditions = [clause.condition_unless_it_fails() for clause in inserts]
    if any(condition is None for condition in conditions):
        return None
    # A condition may fail for a row that matches; such a row is not counted. If it fails for a row
    # without a match, the merge fails.
    taken = [F.coalesce(each, F.lit(False)) for each in conditions if each is not None]
    return reduce(Column.__or__, taken)


def updated(
    merge: ResolvedMerge, before: Sequence[Column], *, and_inserted: bool = False
) -> list[Column]:
    """Return the columns' values after the update clause that takes the row, if one does.

    Args:
        merge: The statement.
        before: The columns' values before it.
        and_inserted: Whether the values of insert clauses are applied, too.
    """
    actions = ("update", "insert") if and_inserted else ("update",)
    after = []
    for place, value in enumerate(before):
        for i, clause in enumerate(merge.clauses):
            if clause.action in actions:
                value = F.when(F.col(CLAUSE) == i, clause.values[place]).otherwise(value)
        after.append(value)
    return after
