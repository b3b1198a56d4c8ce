"""Asset checks of change events that wait: to be merged into the base, or to be corrected."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    asset_check,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    checked_asset,
    for_each_asset,
    for_each_table,
    invalid_checks,
)
from dagster_deltaweave.checks.table_rows import sample_table
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.tables import (
    AssetOrKey,
    ChangesDeclaration,
    MergeOnReadAssets,
    MergeOnReadDeclaration,
    NamedAsset,
    merge_on_read_locations,
    run_locator,
    table_declaration,
)
from deltaweave._validation import counted
from deltaweave.changes.delivery import num_rescued, rescued_table

if TYPE_CHECKING:
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
    manager = io_manager_key or tables.io_manager_key

    @asset_check(
        asset=tables.view,
        name=PENDING,
        description="No more changes wait to be merged into the base than the policy allows.",
        blocking=blocking,
        required_resource_keys={manager},
        **arguments,
    )
    def check(context: AssetCheckExecutionContext) -> AssetCheckResult:
        located = run_locator(context.op_execution_context.resources, manager)
        of_view = declaration.at(checked_asset(context))
        pending = pending_changes(merge_on_read_locations(located, of_view))
        if pending is None:
            return AssetCheckResult(passed=True, description="Nothing was ever appended.")
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

    manager = checked.io_manager_key

    @asset_check(
        asset=checked.key,
        name=RESCUED,
        description="Every event could be applied; none waits to be corrected.",
        blocking=blocking,
        required_resource_keys={manager},
        **arguments,
    )
    def no_rescued_events(context: AssetCheckExecutionContext) -> AssetCheckResult:
        located = run_locator(context.op_execution_context.resources, manager)
        table = _table(located, checked_asset(context), declaration)
        aside = declaration.rescued
        count, kept = num_rescued(table, aside), rescued_table(table, aside)
        assert kept is not None
        metadata: dict[str, Any] = {"changes/rescued_events": count}
        if count and sample:
            rows = kept.read().orderBy("rescued_at")
            metadata["check/sample"] = sample_table(rows, ["reason", "message"])
        waiting = counted(count or 0, "event waits", "events wait")
        return AssetCheckResult(
            passed=not count,
            severity=severity,
            description=f"{waiting} in {kept.path_or_name} to be corrected.",
            metadata=metadata,
        )

    return no_rescued_events


def _table(
    located: "TableLocator",
    key: AssetKey,
    declaration: ChangesDeclaration | MergeOnReadDeclaration,
) -> "Table":
    if isinstance(declaration, MergeOnReadDeclaration):
        at = declaration.at(key)
        return located.table(at.base, at.of_part("base"))
    return located.table(key, declaration)
