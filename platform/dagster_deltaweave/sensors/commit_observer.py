"""A sensor that observes the commits of other writers to the tables of merge assets.

Commits that Dagster's event log has are those of runs, and those observed before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    EventLogRecord,
    EventRecordsResult,
    MetadataValue,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, AssetGraph
from dagster_deltaweave.logs import LoggedCommit, LogReader, Position
from dagster_deltaweave.metadata import newest_materialization
from dagster_deltaweave.partitions import planned_assets
from dagster_deltaweave.sensors.run_requests import SensorArguments, check_least
from dagster_deltaweave.spark import run_id_in, session_runs_in
from dagster_deltaweave.storage import normalized_location, redacted
from dagster_deltaweave.tables import AssetOrKey, NamedAsset, table_location
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import is_path

if TYPE_CHECKING:
    from typing_extensions import Unpack


COMMIT_VERSION = "commit/version"
COMMIT_TIMESTAMP = "commit/timestamp"

_BY_RUNS = ("merge/version", "write/version", "rematerialize/version")
_GOING_ON = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_CLOCKS_DIFFER_MS = 60_000
"""How much later than its commits' times a run may begin by Dagster's clock, in ms."""

_RUNS_OF_PAGE = 1_000
_SEARCHED = 10
"""How many pages of observations are searched for a commit's; each merge has one of its own."""


def position_metadata(position: Position) -> dict[str, MetadataValue]:
    """Return a commit's version and time as metadata; `position_in` reads them back."""
    return {
        COMMIT_VERSION: MetadataValue.int(position.version),
        COMMIT_TIMESTAMP: MetadataValue.timestamp(position.timestamp / 1000),
    }


def position_in(metadata: Mapping[str, Any]) -> Position | None:
    """Return the position of the commit that metadata describes, or None."""
    version, timestamp = metadata.get(COMMIT_VERSION), metadata.get(COMMIT_TIMESTAMP)
    if version is None or timestamp is None:
        return None
    return Position(int(version.value), round(timestamp.value * 1000))


def last_observed(instance: DagsterInstance, key: AssetKey) -> Position | None:
    """Return the position of the newest observed commit; None if recent observations have none."""
    records = _newest_first(instance.fetch_observations, AssetRecordsFilter(key), _SEARCHED)
    observations = (record.event_log_entry.asset_observation for record in records)
    positions = (position_in(each.metadata) for each in observations if each)
    return next((each for each in positions if each), None)


def versions_of_runs(
    instance: DagsterInstance, key: AssetKey, versions: Collection[int], since: int
) -> set[int]:
    """Return which of these versions materializations recorded since a time, in ms since 1970."""
    found: set[int] = set()
    wanted = AssetRecordsFilter(key, after_timestamp=since / 1000)
    for record in _newest_first(instance.fetch_materializations, wanted):
        if record.asset_materialization:
            metadata = record.asset_materialization.metadata
            recorded = {int(str(metadata[each].value)) for each in _BY_RUNS if each in metadata}
            found |= recorded.intersection(versions)
        if len(found) == len(versions):
            break
    return found


def first_run_going_on(instance: DagsterInstance, key: AssetKey) -> float:
    """Return when the oldest run that may still record a version of the asset's table began.

    Returns:
        The time in ms since 1970, less the possible difference of clocks; infinity if there is no
        such run.
    """
    began = (
        (record.start_time or record.create_timestamp.timestamp()) * 1000 - _CLOCKS_DIFFER_MS
        for record in instance.get_run_records(RunsFilter(statuses=_GOING_ON))
        if key in planned_assets(instance, record.dagster_run)
    )
    return min(began, default=math.inf)


