"""Shared by all asset checks of a table: their specs, their results and the table."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    get_args,
    overload,
)

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AutomationCondition,
    DagsterInvalidDefinitionError,
    RetryPolicy,
)

from dagster_deltaweave.tables import (
    AssetOrKey,
    MergeOnReadAssets,
    NamedAsset,
    merge_on_read_tables,
    run_locator,
)

if TYPE_CHECKING:
    from deltaweave import Table

Finding: TypeAlias = tuple[bool, str, dict[str, Any]]
"""Whether a check passed, a description of its findings, and their metadata."""

_Arguments = ParamSpec("_Arguments")


class CheckArguments(TypedDict, total=False):
    """Arguments of Dagster's own checks that the functions here pass on as they are."""

    automation_condition: AutomationCondition[Any] | None
    metadata: Mapping[str, Any] | None
    pool: str | None
    retry_policy: RetryPolicy | None


class ChecksOfAssets(Protocol[_Arguments]):
    """Builds the checks of an asset, or those of each asset of a list."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a str is no list of assets
        self, asset: AssetOrKey, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> AssetChecksDefinition: ...

    @overload
    def __call__(
        self, asset: Sequence[AssetOrKey], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> list[AssetChecksDefinition]: ...


class ChecksOfTables(Protocol[_Arguments]):
    """Builds the checks of a merge-on-read table, or those of each table of a list."""

    @overload
    def __call__(
        self, tables: MergeOnReadAssets, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> AssetChecksDefinition: ...

    @overload
    def __call__(
        self,
        tables: Sequence[MergeOnReadAssets],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> list[AssetChecksDefinition]: ...


def for_each_asset(
    build: Callable[Concatenate[AssetOrKey, _Arguments], AssetChecksDefinition],
) -> ChecksOfAssets[_Arguments]:
    """Let a function that builds the checks of an asset take several: a list, or a multi-asset."""

    @wraps(build)
    def built(asset: Any, *args: Any, **kwargs: Any) -> Any:
        named: list[Any] = NamedAsset.each_of(asset, build.__name__)
        checks = [build(each, *args, **kwargs) for each in named]
        is_one = isinstance(asset, get_args(AssetOrKey)) and len(checks) == 1
        return checks[0] if is_one else checks

    return built


def for_each_table(
    build: Callable[Concatenate[MergeOnReadAssets, _Arguments], AssetChecksDefinition],
) -> ChecksOfTables[_Arguments]:
    """Let a function that builds the checks of a merge-on-read table take a list of such."""

    @wraps(build)
    def built(tables: Any, *args: Any, **kwargs: Any) -> Any:
        found = merge_on_read_tables(tables, build.__name__)
        checks = [build(each, *args, **kwargs) for each in found]
        return checks[0] if isinstance(tables, MergeOnReadAssets) else checks

    return built


def check_results(
    context: AssetCheckExecutionContext,
    found: Mapping[str, Finding],
    severity: AssetCheckSeverity,
) -> Iterator[AssetCheckResult]:
    """Yield Dagster's results of checks, from their findings by name."""
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
    asset: AssetKey,
    descriptions: dict[str, str | None],
    blocking: bool | Iterable[str],
    arguments: CheckArguments,
) -> list[AssetCheckSpec]:
    """Build the specs of the checks that have a description.

    Raises:
        DagsterInvalidDefinitionError: No check has one, or `blocking` names another check.
    """
    names = [name for name, description in descriptions.items() if description]
    if not names:
        raise invalid_checks(asset, f"no check is asked for; there are {', '.join(descriptions)}.")
    if isinstance(blocking, str):
        blocking = [blocking]
    blocked = set(names if blocking is True else blocking or ())
    if blocked - set(names):
        raise invalid_checks(
            asset, f"blocking names {min(blocked - set(names))!r}, which is not asked for."
        )
    return [
        AssetCheckSpec(
            name,
            asset=asset,
            description=descriptions[name],
            blocking=name in blocked,
            metadata=arguments.get("metadata"),
            automation_condition=arguments.get("automation_condition"),
        )
        for name in names
    ]


def check_op_name(specs: Sequence[AssetCheckSpec]) -> str:
    """A unique name for the op that runs these checks: no other op can run them too."""
    names = (spec.name for spec in specs)
    return "__".join([NamedAsset.of(specs[0].asset_key).identifier, *names])


def checked_asset(context: AssetCheckExecutionContext) -> AssetKey:
    """Return the key of the checked asset, which may have gained a prefix since its declaration."""
    return next(iter(context.check_specs)).asset_key


def asset_table(context: AssetCheckExecutionContext, asset: NamedAsset) -> "Table":
    """Return the table of an asset, as the run's IO manager knows it."""
    tables = run_locator(context.op_execution_context.resources, asset.io_manager_key)
    key = checked_asset(context)
    return tables.table(key, asset.place(context.op_execution_context, key, "checking"))


def invalid_checks(key: AssetKey, problem: str) -> DagsterInvalidDefinitionError:
    """Return the error for incorrectly declared checks."""
    return DagsterInvalidDefinitionError(f"checks of {key.to_user_string()}: {problem}")
