"""The base and the view of a merge-on-read table, as assets, and how they are materialized."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Mapping, Set
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DataVersion,
    MaterializeResult,
    MetadataValue,
    asset,
)

from dagster_deltaweave.assets.table_asset import DagsterArguments, table_asset
from dagster_deltaweave.io_manager import observe_pending, retry_run_if_transient
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.metadata import keep_view_fresh, table_metadata
from dagster_deltaweave.run_mark import mark_commits_with_run
from dagster_deltaweave.tables import (
    MergeOnReadDeclaration,
    TableLocator,
    declaration_metadata,
    merge_on_read_locations,
    open_merge_on_read,
    run_locator,
)
from deltaweave.changes.merge_on_read import Strategy

_VIEW_KINDS: Set[str] = frozenset({"spark", "deltalake", "view"})


def base_asset(
    declaration: MergeOnReadDeclaration,
    strategy: Strategy,
    arguments: DagsterArguments,
    metadata: Mapping[str, Any] | None,
    kinds: Set[str],
) -> AssetsDefinition:
    """Build the base asset, whose materialization merges the pending changes into it.

    Args:
        declaration: The declaration of the base.
        strategy: How the changes are merged.
        arguments: Dagster's own arguments, `io_manager_key` among them.
        metadata: Further metadata of the definition.
        kinds: Kinds the UI shows.
    """
    io_manager_key = arguments["io_manager_key"] or "io_manager"
    view_name = declaration.view.path[-1]

    def rematerialize(context: AssetExecutionContext) -> MaterializeResult[Any]:
        tables = run_locator(context.resources, io_manager_key)
        return _rematerialize(context, tables, declaration.at(context.asset_key), strategy)

    return table_asset(
        rematerialize,
        declaration,
        {
            **arguments,
            "description": f"{view_name} as it was when its changes were last merged.",
            "required_resource_keys": {io_manager_key},
        },
        name=declaration.base.path[-1],
        key_prefix=list(declaration.view.path[:-1]) or None,
        metadata=metadata,
        kinds=kinds,
        pool=None,
    )


def view_asset(
    declaration: MergeOnReadDeclaration,
    arguments: DagsterArguments,
    metadata: Mapping[str, Any] | None,
) -> AssetsDefinition:
    """Build the view asset: it has no table, and materializing it records what is pending.

    Args:
        declaration: The declaration of the view.
        arguments: Dagster's own arguments, `io_manager_key` among them.
        metadata: Further metadata of the definition.
    """
    io_manager_key = arguments["io_manager_key"] or "io_manager"

    def look(context: AssetExecutionContext) -> MaterializeResult[Any]:
        tables = run_locator(context.resources, io_manager_key)
        at = merge_on_read_locations(tables, declaration.at(context.asset_key))
        pending = pending_changes(at)
        if pending is None:
            context.log.info("Nothing was appended yet.")
            return MaterializeResult()
        return MaterializeResult(
            metadata=pending.metadata(), data_version=DataVersion(str(pending.newest_batch))
        )

    arguments = {**arguments, "required_resource_keys": {io_manager_key}}
    # Not `table_asset`: a view writes no table, so it needs no pool.
    definition: AssetsDefinition = asset(
        name=declaration.view.path[-1],
        key_prefix=list(declaration.view.path[:-1]) or None,
        metadata={**(metadata or {}), **declaration_metadata(declaration)},
        kinds=set(_VIEW_KINDS),
        **arguments,
    )(look)
    return definition


def _rematerialize(
    context: AssetExecutionContext,
    tables: TableLocator,
    declaration: MergeOnReadDeclaration,
    strategy: Strategy,
) -> MaterializeResult[Any]:
    """Rematerialize the base, and delete the changes that have been in it for long enough."""
    table = open_merge_on_read(tables, declaration)
    if not table.base.exists():
        context.log.info("Nothing was appended yet.")
        return MaterializeResult()
    with (
        retry_run_if_transient(declaration.retries),
        mark_commits_with_run(table.spark, context.run.run_id),
    ):
        done = table.rematerialize(strategy)
        purged = table.purge()
    metadata: dict[str, Any] = {
        **table_metadata(table.base, done.version if done else None),
        "rematerialize/strategy": MetadataValue.text(done.strategy if done else "none"),
        "rematerialize/purged_batch": MetadataValue.int(purged),
    }
    if done is not None:
        metadata["rematerialize/version"] = MetadataValue.int(done.version)
    pending = observe_pending(context, declaration, merge_on_read_locations(tables, declaration))
    merged = str(table.merged_batch())
    keep_view_fresh(context, declaration, merged, pending)
    return MaterializeResult(
        metadata={**metadata, **pending},
        data_version=DataVersion(merged),
    )