def materialized_by(instance: DagsterInstance, run_id: str, key: AssetKey) -> bool | None:
    """Return whether a run materialized the asset; None while the run still may."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return False
    materialization = DagsterEventType.ASSET_MATERIALIZATION
    events = instance.get_records_for_run(run_id, of_type=materialization).records
    if any(each.asset_key == key for each in events):
        return True
    return False if run.is_finished or key not in planned_assets(instance, run) else None


def _newest_first(
    fetch: Callable[..., EventRecordsResult], wanted: AssetRecordsFilter, pages: int | None = None
) -> Iterator[EventLogRecord]:
    cursor, read = None, 0
    while pages is None or read < pages:
        page = fetch(wanted, limit=_RUNS_OF_PAGE, cursor=cursor)
        yield from page.records
        if not page.has_more:
            return
        cursor, read = page.cursor, read + 1


@dataclass(frozen=True)
class FollowedTable:
    """A table's location, and the newest commit that was read there.

    Attributes:
        seen: The newest commit that was read.
    """

    location: str
    seen: Position


@dataclass(frozen=True)
class TableLook:
    """The result of one look at a table.

    Attributes:
        followed: The newest commit that was read; None if there is no table.
        of_others: The new commits that no run made and that were not observed, oldest first.
        is_first: Whether there is no record that the table was read before.
    """

    followed: FollowedTable | None
    of_others: Sequence[LoggedCommit]
    note: str
    is_first: bool = False


def look_for_commits(
    instance: DagsterInstance,
    key: AssetKey,
    location: str,
    before: FollowedTable | None,
    limit: int,
) -> TableLook:
    """Return the commits since the last look that no run made and no observation has recorded."""
    log = LogReader(location)
    observed = None if before else last_observed(instance, key)
    before = FollowedTable(location, observed) if observed else before
    commits = _commits_after(log, location, before, limit) if before else None
    if before is None or commits is None:
        return _first_look(log, location)
    judged, others = _known_writers(instance, key, log, commits)
    seen = judged[-1].position if judged else before.seen
    if not commits:
        note = f"version {seen.version} of {location} was the newest before"
    elif len(judged) < len(commits):
        note = (
            f"version {commits[len(judged)].version} of {location} waits for the runs in progress"
        )
    else:
        note = f"{len(commits)} new commits of {key.to_user_string()}, all of runs"
    return TableLook(FollowedTable(location, seen), others, note)


def _first_look(log: LogReader, location: str) -> TableLook:
    newest = next(log.newest_first(), None)
    if newest is None:
        return TableLook(None, [], f"there is no Delta table at {location} yet")
    note = f"{location} is followed from version {newest.version} on"
    return TableLook(FollowedTable(location, newest.position), [], note, is_first=True)


def _commits_after(
    log: LogReader, location: str, before: FollowedTable, limit: int
) -> list[LoggedCommit] | None:
    """Return the commits to read, oldest first; None if the location holds another table."""
    # The position shows whether this is the same table, even if the table was moved.
    commits = log.after(before.seen, limit)
    if commits is None and normalized_location(location) == normalized_location(before.location):
        # The table was recreated, or its log was cleaned up past the cursor.
        commits = log.all(limit)
    return commits


class _JudgedCommits(NamedTuple):
    """Commits whose writers are known, and those of them to observe: no run made them."""

    judged: Sequence[LoggedCommit]
    of_others: list[LoggedCommit]


def _known_writers(
    instance: DagsterInstance, key: AssetKey, log: LogReader, commits: Sequence[LoggedCommit]
) -> _JudgedCommits:
    """Return the first commits whose writers are known by now."""
    by_session = _committed_by_sessions(instance, key, commits)
    unmarked = [
        each
        for each in commits
        if run_id_in(each.user_metadata) is None and not by_session.get(each.version)
    ]
    if not unmarked:
        return _JudgedCommits(commits, [])
    # Query the runs before the versions, so that a run that ends in between has its version there.
    labelled = {e.version for e in unmarked if e.user_metadata and e.version not in by_session}
    began = first_run_going_on(instance, key) if labelled else math.inf
    oldest = min(each.position.timestamp for each in unmarked)
    recorded = versions_of_runs(instance, key, {each.version for each in unmarked}, oldest)
    others = [each for each in unmarked if each.version not in recorded]
    unclear = (
        each.version
        for each in others
        if by_session.get(each.version, False) is None
        # A run that began after a commit did not make it.
        or (each.version in labelled and began <= each.position.timestamp)
    )
    first = next(unclear, None)
    if first is not None:
        commits = [each for each in commits if each.version < first]
        others = [each for each in others if each.version < first]
    # A tick that was killed before it saved its cursor may have recorded some.
    observed = last_observed(instance, key) if others else None
    if observed is not None and log.holds(observed):
        others = [each for each in others if each.version > observed.version]
    return _JudgedCommits(commits, others)


def _committed_by_sessions(
    instance: DagsterInstance, key: AssetKey, commits: Sequence[LoggedCommit]
) -> dict[int, bool | None]:
    """Return by version whether its run materialized the asset; None while the run still may.

    A run that failed before is another writer for the asset, whose rows it has changed.
    """
    runs = {each.version: session_runs_in(each.user_metadata) for each in commits}
    known = {
        run_id: materialized_by(instance, run_id, key)
        for run_id in {each for session_runs in runs.values() for each in session_runs}
    }
    answers = {version: [known[each] for each in found] for version, found in runs.items() if found}
    return {
        version: True if True in found else None if None in found else False
        for version, found in answers.items()
    }


URI = "dagster/uri"

_OPERATION = "commit/operation"

AssetEvent = AssetMaterialization | AssetObservation


def build_commit_observer(
    *,
    name: str,
    tables: AssetOrKey | Sequence[AssetOrKey],
    materializes: bool = True,
    max_commits_per_tick: int = 100,
    minimum_interval_seconds: int = 60,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
    **arguments: Unpack[SensorArguments],
) -> SensorDefinition:
    """Build a sensor that records each commit to these tables that no Dagster run made.

    Each commit becomes an observation of the asset: the operation, the version (which is the data
    version), and the operation's metrics as flat `commit/…` numbers. The asset's last
    materialization gives the table's location (`dagster/uri`), and the logs are read without Spark.
    Commits from before the first look at a table are not observed; an observation records where the
    first look began. If the cursor is lost, the newest observation of a commit says up to where the
    table was read, so no commit is lost or observed twice. A table that was recreated in the same
    place is observed from its first commit. A table whose log was cleaned up is observed from the
    oldest remaining commit.

    A run's commit is recognized by the run in its user metadata (`spark`) or, if the user sets
    their own metadata, by the version that a materialization recorded. What an asset's own code
    commits in a run is the run's for the assets that the run materializes, and another writer's for
    all others. So a commit by a run's own code or with other metadata, and all commits after it,
    are judged only once no run is in progress that may have made it and materializes the asset.

    To decide what is stale, Dagster ignores observations of an asset that it can materialize. So
    commits of others that changed rows are also recorded as one materialization without a run:
    downstream assets become stale, and eager ones run. Partitioned assets get no such
    materialization, because the commit belongs to none of their partitions.

    Args:
        name: The sensor's name.
        tables: The assets whose tables are observed: definitions, specs or keys.
        materializes: Whether commits that changed rows count as a materialization.
        max_commits_per_tick: How many commits one tick records; the rest waits for the next.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: The sensor's description in the UI.
        arguments: `metadata`, `owners` and `tags` of the sensor, as in Dagster's own `sensor`.
    """
    check_least(name, 1, max_commits_per_tick=max_commits_per_tick)
    named = NamedAsset.each_of(tables, f"commit observer {name}")

    @sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Records commits to the tables that no run of Dagster made.",
        **arguments,
    )
    def commit_observer(context: SensorEvaluationContext) -> SensorResult:
        followed = _followed(context)
        events: list[AssetEvent] = []
        notes: list[str] = []
        for table in named:
            left = max_commits_per_tick - sum(map(_is_of_others, events))
            found, note = _look_at_asset(context, table, followed, left, materializes)
            events += found
            notes.append(note)
        cursor = json.dumps({key: asdict(each) for key, each in followed.items()})
        if not any(map(_is_of_others, events)):
            return SensorResult(
                skip_reason=f"No commit of others: {'; '.join(notes)}.",
                asset_events=events,
                cursor=cursor,
            )
        return SensorResult(asset_events=events, cursor=cursor)

    return commit_observer


class _AssetLook(NamedTuple):
    """The events to record for an asset, and a note on it."""

    events: list[AssetEvent]
    note: str


def _look_at_asset(
    context: SensorEvaluationContext,
    table: NamedAsset,
    followed: dict[str, FollowedTable],
    limit: int,
    materializes: bool,
) -> _AssetLook:
    """Return the events to record for one asset; update `followed`."""
    name = table.name
    newest = newest_materialization(context.instance, table.key)
    before = followed.get(name)
    try:
        location = _location(newest, table) or (before.location if before else None)
    except StatementError as error:
        context.log.warning(f"The table of {name} is not looked at: {redacted(error)}")
        return _AssetLook([], f"the metadata of {name} is not valid")
    if location is None:
        graph = _graph_of_tick(context)
        if graph is not None and not graph.has(table.key):
            return _AssetLook(
                [], f"there is no asset {name} here: its key may have got a prefix when loaded"
            )
        return _AssetLook([], f"no run has said where the table of {name} is")
    if limit <= 0:
        return _AssetLook([], f"{name} waits for the next tick")
    try:
        look = look_for_commits(context.instance, table.key, location, before, limit)
    except (OSError, ValueError, DeltaweaveError) as error:
        # One unreadable log must not keep the other logs from being read.
        shown = redacted(location)
        context.log.warning(f"The log of {shown} cannot be read: {redacted(error)}")
        return _AssetLook([], f"the log of {shown} cannot be read")
    events: list[AssetEvent] = []
    if look.followed is not None:
        followed[name] = look.followed
    if look.is_first and look.followed is not None:
        events.append(_follow_observation(table.key, look.followed.seen))
    changed = [each for each in look.of_others if each.changes_data][-1:] if materializes else []
    if not _has_partitions(context, table):
        events += [
            _materialization(table.key, location, each)
            for each in changed
            # A tick that was killed before it saved its cursor may have recorded it.
            if newest is None or position_in(newest.metadata) != each.position
        ]
    # The observations follow the materialization, so if they are recorded, it is recorded too.
    events += [_observation(table.key, each) for each in look.of_others]
    return _AssetLook(events, look.note)


def _has_partitions(context: SensorEvaluationContext, table: NamedAsset) -> bool:
    if table.is_partitioned is not None:
        return table.is_partitioned
    graph = _graph_of_tick(context)
    if graph is None or not graph.has(table.key):
        return False
    return graph.get(table.key).partitions_def is not None


def _graph_of_tick(context: SensorEvaluationContext) -> AssetGraph | None:
    """Return the assets of the code location; None if the tick has none, as in a test."""
    return None if context.repository_def is None else context.repository_def.asset_graph


def _followed(context: SensorEvaluationContext) -> dict[str, FollowedTable]:
    try:
        tables = json.loads(context.cursor or "{}")
        return {
            key: FollowedTable(
                str(each["location"]),
                Position(int(each["seen"]["version"]), int(each["seen"]["timestamp"])),
            )
            for key, each in tables.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        context.log.warning("The cursor cannot be read: observations say which commits were seen.")
        return {}


def _location(newest: AssetMaterialization | None, table: NamedAsset) -> str | None:
    """Return the location of the asset's table, by its last materialization or its declaration."""
    uri = newest.metadata.get(URI) if newest else None
    if uri is not None:
        return str(uri.value)
    declared = table_location(table.metadata or {}, asset=table.name)
    return declared.table if declared.table and is_path(declared.table) else None


