"""A sensor on a source Delta table: runs for its new versions, or for its changed partitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DefaultSensorStatus,
    JobDefinition,
    MetadataValue,
    PartitionsDefinition,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_deltaweave.delta_log import Commit, DeltaLog, Position
from dagster_deltaweave.run_requests import (
    additions,
    first_without_a_run,
    is_key,
    known_partitions,
)
from dagster_deltaweave.storage import redacted, without_query
from deltaweave.errors import SourceError
from deltaweave.locations import refuse_credentials

PartitionKeyOf = Callable[[Mapping[str, str | None]], str]
"""From a file's partition values, by column, to the partition key of the asset."""

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Progress:
    """How far a source table was dealt with: the sensor's cursor.

    Attributes:
        seen: The newest version of which everything was requested.
        until: While more partitions changed than a tick requests: the version up to which.
        after: The last partition of these that was requested; they are requested by name.
        unknown: Partition to version for those that the partitions definition did not know.
        until_timestamp: When the version `until` was committed, in ms since 1970; None or 0 where
            an older release did not keep it.
    """

    seen: Position
    until: int | None = None
    after: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    until_timestamp: int | None = None

    @classmethod
    def of(cls, cursor: str | None) -> Progress | None:
        """The progress that a cursor holds; None where it was reset, or cannot be read."""
        try:
            values = json.loads(cursor or "null")
            progress = cls(**{**values, "seen": Position(**values["seen"])})
        except (KeyError, TypeError, ValueError):
            return None
        return progress if progress._is_sound() else None

    def _is_sound(self) -> bool:
        """Whether the values are of their types, which a cursor from elsewhere need not hold."""
        numbers: list[object] = [self.seen.version, self.seen.timestamp]
        numbers += [each for each in (self.until, self.until_timestamp) if each is not None]
        unknown: object = self.unknown
        return (
            all(isinstance(each, int) for each in numbers)
            and isinstance(unknown, dict)
            and all(isinstance(each, str) for each in [self.after, *unknown.values()])
        )

    def leads_to(self, commits: Sequence[Commit]) -> bool:
        """Whether these commits after `seen` have the one up to which partitions are requested."""
        if self.until is None or not self.until_timestamp:
            return True
        return Position(self.until, self.until_timestamp) in [each.position for each in commits]

    def to_cursor(self) -> str:
        """The progress as a cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Change:
    """A partition that changed, and in which version last.

    Attributes:
        partition: The partition key; empty for the table as a whole.
        version: The version and its time, `<version>@<ms since 1970>`, which a table made anew
            at the same place does not repeat.
    """

    partition: str
    version: str

    @property
    def run_key(self) -> str:
        """What tells the run for this change from all others."""
        return f"{self.partition}@{self.version}" if self.partition else self.version


def build_table_sensor(
    *,
    name: str,
    target: JobDefinition | UnresolvedAssetJobDefinition | AssetSelection,
    table: str | Path,
    partitions_def: PartitionsDefinition[str] | None = None,
    partition_key: PartitionKeyOf | None = None,
    source_asset: AssetKey | None = None,
    max_requests_per_tick: int = 20,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor over a Delta table that others write, by its log and without Spark.

    Without `partitions_def`, the versions since the last tick give one run, for the newest of
    them. With it, each partition in which rows came or went gives one. Commits that change no
    rows, such as OPTIMIZE, give none. The run key holds partition, version and its time: a lost
    cursor requests no run twice, and a table that was made anew is taken up from its beginning.

    What changed only in versions that the log no longer holds when the sensor first looks (30 days
    by default) is not requested: backfill it.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run.
        table: The table's path, or its URI on an object store; credentials come from the
            environment.
        partitions_def: The target's partitions, if its runs take one of the table's each; dynamic
            ones are added as they appear.
        partition_key: The partition key of a file's partition values; by default the values in
            the order of their columns' names, joined by `|` as Dagster joins those of several
            dimensions.
        source_asset: The external asset that the table is; its new versions are recorded there.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: What the UI says of it.

    Raises:
        StatementError: The table is given by a URI that holds credentials.
    """
    refuse_credentials(table, operation="looking for new versions")
    what = "changed partition" if partitions_def else "new version"
    shown = without_query(table)

    @sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each {what} of {shown}.",
    )
    def table_sensor(context: SensorEvaluationContext) -> SensorResult:
        before = Progress.of(context.cursor)
        if context.cursor and before is None:
            context.log.warning("The cursor cannot be read: the runs say what was requested.")
        try:
            log = DeltaLog(table)
            looked = _look(log, before, by_partition=partitions_def is not None)
            if looked is not None and partitions_def is not None:
                looked = looked[0], log.with_column_names(looked[1])
        except (OSError, ValueError) as error:
            raise SourceError(
                f"its log cannot be read: {redacted(error)}",
                table=shown,
                operation="looking for new versions",
                state="Nothing was requested; the next tick looks again.",
            ) from None
        if looked is None:
            return SensorResult(
                skip_reason=f"There is no Delta table at {shown} yet.", cursor=context.cursor
            )
        progress, commits = looked
        if before and progress.seen != before.seen:
            context.log.warning(
                f"The log of {shown} does not lead on from version {before.seen.version}: "
                "the table was made anew, or commits were cleaned up unseen."
            )
        known = known_partitions(context, partitions_def)
        changes, unknown = _changes(commits, progress, known, partitions_def, partition_key)
        no_keys = [] if partitions_def is None else [c for c in changes if not is_key(c.partition)]
        if no_keys:
            context.log.warning(f"{shown} has partitions that Dagster takes for no keys: {no_keys}")
            changes = [each for each in changes if each not in no_keys]
        now, passed = first_without_a_run(
            context,
            name,
            changes,
            run_key=lambda change: change.run_key,
            limit=max_requests_per_tick,
        )
        cursor = _moved(progress, commits, changes, len(now) + len(passed), unknown).to_cursor()
        if not now:
            reason = _skip_reason(shown, progress, commits, len(passed), unknown)
            return SensorResult(skip_reason=reason, cursor=cursor)
        context.log.info(f"Requesting {len(now)} of {len(changes) - len(passed)} runs for {shown}.")
        return SensorResult(
            run_requests=[_run_request(each) for each in now],
            dynamic_partitions_requests=additions(
                context, partitions_def, [each.partition for each in now]
            ),
            asset_events=[_arrival(source_asset, shown, each) for each in commits[-1:]]
            if source_asset
            else [],
            cursor=cursor,
        )

    return table_sensor


