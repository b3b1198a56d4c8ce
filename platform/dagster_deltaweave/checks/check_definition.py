"""Shared by all asset checks of a table: their specs, their results and the table."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    DagsterInvalidDefinitionError,
)

from dagster_deltaweave.tables import run_locator, table_place

if TYPE_CHECKING:
    from deltaweave import Table

Finding: TypeAlias = tuple[bool, str, dict[str, Any]]
"""Whether a check passed, a description of its findings, and their metadata."""


def check_results(
    context: AssetCheckExecutionContext,
    found: Mapping[str, Finding],
    severity: AssetCheckSeverity,
) -> Iterator[AssetCheckResult]:
    """Dagster's results of checks, from their findings by name."""
    key = checked_asset(context)
    for name, (passed, description, metadata) in found.items():
        yield AssetCheckResult(
            asset_key=key,
            check_name=name,
            passed=passed,
            severity=severity,
            description=description,
            metadata=metadata,
        )


def check_specs(
    asset: AssetsDefinition, descriptions: dict[str, str | None], blocking: bool | Iterable[str]
) -> list[AssetCheckSpec]:
    """Specs of the checks that have a description.

    Raises:
        DagsterInvalidDefinitionError: No check has one, or `blocking` names another check.
    """
    names = [name for name, description in descriptions.items() if description]
    if not names:
        raise invalid_checks(
            asset.key, f"no check is asked for; there are {', '.join(descriptions)}."
        )
    if isinstance(blocking, str):
        blocking = [blocking]
    blocked = set(names if blocking is True else blocking or ())
    if blocked - set(names):
        raise invalid_checks(
            asset.key, f"blocking names {min(blocked - set(names))!r}, which is not asked for."
        )
    return [
        AssetCheckSpec(
            name, asset=asset.key, description=descriptions[name], blocking=name in blocked
        )
        for name in names
    ]


def check_op_name(specs: Sequence[AssetCheckSpec]) -> str:
    """A unique name for the op that runs these checks: no other op can run them too."""
    words = [*specs[0].asset_key.path, *(spec.name for spec in specs)]
    return "__".join(re.sub(r"\W", "_", word) for word in words)


def checked_asset(context: AssetCheckExecutionContext) -> AssetKey:
    """The key of the asset that is checked, which may have got a prefix since it was declared."""
    return next(iter(context.check_specs)).asset_key


def asset_table(
    context: AssetCheckExecutionContext, asset: AssetsDefinition, io_manager_key: str
) -> "Table":
    """The table of an asset, as the IO manager of the run knows it."""
    tables = run_locator(context.op_execution_context.resources, io_manager_key)
    metadata, key = asset.metadata_by_key[asset.key], checked_asset(context)
    return tables.table(key, table_place(metadata, asset=key.to_user_string()))


def invalid_checks(key: AssetKey, problem: str) -> DagsterInvalidDefinitionError:
    """The error for checks that are declared incorrectly."""
    return DagsterInvalidDefinitionError(f"checks of {key.to_user_string()}: {problem}")
