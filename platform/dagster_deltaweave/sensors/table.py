"""A sensor on a source Delta table: requests runs for new versions or for changed partitions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    MetadataValue,
    PartitionsDefinition,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, SENSOR_NAME_TAG
from dagster_deltaweave.logs import LoggedCommit, LogReader, Position
from dagster_deltaweave.partitions import (
    NULL_PARTITION,
    SOURCE_TABLE_TAG,
    SOURCE_VERSION_TAG,
    planned_assets,
)
from dagster_deltaweave.sensors.run_requests import (
    SensorArguments,
    added_partitions,
    check_least,
    first_without_a_run,
    is_here,
    is_key,
    is_of_sensor,
    known_partitions,
    runs_with_key,
)
from dagster_deltaweave.sensors.target_tables import (
    SensorTarget,
    StartedTarget,
    Target,
    check_target_partitions,
)
from dagster_deltaweave.storage import redacted, without_query
from dagster_deltaweave.tables import AssetOrKey, NamedAsset
from deltaweave._validation import check_given_location, options_of
from deltaweave.errors import NOTHING_REQUESTED, SourceError

if TYPE_CHECKING:
    from typing_extensions import Unpack


PartitionKeyOf = Callable[[Mapping[str, str | None]], str]
"""Gives the asset's partition key for a file's partition values by column."""


@dataclass(frozen=True)
class Progress:
    """How far a source table was read: the sensor's cursor.

    Attributes:
        seen: The newest version whose changes were all requested.
        until: If more partitions changed than a tick requests: the version up to which these
            partitions are requested.
        after: The last of these partitions that was requested; they are requested by name.
        unknown: Partition to version for partitions that the definition did not know.
        until_timestamp: When the version `until` was committed, in ms since 1970; None or 0 if an
            older release did not keep it.
        table_id: Delta's id of the table; empty if an older release did not keep it.
    """

    seen: Position
    until: int | None = None
    after: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    until_timestamp: int | None = None
    table_id: str = ""

    @classmethod
    def of(cls, cursor: str | None) -> Progress | None:
        """Read the progress from a cursor; None if the cursor was reset or cannot be read."""
        try:
            values = json.loads(cursor or "null")
            progress = cls(**{**values, "seen": Position(**values["seen"])})
        except (KeyError, TypeError, ValueError):
            return None
        return progress if progress._is_sound() else None

    def _is_sound(self) -> bool:
        """Return whether the values have the right types; a cursor may have been edited."""
        numbers: list[object] = [self.seen.version, self.seen.timestamp]
        numbers += [each for each in (self.until, self.until_timestamp) if each is not None]
        unknown: object = self.unknown
        return (
            all(isinstance(each, int) for each in numbers)
            and isinstance(unknown, dict)
            and all(
                isinstance(each, str) for each in [self.after, self.table_id, *unknown.values()]
            )
        )

    def leads_to(self, commits: Sequence[LoggedCommit]) -> bool:
        """Return whether these commits after `seen` include the version `until`."""
        if self.until is None or not self.until_timestamp:
            return True
        return Position(self.until, self.until_timestamp) in [each.position for each in commits]

    def to_cursor(self) -> str:
        """Return the progress as a cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Change:
    """A partition that changed, and the last version in which it did.

    Attributes:
        partition: The partition key; empty for the table as a whole.
        version: The version and its time, `<version>@<ms since 1970>`, which a table
            that is recreated at the same place does not repeat.
    """

    partition: str
    version: str

    @property
    def run_key(self) -> str:
        """Identifies the run for this change."""
        return f"{self.partition}@{self.version}" if self.partition else self.version


class CommitsSince(NamedTuple):
    """Where a look at a table begins, and its commits from there."""

    progress: Progress
    commits: list[LoggedCommit]


