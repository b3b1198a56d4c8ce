"""An asset check that no event was put aside because it could not be applied."""

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
    invalid_checks,
)
from dagster_deltaweave.checks.table_findings import sample_table
from dagster_deltaweave.tables import (
    AssetOrKey,
    ChangesDeclaration,
    MergeOnReadDeclaration,
    NamedAsset,
    run_locator,
    table_declaration,
)
from deltaweave.changes.delivery import num_rescued, rescued_table
from deltaweave.counts import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dagster_deltaweave.tables import TableLocator
    from deltaweave import Table

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
