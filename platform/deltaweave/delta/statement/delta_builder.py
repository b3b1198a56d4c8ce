"""Reads the merge that Delta's own builder holds, the one of `DeltaTable.merge(…)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.statement.parsed import ParsedMerge
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder


def parse_builder(builder: DeltaMergeBuilder) -> ParsedMerge:
    """Return the unresolved plan that the builder would resolve and run.

    Delta keeps it private: its method is called by reflection.

    Raises:
        StatementError: The location holds credentials.
        Py4JJavaError: Delta cannot make a plan of its clauses.
    """
    spark, merge = builder._spark, builder._jbuilder
    # What `DeltaTable.forName` or `forPath` found.
    table = _private(spark, merge, "targetTable").deltaLog().dataPath().toString()
    refuse_credentials(table, operation="MERGE")
    plan = _private(spark, merge, "mergePlan")
    return ParsedMerge(spark, plan, table, is_of_delta_builder=True)


def _private(spark: Any, owner: jvm_.JavaObject, name: str) -> jvm_.JavaObject:
    """Call a private method without arguments, and return its result."""
    java, gateway = jvm_.jvm(spark).java, spark.sparkContext._gateway
    method = owner.getClass().getDeclaredMethod(name, gateway.new_array(java.lang.Class, 0))
    method.setAccessible(True)
    return method.invoke(owner, gateway.new_array(java.lang.Object, 0))
