"""An asset check of how many changes are not merged into the base yet; it needs no Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    asset_check,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    checked_asset,
    for_each_table,
)
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.tables import MergeOnReadAssets, merge_on_read_locations, run_locator
from deltaweave.counts import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