def _look(
    log: DeltaLog, progress: Progress | None, *, by_partition: bool
) -> tuple[Progress, list[Commit]] | None:
    """From where on the table is looked at, and its commits from there; None without a table."""
    commits = log.after(progress.seen) if progress else None
    if progress is not None and commits is not None and progress.leads_to(commits):
        until = progress.until
        return progress, [each for each in commits if until is None or each.version <= until]
    commits = log.all() if by_partition else _newest_change(log)
    if not commits:
        return None
    begin = Position(commits[0].version - 1, 0)
    # What was not known is remembered as long as the table can be the one in which it changed.
    is_cleaned_up = progress is not None and begin.version >= progress.seen.version
    return Progress(begin, unknown=progress.unknown if progress and is_cleaned_up else {}), commits


def _newest_change(log: DeltaLog) -> list[Commit]:
    """The newest commit that changed rows, or the newest of all if none in the log did."""
    newest = None
    for commit in log.newest_first():
        newest = newest or commit
        if commit.changes_data:
            # What was committed since is in the cursor's version, and in no run key.
            return [commit] if commit is newest else [commit, newest]
    return [newest] if newest else []


def _changes(
    commits: Sequence[Commit],
    progress: Progress,
    known: frozenset[str] | None,
    partitions_def: PartitionsDefinition[str] | None,
    partition_key: PartitionKeyOf | None,
) -> tuple[list[Change], dict[str, str]]:
    """What is to be requested, in its order, and what the partitions definition does not know."""
    changing = [each for each in commits if each.changes_data]
    if partitions_def is None:
        return [Change("", _spelt(each.position)) for each in changing[-1:]], {}
    key_of = partition_key or _joined
    changed: dict[str, str] = {}
    for commit in changing:
        for values in commit.partitions:
            changed[key_of(dict(values))] = _spelt(commit.position)
    changed = {each: changed[each] for each in sorted(changed) if each > progress.after}
    if known is None:
        return [Change(*each) for each in changed.items()], {}
    # Those that were unknown first: their versions may be no longer in the log.
    once_unknown = {**progress.unknown, **changed}
    unknown = {each: version for each, version in once_unknown.items() if each not in known}
    return [Change(*each) for each in once_unknown.items() if each[0] in known], unknown


def _joined(values: Mapping[str, str | None]) -> str:
    return "|".join(
        _NULL_PARTITION if value is None else value for _, value in sorted(values.items())
    )


def _spelt(position: Position) -> str:
    return f"{position.version}@{position.timestamp}"


def _moved(
    progress: Progress,
    commits: Sequence[Commit],
    changes: Sequence[Change],
    dealt_with: int,
    unknown: Mapping[str, str],
) -> Progress:
    newest = commits[-1].position if commits else progress.seen
    waiting = changes[dealt_with:]
    if not waiting:
        return Progress(newest, unknown=unknown)
    # Of those once unknown, what is still to be requested is remembered as they were.
    remembered = {each.partition: each.version for each in waiting}
    still = {each: remembered[each] for each in progress.unknown if each in remembered}
    after = max(
        [progress.after]
        + [
            each.partition
            for each in changes[:dealt_with]
            if each.partition not in progress.unknown
        ]
    )
    return Progress(
        progress.seen, newest.version, after, {**unknown, **still}, until_timestamp=newest.timestamp
    )


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


def _run_request(change: Change) -> RunRequest:
    return RunRequest(
        run_key=change.run_key,
        partition_key=change.partition or None,
        tags={"deltaweave/source_version": change.version.split("@")[0]},
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
