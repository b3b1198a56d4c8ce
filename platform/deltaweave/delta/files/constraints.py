"""The constraints of a table as conditions that Spark evaluates for new rows.

Delta's writer checks constraints of all rows that it writes. Who writes files without it checks the
new ones by these conditions. Copied rows were checked when they were written.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import Transaction
from deltaweave.identifiers import column

_CHECK_PREFIX = "delta.constraints."


def conditions_of_rows(transaction: Transaction) -> list[Column] | None:
    """Return conditions over the table's columns, by name, that hold for each row.

    Returns:
        The conditions, or None if the table has constraints that only Delta's writer checks: of
        nested columns, of texts of limited length, and column invariants of old tables. None also
        if the session distinguishes names by their case, which Delta does not where it checks.
    """
    merge, metadata = transaction.merge, transaction.transaction.metadata()
    delta = jvm_.jvm(merge.spark).org.apache.spark.sql.delta
    constraints = jvm_.singleton(delta.constraints, "Constraints")
    all_of_them = constraints.getAll(metadata, merge.spark._jsparkSession)
    if all_of_them.isEmpty():
        return []
    if jvm_.is_on(merge.spark, "spark.sql.caseSensitive", otherwise=False):
        return None
    checks = [
        F.expr(condition)
        for name, condition in transaction.metadata.properties.items()
        if name.lower().startswith(_CHECK_PREFIX)
    ]
    not_null = [
        column(field.name).isNotNull()
        for field in transaction.metadata.schema
        if not field.nullable
    ]
    conditions = [*checks, *not_null]
    return conditions if len(conditions) == int(all_of_them.size()) else None
