"""Makes the plan of a MERGE whose CHAR columns Spark's analysis pads, as Delta's builder makes it.

Spark pads CHAR columns where it reads a table: a projection over the scan makes new columns of
them. Delta resolves the names of a MERGE statement over a copy of the scan that is padded by
itself, and then does not find these columns in the plan. Its builder resolves both tables first.
"""

from __future__ import annotations

from collections.abc import Callable

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.statement.parsed import ParsedMerge
from deltaweave.delta.statement.spark_types import OF_LIMITED_LENGTH

NOT_FOUND = "DELTA_MERGE_RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT"
"""The error class of a plan with such columns."""


def over_padded_tables(
    parsed: ParsedMerge, analyze: Callable[[JavaObject], JavaObject]
) -> JavaObject | None:
    """Return the plan over tables that are analyzed; None if no column of theirs is padded.

    Args:
        parsed: The statement.
        analyze: Analyzes a plan.
    """
    merge = parsed.plan
    if merge.getClass().getSimpleName() != "MergeIntoTable":
        return None
    tables = [analyze(table) for table in (merge.targetTable(), merge.sourceTable())]
    if not any(OF_LIMITED_LENGTH in table.schema().json() for table in tables):
        return None
    view = jvm_.jvm(parsed.spark)
    actions = {
        "Matched": merge.matchedActions(),
        "NotMatched": merge.notMatchedActions(),
        "NotMatchedBySource": merge.notMatchedBySourceActions(),
    }
    clauses = [
        _clause(view, kind, action)
        for kind, each in actions.items()
        for action in jvm_.iterate(each)
    ]
    plans = view.org.apache.spark.sql.catalyst.plans.logical
    return jvm_.singleton(plans, "DeltaMergeInto").apply(
        *tables, merge.mergeCondition(), jvm_.seq(view, clauses), merge.withSchemaEvolution()
    )


def _clause(view: JavaObject, kind: str, action: JavaObject) -> JavaObject:
    """Delta's clause for an action of Spark's MERGE."""
    plans = view.org.apache.spark.sql.catalyst.plans.logical
    name = str(action.getClass().getSimpleName())
    does = name.removesuffix("Action").removesuffix("Star")
    clause = getattr(plans, f"DeltaMergeInto{kind}{does}Clause")
    if does == "Delete":
        return clause(action.condition())
    # Without assignments, it is that of `*`.
    assignments = jvm_.seq(view, []) if "Star" in name else action.assignments()
    of_delta = jvm_.singleton(plans, "DeltaMergeIntoClause").toActions(assignments)
    return clause(action.condition(), of_delta)