def look_at_table(
    log: LogReader, progress: Progress | None, *, by_partition: bool
) -> CommitsSince | None:
    """Return the commits to look at; None if there is no table."""
    commits = log.after(progress.seen) if progress else None
    if progress is not None and commits is not None and progress.leads_to(commits):
        until = progress.until
        wanted = [each for each in commits if until is None or each.version <= until]
        return CommitsSince(progress, wanted)
    commits = log.all() if by_partition else _newest_change(log)
    if not commits:
        return None
    begin = Position(commits[0].version - 1, 0)
    # Unknown partitions are remembered as long as the table can be the one in which they changed.
    is_cleaned_up = progress is not None and begin.version >= progress.seen.version
    unknown = progress.unknown if progress and is_cleaned_up else {}
    return CommitsSince(Progress(begin, unknown=unknown), commits)


def _table_id(log: LogReader, looked: CommitsSince) -> str:
    """Return the table's id; the log is asked for it only if no commit or cursor names it."""
    ids = [looked.progress.table_id, *(each.table_id for each in looked.commits)]
    known = [each for each in ids if each]
    return known[-1] if known else str((log.metadata() or {}).get("id") or "")


def _newest_change(log: LogReader) -> list[LoggedCommit]:
    """Return the newest commit that changed rows, or the newest of all if none in the log did."""
    newest = None
    for commit in log.newest_first():
        newest = newest or commit
        if commit.changes_data:
            # Later commits are covered by the cursor's version, and no run key contains them.
            return [commit] if commit is newest else [commit, newest]
    return [newest] if newest else []


class ChangedPartitions(NamedTuple):
    """What changed: the changes to request, in order, and the versions of unknown partitions."""

    changes: list[Change]
    unknown: dict[str, str]


def changes_to_request(
    commits: Sequence[LoggedCommit],
    progress: Progress,
    known: frozenset[str] | None,
    partitions_def: PartitionsDefinition[str] | None,
    partition_key: PartitionKeyOf | None,
) -> ChangedPartitions:
    """Return what changed in the partitions that exist, and in others."""
    changing = [each for each in commits if each.changes_data]
    if partitions_def is None:
        newest = [Change("", _version_text(each.position)) for each in changing[-1:]]
        return ChangedPartitions(newest, {})
    key_of = partition_key or _joined_key
    changed: dict[str, str] = {}
    for commit in changing:
        for values in commit.partitions:
            changed[key_of(dict(values))] = _version_text(commit.position)
    changed = {each: changed[each] for each in sorted(changed) if each > progress.after}
    if known is None:
        return ChangedPartitions([Change(*each) for each in changed.items()], {})
    # Partitions that were unknown come first, because the log may no longer have their versions.
    once_unknown = {**progress.unknown, **changed}
    unknown = {each: version for each, version in once_unknown.items() if each not in known}
    changes = [Change(*each) for each in once_unknown.items() if each[0] in known]
    return ChangedPartitions(changes, unknown)


def _joined_key(values: Mapping[str, str | None]) -> str:
    """Join the values; where others would give the same key, by what no key may have."""
    texts = [NULL_PARTITION if value is None else value for _, value in sorted(values.items())]
    is_ambiguous = len(texts) > 1 and any("|" in each for each in texts)
    return ("..." if is_ambiguous else "|").join(texts)


def _version_text(position: Position) -> str:
    return f"{position.version}@{position.timestamp}"


def progress_after(
    progress: Progress,
    commits: Sequence[LoggedCommit],
    changes: Sequence[Change],
    dealt_with: int,
    unknown: Mapping[str, str],
) -> Progress:
    """Return the progress after this many changes were requested or skipped."""
    newest = commits[-1].position if commits else progress.seen
    waiting, table_id = changes[dealt_with:], progress.table_id
    if not waiting:
        return Progress(newest, unknown=unknown, table_id=table_id)
    # Partitions that were unknown and still wait are remembered with their versions.
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
        progress.seen, newest.version, after, {**unknown, **still}, newest.timestamp, table_id
    )


class LeftRun(NamedTuple):
    """A run that is left to request: its run key, and its assets; None for all of the target."""

    run_key: str
    selected: Sequence[AssetKey] | None = None


