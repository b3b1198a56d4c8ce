"""Shared by all asset checks of a table: their specs, results and table, and the run they judge.

A check judges what its own run materialized. If its run is a re-execution that did not materialize
the asset, it judges the run before. Only a check that runs alone judges the newest materialization
of any run, and it says so.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
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
    AssetMaterialization,
    AutomationCondition,
    DagsterEventType,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    DagsterRun,
    MetadataValue,
    RetryPolicy,
    asset_check,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.io_manager import shows_errors_first
from dagster_deltaweave.partitions import parent_of
from dagster_deltaweave.tables import (
    AssetOrKey,
    MergeOnReadAssets,
    NamedAsset,
    merge_on_read_tables,
)

if TYPE_CHECKING:
    from deltaweave import Table


class CheckFinding(NamedTuple):
    """The finding of one check, with a description for people."""

    passed: bool
    description: str
    metadata: dict[str, Any]

    def with_more(self, metadata: Mapping[str, Any], note: str = "") -> "CheckFinding":
        """Return the finding with further metadata, and a note behind its description."""
        return CheckFinding(self.passed, self.description + note, {**self.metadata, **metadata})


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
    def __call__(  # type: ignore[overload-overlap]  # a str is not a list of assets
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


def table_check(
    asset: NamedAsset, name: str, description: str, blocking: bool, arguments: CheckArguments
) -> Callable[[Callable[..., AssetCheckResult]], AssetChecksDefinition]:
    """Return a decorator that makes a function the check of an asset's table."""

    def decorate(check: Callable[..., AssetCheckResult]) -> AssetChecksDefinition:
        return asset_check(
            asset=asset.key,
            name=name,
            description=description,
            blocking=blocking,
            required_resource_keys={asset.io_manager_key},
            resource_defs=asset.resource_defs,
            **arguments,
        )(shows_errors_first(check))

    return decorate


def check_results(
    context: AssetCheckExecutionContext,
    found: Mapping[str, CheckFinding],
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
    """Build the specs of the checks that have a description."""
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
    """Return a unique name for the op that runs these checks: no other op can run them too."""
    names = (spec.name for spec in specs)
    return "__".join([NamedAsset.of(specs[0].asset_key).unique_identifier, *names])


def checked_asset(context: AssetCheckExecutionContext) -> AssetKey:
    """Return the key of the checked asset, which may have gained a prefix since it was declared."""
    return next(iter(context.check_specs)).asset_key


def asset_table(context: AssetCheckExecutionContext, asset: NamedAsset) -> "Table":
    """Return the table of an asset, as the run's IO manager knows it."""
    return asset.table(context.op_execution_context, checked_asset(context), "checking")


def invalid_checks(key: AssetKey, problem: str) -> DagsterInvalidDefinitionError:
    """Return the error for incorrectly declared checks."""
    return DagsterInvalidDefinitionError(f"checks of {key.to_user_string()}: {problem}")


_MATERIALIZATIONS_OF_PAGE = 200


@dataclass(frozen=True)
class JudgedRun:
    """What one run materialized of an asset, and whether it is the check's own run.

    Attributes:
        is_own: Whether the check is a step of this run.
        at: When the newest of the materializations was recorded, with its time zone.
        storage_id: Dagster's number of that record; a later record has a higher number.
        materializations: One, or one for each partition; the newest first.
    """

    run_id: str
    is_own: bool
    at: datetime
    storage_id: int
    materializations: Sequence[AssetMaterialization]

    @classmethod
    def of(
        cls, instance: DagsterInstance, run_id: str, key: AssetKey, *, is_own: bool = False
    ) -> "JudgedRun | None":
        """Return what a run materialized of the asset; None if it materialized nothing of it."""
        records = instance.get_records_for_run(
            run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION, ascending=False
        ).records
        made = [(record, record.event_log_entry.asset_materialization) for record in records]
        found = [(record, each) for record, each in made if each and each.asset_key == key]
        if not found:
            return None
        newest, _ = found[0]
        at = datetime.fromtimestamp(newest.event_log_entry.timestamp, timezone.utc)
        return cls(run_id, is_own, at, newest.storage_id, [each for _, each in found])

    @property
    def values(self) -> Mapping[str, Any]:
        """The metadata of the run, as plain values."""
        # If the run's tag lists partitions, only one of their materializations has all metadata.
        fullest = max(self.materializations, key=lambda each: len(each.metadata))
        return {key: entry.value for key, entry in fullest.metadata.items()}

    @property
    def partitions(self) -> list[str | None]:
        """The partitions that were materialized; only None for an asset without partitions."""
        named = [each.partition for each in self.materializations if each.partition is not None]
        return list(dict.fromkeys(reversed(named))) or [None]

    @property
    def data_version(self) -> str | None:
        """The data version that the run recorded."""
        tags = (each.tags or {} for each in self.materializations)
        return next((each[DATA_VERSION_TAG] for each in tags if DATA_VERSION_TAG in each), None)

    @property
    def note(self) -> str:
        """A sentence that names the judged run; empty for the check's own run."""
        if self.is_own:
            return ""
        return f" The check judges run {self.run_id[:8]} of {self.at:%Y-%m-%d %H:%M:%S %Z}."

    @property
    def metadata(self) -> dict[str, MetadataValue]:
        """The run as metadata of the check."""
        return {"check/judged_run": MetadataValue.dagster_run(self.run_id)}


def judged_run(instance: DagsterInstance, run: DagsterRun, key: AssetKey) -> JudgedRun | None:
    """Return the materializations that a check of a run judges; None without any."""
    own = JudgedRun.of(instance, run.run_id, key, is_own=True)
    if own is not None:
        return own
    seen = {run.run_id}
    while (parent := parent_of(run)) and parent not in seen:
        before = JudgedRun.of(instance, parent, key)
        if before is not None:
            return before
        seen.add(parent)
        found = instance.get_run_by_id(parent)
        if found is None:
            break
        run = found
    return next(newest_runs(instance, key), None)


def newest_runs(instance: DagsterInstance, key: AssetKey) -> Iterator[JudgedRun]:
    """Yield what each run materialized of the asset, the newest run first.

    Materializations without a run, as sensors report them, are left out. A run of many partitions
    has as many records, so they are read page by page, as far as the caller iterates.
    """
    seen: set[str] = set()
    cursor = None
    while True:
        page = instance.fetch_materializations(key, limit=_MATERIALIZATIONS_OF_PAGE, cursor=cursor)
        for run_id in [each.run_id for each in page.records if each.run_id]:
            if run_id not in seen:
                seen.add(run_id)
                found = JudgedRun.of(instance, run_id, key)
                if found is not None:
                    yield found
        if not page.has_more:
            return
        cursor = page.cursor
