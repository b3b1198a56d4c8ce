"""A sensor on a source Delta table: requests runs for new versions or for changed partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    AssetMaterialization,
    DefaultSensorStatus,
    MetadataValue,
    PartitionsDefinition,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.logs import Commit, DeltaLog
from dagster_deltaweave.sensors.run_requests import (
    additions,
    first_without_a_run,
    is_key,
    known_partitions,
)
from dagster_deltaweave.sensors.sensor_arguments import SensorArguments, check_least
from dagster_deltaweave.sensors.table_progress import (
    Change,
    PartitionKeyOf,
    Progress,
    changes_to_request,
    look_at_table,
    progress_after,
)
from dagster_deltaweave.sensors.target_tables import SensorTarget, Target, check_partitions
from dagster_deltaweave.storage import redacted, without_query
from dagster_deltaweave.tables import AssetOrKey, NamedAsset
from deltaweave.errors import SourceError
from deltaweave.locations import check_given_location

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class _Watched:
    """What a table sensor watches and requests: the arguments of `build_table_sensor`."""

    name: str
    target: Target
    table: str | Path
    partitions_def: PartitionsDefinition[str] | None
    partition_key: PartitionKeyOf | None
    source_asset: AssetKey | None
    max_requests_per_tick: int
    run_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        return without_query(self.table)


def build_table_sensor(
    *,
    name: str,
    target: Target,
    table: str | Path,
    partitions_def: PartitionsDefinition[str] | None = None,
    partition_key: PartitionKeyOf | None = None,
    source_asset: AssetOrKey | None = None,
    max_requests_per_tick: int = 20,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
    run_tags: Mapping[str, str] | None = None,
    **arguments: Unpack[SensorArguments],
) -> SensorDefinition:
    """Build a sensor on a Delta table that others write; it reads the log without Spark.

    Without `partitions_def`, it requests one run for the newest of the versions since the last
    tick. With it, the sensor requests one run for each partition in which rows were added or
    removed. Commits that change no rows, such as OPTIMIZE, give no run. The run key holds the
    partition, the version and its time, so after a lost cursor no run is requested twice, and a
    recreated table is read from its first commit.

    If something changed only in versions that the log no longer holds when the sensor first looks
    (30 days by default), it is not requested: backfill it.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run.
        table: The table's path, or its URI on an object store; credentials come from the
            environment.
        partitions_def: The target's partitions, if each of its runs takes one of the table's;
            dynamic ones are added as they appear.
        partition_key: Gives the partition key for a file's partition values; by default the values
            in the order of their columns' names, joined by `|` as Dagster joins those of several
            dimensions.
        source_asset: The external asset for the table, in which new versions are recorded.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: The sensor's description in the UI.
        run_tags: Tags of the runs that it requests.
        arguments: `metadata`, `owners` and `tags` of the sensor, as in Dagster's own `sensor`.

    Raises:
        StatementError: The table's URI is empty or holds credentials.
        DagsterInvalidDefinitionError: A number makes no sense, or the target has no partitions and
            is to have the table's.
    """
    check_given_location(table, operation="looking for new versions")
    check_least(name, 1, max_requests_per_tick=max_requests_per_tick)
    if partitions_def is not None:
        check_partitions(name, target)
    what = "changed partition" if partitions_def else "new version"
    shown = without_query(table)

    watched = _Watched(
        name,
        target,
        table,
        partitions_def,
        partition_key,
        NamedAsset.of(source_asset).key if source_asset is not None else None,
        max_requests_per_tick,
        run_tags or {},
    )

    return SensorDefinition(
        name=name,
        evaluation_fn=lambda context: _tick(context, watched),
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each {what} of {shown}.",
        **arguments,
    )


def _tick(context: SensorEvaluationContext, watched: _Watched) -> SensorResult:
    """Look at the table once, and request what changed since the last look."""
    if watched.partitions_def is not None and context.repository_def is not None:
        # Refuses a target without partitions in our words; Dagster's error is one of its inside.
        SensorTarget(context, watched.target, watched.partitions_def, watched.table).partitioned  # noqa: B018
    before = Progress.of(context.cursor)
    if context.cursor and before is None:
        context.log.warning("The cursor cannot be read: the run history says what was requested.")
    looked = _look(watched, before)
    if looked is None:
        return SensorResult(
            skip_reason=f"There is no Delta table at {watched.shown} yet.",
            cursor=context.cursor,
        )
    progress, commits = looked
    if before and progress.seen != before.seen:
        context.log.warning(
            f"The log of {watched.shown} does not continue from version {before.seen.version}: "
            "the table was recreated, or commits were cleaned up before the sensor saw them."
        )
    known = known_partitions(context, watched.partitions_def)
    changes, unknown = changes_to_request(
        commits, progress, known, watched.partitions_def, watched.partition_key
    )
    if watched.partitions_def is not None:
        changes = _with_valid_keys(context, watched, changes)
    now, passed = first_without_a_run(
        context,
        watched.name,
        changes,
        run_key=lambda change: change.run_key,
        limit=watched.max_requests_per_tick,
    )
    cursor = progress_after(progress, commits, changes, len(now) + len(passed), unknown).to_cursor()
    if not now:
        reason = _skip_reason(watched.shown, progress, commits, len(passed), unknown)
        return SensorResult(skip_reason=reason, cursor=cursor)
    context.log.info(
        f"Requesting {len(now)} of {len(changes) - len(passed)} runs for {watched.shown}."
    )
    return SensorResult(
        run_requests=[_run_request(each, watched.run_tags) for each in now],
        dynamic_partitions_requests=additions(
            context, watched.partitions_def, [each.partition for each in now]
        ),
        # What a tick leaves for the next ones is of the same commits.
        asset_events=[_arrival(watched.source_asset, watched.shown, each) for each in commits[-1:]]
        if watched.source_asset and progress.until is None
        else [],
        cursor=cursor,
    )


def _with_valid_keys(
    context: SensorEvaluationContext, watched: _Watched, changes: list[Change]
) -> list[Change]:
    """Keep the changes whose partitions Dagster accepts as keys; log the others."""
    no_keys = [each for each in changes if not is_key(each.partition)]
    if no_keys:
        context.log.warning(
            f"{watched.shown} has partitions whose names Dagster refuses as keys: {no_keys}"
        )
    return [each for each in changes if each not in no_keys]


def _look(watched: _Watched, before: Progress | None) -> tuple[Progress, list[Commit]] | None:
    """Return where the look begins, and the commits from there; None if there is no table."""
    try:
        log = DeltaLog(watched.table)
        looked = look_at_table(log, before, by_partition=watched.partitions_def is not None)
        if looked is not None and watched.partitions_def is not None:
            looked = looked[0], log.with_column_names(looked[1])
    except (OSError, ValueError) as error:
        raise SourceError(
            f"its log cannot be read: {redacted(error)}",
            table=watched.shown,
            operation="looking for new versions",
            state="Nothing was requested; the next tick looks again.",
        ) from None
    return looked


def _skip_reason(
    table: str,
    progress: Progress,
    commits: Sequence[Commit],
    passed: int,
    unknown: Mapping[str, str],
) -> str:
    if not commits:
        reason = f"No new version of {table}: {progress.seen.version} was the newest before"
    else:
        first, last = commits[0].version, commits[-1].version
        versions = f"version {last}" if first == last else f"versions {first} to {last}"
        operations = ", ".join(sorted({each.operation or "unnamed" for each in commits}))
        reason = f"Nothing to request for {versions} of {table} ({operations}): "
        if passed:
            reason += "the runs were requested before"
        elif any(each.changes_data for each in commits):
            reason += "no partition that is known was changed"
        else:
            reason += "no rows were changed"
    if unknown:
        reason += f", {len(unknown)} unknown ({', '.join(sorted(unknown)[:5])})"
    return reason + "."


def _run_request(change: Change, run_tags: Mapping[str, str]) -> RunRequest:
    return RunRequest(
        run_key=change.run_key,
        partition_key=change.partition or None,
        tags={**run_tags, "deltaweave/source_version": change.version.split("@")[0]},
    )


def _arrival(source_asset: AssetKey, table: str, commit: Commit) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=source_asset,
        description=f"A new version was found: {commit.operation or 'a commit'}.",
        metadata={
            "commit/version": MetadataValue.int(commit.version),
            "commit/operation": MetadataValue.text(commit.operation),
            "dagster/uri": MetadataValue.text(table),
        },
        tags={DATA_VERSION_TAG: str(commit.version)},
    )