class SourceRuns:
    """Looks up the runs that were requested for changes of a source table."""

    def __init__(self, target: StartedTarget, sensor_name: str, table_ids: Collection[str]) -> None:
        self._target = target
        self._sensor_name = sensor_name
        self._tables = {_source_digest(each) for each in table_ids}

    def left(self, change: str) -> LeftRun | None:
        """Return the run that is left to request for a change; None if all its assets have one.

        Dagster drops a request whose run key a run of the sensor has, also one for another table,
        and says so only in the daemon's log. So the run key is one that no run has.
        """
        context, made = self._target.context, set[AssetKey]()
        for number in count(1):
            run_key = change if number == 1 else f"{change}#{number}"
            runs = runs_with_key(context, run_key)
            for run in runs:
                is_own = is_of_sensor(context, self._sensor_name, run)
                if not self._is_of_source(run, is_own=is_own) or self._is_of_other_sensor(run):
                    continue
                is_launched = run.status != DagsterRunStatus.NOT_STARTED
                if is_own:
                    # The daemon launches a run that it created if it is requested again.
                    return None if is_launched else LeftRun(run_key)
                if is_launched and self._is_of_same_ops(run):
                    return None
                made |= self._made_by(run) if is_launched else set()
            if made and made >= self._target.executed:
                return None
            if not runs:
                return LeftRun(run_key, self._target.without(made) if made else None)
        raise AssertionError

    def _is_of_source(self, run: DagsterRun, *, is_own: bool) -> bool:
        """Return whether a run was requested for the table; earlier releases did not name it."""
        table = run.tags.get(SOURCE_TABLE_TAG)
        if table is None or not self._tables:
            return is_own or SOURCE_VERSION_TAG in run.tags
        return table in self._tables

    def _is_of_other_sensor(self, run: DagsterRun) -> bool:
        """Return whether a run is of another sensor that the code location still has.

        Such a run is none of this sensor under an earlier name: each has its own runs.
        """
        repository, name = self._target.context.repository_def, run.tags.get(SENSOR_NAME_TAG)
        is_other = name is not None and name != self._sensor_name
        is_known = repository is not None and is_other and repository.has_sensor_def(str(name))
        return is_known and is_here(self._target.context, run.remote_job_origin)

    def _is_of_same_ops(self, run: DagsterRun) -> bool:
        """Return whether a run is of the target, if that is a job that materializes no asset."""
        is_known = self._target.context.repository_def is not None
        return is_known and self._target.is_of_ops and run.job_name == self._target.job_name

    def _made_by(self, run: DagsterRun) -> frozenset[AssetKey]:
        """Return the target's assets that a run materializes."""
        if self._target.context.repository_def is None:
            return frozenset()
        return planned_assets(self._target.context.instance, run) & self._target.executed


