"""Shared by the three decorators: Dagster's own arguments, keys, pools and the asset itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypedDict

from dagster import (
    AssetCheckSpec,
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    DagsterError,
    FreshnessPolicy,
    HookDefinition,
    PartitionsDefinition,
    RetryPolicy,
    asset,
)

from dagster_deltaweave.dagster_private import TableMetadataSet
from dagster_deltaweave.io_manager import error_shown_first, wait_of_step
from dagster_deltaweave.metadata import statement_metadata
from dagster_deltaweave.tables import (
    MergeDeclaration,
    TableDeclaration,
    declaration_metadata,
    declared_column_schema,
    table_declaration,
)
from deltaweave.identifiers import table_name

ASSET_KINDS: Set[str] = frozenset({"spark", "deltalake", "python"})


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


class AssetArguments(DagsterArguments):
    """All arguments of `dagster.asset` for the asset of a table."""

    name: str
    key_prefix: str | Sequence[str] | None
    metadata: Mapping[str, Any] | None
    kinds: Set[str]
    pool: str | None


def asset_key(key_prefix: str | Sequence[str] | None, name: str) -> AssetKey:
    """Return the key that Dagster gives an asset with this prefix and name."""
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    return AssetKey([*prefix, name])


def table_asset(
    function: Callable[..., Any],
    declaration: TableDeclaration,
    arguments: AssetArguments,
) -> AssetsDefinition:
    """Build the asset of a function, with its table's declaration in the definition's metadata."""
    key = asset_key(arguments["key_prefix"], arguments["name"])
    shown = _shown_before_a_run(declaration, key)
    given_metadata = arguments["metadata"] or {}
    metadata = {**shown, **given_metadata, **declaration_metadata(declaration)}
    table_declaration(metadata, asset=key.to_user_string())  # refuses what makes no sense
    given: AssetArguments = {
        **arguments,
        "metadata": metadata,
        "kinds": set(arguments["kinds"]),
        "pool": arguments["pool"] or "/".join(["merge", *key.path]),
    }
    waits = declaration.needs_order and arguments.get("partitions_def") is not None
    definition: AssetsDefinition = asset(**given)(_in_step(function, waits=waits))
    return definition


def _shown_before_a_run(declaration: TableDeclaration, key: AssetKey) -> dict[str, Any]:
    """Return what is known of the table and its merge without a run, under the keys of a run."""
    shown: dict[str, Any] = dict(
        TableMetadataSet(
            column_schema=declared_column_schema(declaration.schema),
            table_name=table_name(declaration.table) if declaration.table else None,
        )
    )
    if isinstance(declaration, MergeDeclaration):
        target = shown.get("dagster/table_name") or ".".join(key.path)
        shown |= statement_metadata(declaration.statement(target, "changes"))
    return shown


def _in_step(function: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
    """Wrap the function so that a run shows its errors first, and may wait for older partitions.

    For coroutines and asynchronous generators, the run waits when their rows are stored.
    """
    is_plain = inspect.isfunction(function) and not inspect.isasyncgenfunction(function)
    if not is_plain or inspect.iscoroutinefunction(function):
        return function

    def waiting(*arguments: Any, **named: Any) -> Any:
        with _step(waits=waits):
            return function(*arguments, **named)

    if inspect.isgeneratorfunction(function):  # Dagster takes it for one by its own kind

        def waiting(*arguments: Any, **named: Any) -> Any:
            with _step(waits=waits):
                return (yield from function(*arguments, **named))

    # Dagster's links to code, and tracebacks, then show the function instead of this one.
    code = function.__code__
    waiting.__code__ = waiting.__code__.replace(
        co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name
    )
    return wraps(function)(waiting)


@contextmanager
def _step(*, waits: bool) -> Iterator[None]:
    context = None
    with suppress(DagsterError):  # called without a run, as unit tests do
        context = AssetExecutionContext.get()
    with error_shown_first(context) as step:
        if step is not None and waits:
            wait_of_step(step)
        yield
