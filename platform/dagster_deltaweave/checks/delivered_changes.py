"""Asset checks of delivered changes: whether they are in the table, pending, or put aside."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    CheckFinding,
    JudgedRun,
    asset_table,
    checked_asset,
    for_each_asset,
    for_each_table,
    invalid_checks,
    judged_run,
    table_check,
)
from dagster_deltaweave.checks.table_rows import sample_table
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.metadata import TABLE_ID, TABLE_VERSION, recorded_batch
from dagster_deltaweave.storage import redacted
from dagster_deltaweave.tables import (
    AssetOrKey,
    ChangesDeclaration,
    MergeOnReadAssets,
    MergeOnReadDeclaration,
    NamedAsset,
    merge_on_read_locations,
    table_declaration,
)
from deltaweave._validation import counted
from deltaweave.changes.delivery import num_rescued, rescued_of, rescued_table
from deltaweave.identifiers import RESERVED_PREFIX, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from dagster_deltaweave.tables import TableLocator
    from deltaweave import Table


PENDING = "pending_changes"


@for_each_table
def build_pending_changes_check(
    tables: MergeOnReadAssets,
    *,
    policy: RematerializationPolicy | None = None,
    blocking: bool = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.WARN,
    io_manager_key: str | None = None,
    **arguments: "Unpack[CheckArguments]",
) -> AssetChecksDefinition:
    """Build a check of the view, `pending_changes`: no more is pending than the policy allows.

    With the sensor's own policy, it would fail whenever a rematerialization is due. So give it
    wider limits, which are exceeded only if a rematerialization is late.

    >>> late = build_pending_changes_check(orders, policy=RematerializationPolicy(batches=5_000))

    Args:
        tables: What `@merge_on_read_asset` returns; or a list of such, which gives a list of
            checks.
        policy: What may be pending; by default `RematerializationPolicy()`.
        blocking: Whether a failure keeps downstream assets of the same run from running.
        severity: The severity of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables; by default
            that of each asset.
        arguments: `automation_condition`, `metadata`, `pool` and `retry_policy`, as in Dagster's
            own `asset_check`.
    """
    allowed, declaration = policy or RematerializationPolicy(), tables.declaration
    view = NamedAsset.of(tables.view, io_manager_key)
    description = "No more changes wait to be merged into the base than the policy allows."

    @table_check(view, PENDING, description, blocking, arguments)
    def check(context: AssetCheckExecutionContext) -> AssetCheckResult:
        key = checked_asset(context)
        located = view.locator(context.op_execution_context, key, "checking")
        view_declaration = declaration.at(key)
        at = merge_on_read_locations(located, view_declaration)
        pending = pending_changes(at)
        if pending is None:
            is_lost = recorded_batch(context.instance, view_declaration.changes)
            return AssetCheckResult(
                passed=not is_lost,
                severity=severity,
                description=f"Nothing is at {redacted(at.changes)}, though a run recorded that it "
                "appended there. Put the tables back in their place."
                if is_lost
                else "Nothing was ever appended.",
            )
        reason = allowed.reason(pending)
        return AssetCheckResult(
            passed=reason is None,
            severity=severity,
            description=reason
            or f"{counted(pending.rows, 'row is', 'rows are')} pending, which is allowed.",
            metadata=pending.metadata(),
        )

    return check


RESCUED = "no_rescued_events"


@for_each_asset
def build_rescued_events_check(
    asset: AssetOrKey,
    *,
    sample: bool = True,
    blocking: bool = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
    io_manager_key: str | None = None,
    **arguments: "Unpack[CheckArguments]",
) -> AssetChecksDefinition:
    """Build a check, `no_rescued_events`: the table of events that cannot be applied is empty.

    It fails as long as the table has rows: correct the events, apply them again, and delete them
    there.

    >>> check = build_rescued_events_check(customers)
    >>> of_stream = build_rescued_events_check(orders.changes)

    Args:
        asset: The asset of `@cdc_asset` with `rescued`, or the `changes` of `@merge_on_read_asset`;
            or a list of such, which gives a list of checks.
        sample: Whether `check/sample` shows reason and message of up to 10 events.
        blocking: Whether a failure keeps downstream assets of the same run from running.
        severity: The severity of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the table; by default
            that of the asset.
        arguments: `automation_condition`, `metadata`, `pool` and `retry_policy`, as in Dagster's
            own `asset_check`.

    Raises:
        DagsterInvalidDefinitionError: The asset keeps no such events, or only its key is given.
    """
    checked = NamedAsset.of(asset, io_manager_key)
    if checked.metadata is None:
        raise invalid_checks(checked.key, "give the asset's definition, which says where they are.")
    declaration = table_declaration(checked.metadata, asset=checked.key.to_user_string())
    if (
        not isinstance(declaration, (ChangesDeclaration, MergeOnReadDeclaration))
        or not declaration.rescued
    ):
        raise invalid_checks(checked.key, "it puts no events aside: declare it with rescued=.")
    description = "Every event could be applied; none waits to be corrected."

    @table_check(checked, RESCUED, description, blocking, arguments)
    def no_rescued_events(context: AssetCheckExecutionContext) -> AssetCheckResult:
        key = checked_asset(context)
        located = checked.locator(context.op_execution_context, key, "checking")
        table = _table_of_part(located, key, declaration)
        aside = declaration.rescued
        count, kept = num_rescued(table, aside), rescued_table(table, aside)
        assert kept is not None
        metadata: dict[str, Any] = {"changes/rescued_events": count}
        if count and sample:
            rows = rescued_of(table, aside).orderBy("rescued_at")
            metadata["check/sample"] = sample_table(rows, ["reason", "message"])
        waiting = counted(count or 0, "event waits", "events wait")
        return AssetCheckResult(
            passed=not count,
            severity=severity,
            description=f"{waiting} in {kept.path_or_name} to be corrected.",
            metadata=metadata,
        )

    return no_rescued_events


def _table_of_part(
    located: "TableLocator",
    key: AssetKey,
    declaration: ChangesDeclaration | MergeOnReadDeclaration,
) -> "Table":
    if isinstance(declaration, MergeOnReadDeclaration):
        at = declaration.at(key)
        return located.table(at.base, at.of_part("base"))
    return located.table(key, declaration)


ORPHANS = "no_orphan_changes"

_IS_THERE = f"{RESERVED_PREFIX}is_there"
_IS_DELETED = f"{RESERVED_PREFIX}is_deleted"
_IS_WRITTEN = f"{RESERVED_PREFIX}is_written"
_CHANGES = f"{RESERVED_PREFIX}changes"


@for_each_asset
def build_orphan_changes_check(  # noqa: PLR0913 - the public options
    asset: AssetOrKey,
    *,
    changes: "Callable[[SparkSession, str | None], DataFrame | None]",
    keys: Sequence[str],
    deleted: str | None = None,
    sample: bool = True,
    blocking: bool = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
    io_manager_key: str | None = None,
    **arguments: "Unpack[CheckArguments]",
) -> AssetChecksDefinition:
    """Build a check, `no_orphan_changes`, that reads the delivered changes again and looks them up.

    Every changed key must be in the table, and no deleted key may be. Of a key that is both changed
    and deleted, nothing is expected: it is not known which of the two came last.

    The changes are those of the partitions that the check's own run materialized. The table is read
    at the version that this run left, so the result does not depend on what other runs merge at the
    same time or later. A check that runs alone judges the newest run that materialized the asset,
    and names it. Nulls in keys are equal to each other here, because a row with one was inserted.

    One job joins the changes with the table's key columns. At most 10 offending keys are looked up,
    only if there are any and `sample` asks for them.

    >>> check = build_orphan_changes_check(orders, changes=read_delivery, keys=["id"])

    Args:
        asset: The merge asset, as its definition or key; or a list of such, which gives a list of
            checks.
        changes: Reads the changes of a partition, or of the asset for None, as the asset function
            does, but without rows that the clauses leave alone; None if nothing was delivered.
        keys: The columns that identify a row, with the same names in changes and table.
        deleted: SQL condition over the changes (`s`), true for rows that delete their key.
        sample: Whether `check/sample` shows up to 10 of those keys, as in `build_table_checks`.
        blocking: Whether a failure keeps downstream assets of the same run from running.
        severity: The severity of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the table; by default
            that of the asset, or `io_manager` if only its key is given.
        arguments: `automation_condition`, `metadata`, `pool` and `retry_policy`, as in Dagster's
            own `asset_check`.
    """
    checked = NamedAsset.of(asset, io_manager_key)
    checked.declared_location("checking")  # refuses a view
    description = f"Every delivered {', '.join(keys)} is in the table, unless it is deleted."

    @table_check(checked, ORPHANS, description, blocking, arguments)
    def no_orphan_changes(context: AssetCheckExecutionContext) -> AssetCheckResult:
        judged = judged_run(context.instance, context.run, checked_asset(context))
        table = asset_table(context, checked)
        if judged is None or not table.exists():
            return AssetCheckResult(passed=False, description="Nothing was materialized yet.")
        version = _version_left(judged, table)
        read = [changes(table.spark, each) for each in judged.partitions]
        parts = [each for each in read if each is not None]
        found = CheckFinding(True, "Nothing was delivered.", {})
        if parts:
            delivered = reduce(lambda some, more: some.unionByName(more), parts)
            found = _compared(table, version, delivered, keys, deleted, sample)
        found = found.with_more(judged.metadata, judged.note)
        return AssetCheckResult(severity=severity, **found._asdict())

    return no_orphan_changes


def _version_left(judged: JudgedRun, table: "Table") -> int:
    """Return the version of this table that the run left; the newest if it recorded none."""
    values = judged.values
    if values.get(TABLE_ID) == table.id():
        return int(values[TABLE_VERSION])
    tag = judged.data_version or ""
    return int(tag) if TABLE_ID not in values and tag.isdecimal() else table.version()


def _compared(
    table: "Table",
    version: int,
    delivered: "DataFrame",
    keys: Sequence[str],
    deleted: str | None,
    sample: bool,
) -> CheckFinding:
    from pyspark.sql import functions as F

    from deltaweave.delta.jvm import grouped, parsed_expression

    columns = [column(name) for name in keys]
    is_deleted = F.lit(False)
    if deleted:
        is_deleted = F.coalesce(parsed_expression(delivered.sparkSession, deleted), is_deleted)
    changes = delivered.alias("s").select(*columns, is_deleted.alias(_IS_DELETED))
    aggregates = [
        F.count("*").alias(_CHANGES),
        F.bool_or(_IS_DELETED).alias(_IS_DELETED),
        F.bool_or(~F.col(_IS_DELETED)).alias(_IS_WRITTEN),
    ]
    changed = grouped(changes, columns, aggregates).alias("s")
    there = table.read(version).select(*columns).distinct().withColumn(_IS_THERE, F.lit(True))
    equal = reduce(
        lambda some, more: some & more,
        [column("s", k).eqNullSafe(column("t", k)) for k in keys],
    )
    joined = changed.join(there.alias("t"), equal, "left")
    is_there = F.coalesce(F.col(_IS_THERE), F.lit(False))
    counts = joined.agg(
        F.coalesce(F.sum(_CHANGES), F.lit(0)).alias("changes"),
        F.count_if(~F.col(_IS_DELETED) & ~is_there).alias("lost"),
        F.count_if(~F.col(_IS_WRITTEN) & is_there).alias("undone"),
    ).first()
    assert counts is not None
    metadata: dict[str, Any] = {
        "check/version": version,
        "check/changes": counts["changes"],
        "check/lost": counts["lost"],
        "check/undone": counts["undone"],
    }
    orphans = counts["lost"] + counts["undone"]
    if orphans and sample:
        is_one = F.col(_IS_DELETED) != F.col(_IS_WRITTEN)
        rows = joined.where(is_one & (F.col(_IS_DELETED) == is_there))
        what = F.when(F.col(_IS_DELETED), "deleted, but there").otherwise("not there")
        shown = rows.select(*(column("s", k) for k in keys), what.alias("what"))
        metadata["check/sample"] = sample_table(shown, [*keys, "what"])
    return CheckFinding(
        not orphans,
        f"{counted(counts['changes'], 'change')}: {counted(counts['lost'], 'key')} missing from "
        f"the table, {counted(counts['undone'], 'deleted key')} still in it.",
        metadata,
    )