def _source_digest(table_id: str) -> str:
    """Return the digest of a table's id that is in tags of runs."""
    return hashlib.sha256(table_id.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _TableSensor:
    """A sensor on a table: the arguments of `build_table_sensor`, and its tick."""

    name: str
    target: Target
    table: str | Path
    partitions_def: PartitionsDefinition[str] | None
    partition_key: PartitionKeyOf | None
    source_asset: AssetKey | None
    max_requests_per_tick: int
    run_tags: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The table's name in messages."""
        return without_query(self.table)

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Look at the table once, and request what changed since the last look."""
        if self.partitions_def is not None and context.repository_def is not None:
            # Check here: Dagster's own error for a target without partitions names internals.
            SensorTarget(context, self.target, self.partitions_def, self.table).partitioned  # noqa: B018
        before = Progress.of(context.cursor)
        if context.cursor and before is None:
            context.log.warning(
                "The cursor cannot be read: the run history says what was requested."
            )
        looked = self._look(before)
        if looked is None:
            return SensorResult(
                skip_reason=f"There is no Delta table at {self.shown} yet.",
                cursor=context.cursor,
            )
        progress, commits = looked
        if before and progress.seen != before.seen:
            context.log.warning(
                f"The log of {self.shown} does not continue from version {before.seen.version}: "
                "the table was recreated, or commits were cleaned up before the sensor saw them."
            )
        known = known_partitions(context, self.partitions_def)
        changes, unknown = changes_to_request(
            commits, progress, known, self.partitions_def, self.partition_key
        )
        changes = self._with_valid_keys(context, changes)
        requested, passed = self._requests(context, looked, changes)
        dealt_with = len(requested) + len(passed)
        cursor = progress_after(progress, commits, changes, dealt_with, unknown).to_cursor()
        if not requested:
            reason = _skip_reason(self.shown, progress, commits, len(passed), unknown)
            return SensorResult(skip_reason=reason, cursor=cursor)
        context.log.info(
            f"Requesting {len(requested)} of {len(changes) - len(passed)} runs for {self.shown}."
        )
        return SensorResult(
            run_requests=requested,
            dynamic_partitions_requests=added_partitions(
                context,
                self.partitions_def,
                [each.partition_key for each in requested if each.partition_key],
            ),
            # What a tick leaves for the next ones is of the same commits.
            asset_events=[_arrival(self.source_asset, self.shown, each) for each in commits[-1:]]
            if self.source_asset and progress.until is None
            else [],
            cursor=cursor,
        )

    def _look(self, before: Progress | None) -> CommitsSince | None:
        """Return the commits to look at, with the names of columns; None if there is no table."""
        try:
            log = LogReader(self.table)
            looked = look_at_table(log, before, by_partition=self.partitions_def is not None)
            if looked is not None and self.partitions_def is not None:
                named = log.with_column_names(looked.commits)
                looked = looked._replace(commits=named)
            if looked is not None:
                table_id = _table_id(log, looked)
                looked = looked._replace(progress=replace(looked.progress, table_id=table_id))
        except (OSError, ValueError) as error:
            raise SourceError(
                f"its log cannot be read: {redacted(error)}",
                table=self.shown,
                operation="looking for new versions",
                state=NOTHING_REQUESTED,
            ) from None
        return looked

    def _requests(
        self, context: SensorEvaluationContext, looked: CommitsSince, changes: Sequence[Change]
    ) -> tuple[list[RunRequest], list[Change]]:
        """Return the requests of this tick, and the changes that have a run already."""
        table_id = looked.progress.table_id
        table_ids = {table_id, *(each.table_id for each in looked.commits)} - {""}
        runs = SourceRuns(StartedTarget(context, self.target), self.name, table_ids)

        def request(change: Change) -> RunRequest | None:
            left = runs.left(change.run_key)
            own = {SOURCE_VERSION_TAG: change.version.split("@")[0]}
            if table_id:
                own[SOURCE_TABLE_TAG] = _source_digest(table_id)
            return left and RunRequest(
                run_key=left.run_key,
                partition_key=change.partition or None,
                asset_selection=left.selected,
                tags={**self.run_tags, **own},
            )

        return first_without_a_run(changes, request=request, limit=self.max_requests_per_tick)

    def _with_valid_keys(
        self, context: SensorEvaluationContext, changes: list[Change]
    ) -> list[Change]:
        """Keep the changes whose partitions Dagster accepts as keys; log the others."""
        if self.partitions_def is None:
            return changes
        no_keys = [each for each in changes if not is_key(each.partition)]
        if no_keys:
            context.log.warning(
                f"{self.shown} has partitions whose names Dagster refuses as keys, or that have "
                f"`|` in one of several values: {no_keys}"
            )
        return [each for each in changes if each not in no_keys]


def build_table_sensor(  # noqa: PLR0913 - the public options
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
    partition, the version and its time, and a tag holds the table. So after a lost cursor no run is
    requested twice, also if the sensor or the code location got a new name: runs that materialize
    the target count, and only assets without one are requested. A recreated table is read from its
    first commit.

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
            dimensions. Of several, none may hold `|`: such a partition is logged and not requested.
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
        check_target_partitions(name, target)
    what = "changed partition" if partitions_def else "new version"
    given = {
        **locals(),
        "source_asset": None if source_asset is None else NamedAsset.of(source_asset).key,
        "run_tags": run_tags or {},
    }
    sensor = options_of(_TableSensor, given)
    return SensorDefinition(
        name=name,
        evaluation_fn=lambda context: sensor.tick(context),
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each {what} of {sensor.shown}.",
        **arguments,
    )


def _skip_reason(
    table: str,
    progress: Progress,
    commits: Sequence[LoggedCommit],
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


def _arrival(source_asset: AssetKey, table: str, commit: LoggedCommit) -> AssetMaterialization:
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
