"""An asset check that the delivered changes are in the table: none was lost, none undone."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetsDefinition,
    asset_check,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from dagster_deltaweave.checks import asset_table, sample_table
from dagster_deltaweave.merge_checks import runs_of
from deltaweave.identifiers import RESERVED_PREFIX, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaweave import Table

ORPHANS = "no_orphan_changes"

_IS_THERE = f"{RESERVED_PREFIX}is_there"
_IS_DELETED = f"{RESERVED_PREFIX}is_deleted"


def build_orphan_changes_check(
    asset: AssetsDefinition,
    *,
    changes: "Callable[[SparkSession, str | None], DataFrame]",
    keys: Sequence[str],
    deleted: str | None = None,
    blocking: bool = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
    io_manager_key: str = "io_manager",
) -> AssetChecksDefinition:
    """A check, `no_orphan_changes`, that reads the delivered changes again and finds them.

    Every changed key is in the table, and every deleted key is not. The table is read at the
    version that the last run left, so that the verdict stays the same whatever is merged later.
    Nulls in keys are equal to each other here, since a row with one was inserted.

    One job joins the changes with the table's key columns; keys that are not as they should be, 10
    at most, are looked up only where there are some.

    >>> check = build_orphan_changes_check(orders, changes=read_delivery, keys=["id"])

    Args:
        asset: The merge asset.
        changes: Reads the changes of a partition, or of the asset for None, as the asset function
            does: without rows that the clauses leave alone.
        keys: The columns that identify a row, of the same names in changes and table.
        deleted: SQL condition over the changes (`s`), true for rows that delete their key.
        blocking: Whether a failure keeps downstream assets of the same run from running.
        severity: Of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the table.
    """

    @asset_check(
        asset=asset.key,
        name=ORPHANS,
        description=f"Every delivered {', '.join(keys)} is in the table, unless it is deleted.",
        blocking=blocking,
        required_resource_keys={io_manager_key},
    )
    def no_orphan_changes(context: AssetCheckExecutionContext) -> AssetCheckResult:
        runs = runs_of(context.instance, asset.key)
        table = asset_table(context, asset, io_manager_key)
        if not runs or not table.exists():
            return AssetCheckResult(passed=False, description="Nothing was materialized yet.")
        [last, *_] = runs
        tag = (last[0].tags or {}).get(DATA_VERSION_TAG, "")
        version = int(tag) if tag.isdecimal() else table.version()
        delivered = reduce(
            lambda some, more: some.unionByName(more),
            [changes(table.spark, each.partition) for each in last],
        )
        return _compared(table, version, delivered, keys, deleted, severity)

    return no_orphan_changes


def _compared(
    table: "Table",
    version: int,
    delivered: "DataFrame",
    keys: Sequence[str],
    deleted: str | None,
    severity: AssetCheckSeverity,
) -> AssetCheckResult:
    from pyspark.sql import functions as F

    columns = [column(name) for name in keys]
    is_deleted = F.coalesce(F.expr(deleted), F.lit(False)) if deleted else F.lit(False)
    changed = delivered.alias("s").select(*columns, is_deleted.alias(_IS_DELETED)).alias("s")
    there = table.read(version).select(*columns).distinct().withColumn(_IS_THERE, F.lit(True))
    equal = reduce(
        lambda some, more: some & more,
        [column("s", k).eqNullSafe(column("t", k)) for k in keys],
    )
    joined = changed.join(there.alias("t"), equal, "left")
    is_there = F.coalesce(F.col(_IS_THERE), F.lit(False))
    counts = joined.agg(
        F.count("*").alias("changes"),
        F.count_if(~F.col(_IS_DELETED) & ~is_there).alias("lost"),
        F.count_if(F.col(_IS_DELETED) & is_there).alias("undone"),
    ).first()
    assert counts is not None
    metadata: dict[str, Any] = {
        "check/version": version,
        "check/changes": counts["changes"],
        "check/lost": counts["lost"],
        "check/undone": counts["undone"],
    }
    orphans = counts["lost"] + counts["undone"]
    if orphans:
        rows = joined.where(F.col(_IS_DELETED) == is_there)
        what = F.when(F.col(_IS_DELETED), "deleted, but there").otherwise("not there")
        shown = rows.select(*(column("s", k) for k in keys), what.alias("what"))
        metadata["check/sample"] = sample_table(shown, [*keys, "what"])
    return AssetCheckResult(
        passed=not orphans,
        severity=severity,
        description=f"Of {counts['changes']:,} changes, {counts['lost']:,} are not in the table "
        f"and {counts['undone']:,} deleted keys are.",
        metadata=metadata,
    )
