"""Shared by the three decorators: Dagster's own arguments, keys, pools and the asset itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypedDict

from dagster import (
    AssetCheckSpec,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    FreshnessPolicy,
    HookDefinition,
    PartitionsDefinition,
    RetryPolicy,
    asset,
)

from dagster_deltaweave.tables import (
    TableDeclaration,
    declaration_metadata,
    table_declaration,
)

KINDS: Set[str] = frozenset({"spark", "deltalake", "python"})


class DagsterArguments(TypedDict, total=False):
    """Arguments of `dagster.asset` that the decorators pass on as they are."""

    automation_condition: AutomationCondition[AssetKey] | None
    backfill_policy: BackfillPolicy | None
    check_specs: Sequence[AssetCheckSpec] | None
    code_version: str | None
    config_schema: Any
    deps: Iterable[Any] | None
    description: str | None
    freshness_policy: FreshnessPolicy | None
    group_name: str | None
    hooks: Set[HookDefinition] | None
    ins: Mapping[str, AssetIn] | None
    io_manager_key: str | None
    op_tags: Mapping[str, Any] | None
    output_required: bool
    owners: Sequence[str] | None
    partitions_def: PartitionsDefinition[str] | None
    required_resource_keys: Set[str] | None
    resource_defs: Mapping[str, object] | None
    retry_policy: RetryPolicy | None
    tags: Mapping[str, str] | None


def asset_key(key_prefix: str | Sequence[str] | None, name: str) -> AssetKey:
    """The key that Dagster gives an asset with this prefix and name."""
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    return AssetKey([*prefix, name])


def table_asset(
    function: Callable[..., Any],
    declaration: TableDeclaration,
    arguments: DagsterArguments,
    *,
    name: str,
    key_prefix: str | Sequence[str] | None,
    metadata: Mapping[str, Any] | None,
    kinds: Set[str],
    pool: str | None,
) -> AssetsDefinition:
    """The asset of a function, with its table's declaration in the metadata of its definition.

    Args:
        function: The asset's function.
        declaration: Of the asset's table.
        arguments: Dagster's own arguments.
        name: The asset's name.
        key_prefix: Prefix of its key.
        metadata: Further metadata of the definition.
        kinds: Kinds the UI shows.
        pool: The concurrency pool; by default one for each table.

    Raises:
        StatementError: The metadata names another place than the declaration.
    """
    key = asset_key(key_prefix, name)
    metadata = {**(metadata or {}), **declaration_metadata(declaration)}
    table_declaration(metadata, asset=key.to_user_string())  # refuses what makes no sense
    definition: AssetsDefinition = asset(
        name=name,
        key_prefix=key_prefix,
        metadata=metadata,
        kinds=set(kinds),
        pool=pool or "/".join(["merge", *key.path]),
        **arguments,
    )(function)
    return definition