def _is_of_others(event: AssetEvent) -> bool:
    return isinstance(event, AssetObservation) and _OPERATION in event.metadata


def _follow_observation(key: AssetKey, seen: Position) -> AssetObservation:
    return AssetObservation(
        asset_key=key,
        description=f"Commits by other writers are observed after version {seen.version}.",
        metadata=position_metadata(seen),
    )


def _observation(key: AssetKey, commit: LoggedCommit) -> AssetObservation:
    return AssetObservation(
        asset_key=key,
        description=f"{commit.operation or 'A commit'} by another writer",
        metadata=_commit_metadata(commit),
        tags={DATA_VERSION_TAG: str(commit.version)},
    )


def _materialization(key: AssetKey, location: str, commit: LoggedCommit) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=key,
        description="Another writer changed rows of the table.",
        metadata={**_commit_metadata(commit), URI: MetadataValue.text(location)},
        tags={DATA_VERSION_TAG: str(commit.version)},
    )


def _commit_metadata(commit: LoggedCommit) -> dict[str, Any]:
    return {
        **position_metadata(commit.position),
        _OPERATION: MetadataValue.text(commit.operation),
        "commit/engine": MetadataValue.text(commit.engine),
        "commit/changes_data": MetadataValue.bool(commit.changes_data),
        **_numbers(commit.metrics),
    }


def _numbers(metrics: Mapping[str, str]) -> dict[str, MetadataValue]:
    """Return the whole-number metrics, flat and in snake_case, in their original units."""
    return {
        "commit/" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): MetadataValue.int(
            int(value)
        )
        for name, value in metrics.items()
        if re.fullmatch(r"-?\d{1,18}", str(value))
    }
