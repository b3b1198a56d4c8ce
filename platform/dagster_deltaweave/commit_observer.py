"""A sensor that observes what others commit to the tables of merge assets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    DagsterInstance,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from dagster_deltaweave.declaration import table_declaration
from dagster_deltaweave.delta_log import Commit, DeltaLog, Position
from dagster_deltaweave.recorded_commits import (
    first_run_going_on,
    last_observed,
    position_in,
    position_metadata,
    versions_of_runs,
)
from dagster_deltaweave.run_mark import run_id_in
from dagster_deltaweave.storage import redacted, same_place
from deltaweave.errors import DeltaweaveError

URI = "dagster/uri"

_OPERATION = "commit/operation"

AssetEvent = AssetMaterialization | AssetObservation


@dataclass(frozen=True)
class Followed:
    """Where a table is, and up to which commit it was looked at.

    Attributes:
        location: Path or URI of the table.
        seen: The newest commit that was looked at.
    """

    location: str
    seen: Position


def build_commit_observer(
    *,
    name: str,
    tables: Sequence[AssetsDefinition],
    materializes: bool = True,
    max_commits_per_tick: int = 100,
    minimum_interval_seconds: int = 60,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor that records each commit to these tables which no Dagster run made.

    Each becomes an observation of the asset: the operation, the version (which is the data
    version), and the operation's metrics as flat `commit/…` numbers. Where a table is, the asset's
    last materialization says (`dagster/uri`); the logs are read without Spark. What was committed
    before the first look at a table is not observed; an observation says where that was. Where the
    cursor is lost, the newest observation of a commit says up to where the table was looked at: no
    commit is lost or observed twice. A table made anew in the same place is observed from its first
    commit on, one whose log was cleaned up meanwhile from the oldest that is left.

    Commits of runs are told by the run's id in their user metadata (`run_mark`) or, where the user
    sets metadata of their own, by the version that a materialization recorded. A commit with
    metadata of others is therefore judged, as all after it, once no run goes on that began before
    it and materializes the asset.

    Dagster looks at no observation of an asset that it can materialize when it says what is
    downstream of a change. So commits of others that changed rows are also recorded as one
    materialization, by no run: downstream assets become stale, and eager ones run. For partitioned
    assets there is none, since the commit belongs to no partition of theirs.

    Args:
        name: The sensor's name.
        tables: The merge assets whose tables are followed.
        materializes: Whether commits that changed rows count as a materialization.
        max_commits_per_tick: How many commits one tick records; the rest waits for the next.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: What the UI says of it.
    """

    @sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Records commits to the tables that no run of Dagster made.",
    )
    def commit_observer(context: SensorEvaluationContext) -> SensorResult:
        followed = _followed(context)
        events: list[AssetEvent] = []
        notes: list[str] = []
        for table in tables:
            name = table.key.to_user_string()
            left = max_commits_per_tick - sum(map(_is_of_others, events))
            newest = _newest_materialization(context.instance, table.key)
            before = followed.get(name)
            location = _location(newest, table) or (before.location if before else None)
            if location is None:
                notes.append(f"no run has said where the table of {name} is")
                continue
            if left <= 0:
                notes.append(f"{name} waits for the next tick")
                continue
            try:
                look = _look(context.instance, table.key, location, before, left)
            except (OSError, ValueError, DeltaweaveError) as error:
                # One log that cannot be read is no reason to look at no other.
                shown = redacted(location)
                context.log.warning(f"The log of {shown} cannot be read: {redacted(error)}")
                notes.append(f"the log of {shown} cannot be read")
                continue
            if look.followed is not None:
                followed[name] = look.followed
            notes.append(look.note)
            if look.is_first and look.followed is not None:
                events.append(_beginning(table.key, look.followed.seen))
            changed = _last_change(look.of_others) if materializes else []
            if table.partitions_def is None:
                events += [
                    _materialization(table.key, location, each)
                    for each in changed
                    # That of a tick which was killed before its cursor was saved.
                    if newest is None or position_in(newest.metadata) != each.position
                ]
            # After the materialization: where these are recorded, so is that.
            events += [_observation(table.key, each) for each in look.of_others]
        cursor = json.dumps({key: asdict(each) for key, each in followed.items()})
        if not any(map(_is_of_others, events)):
            return SensorResult(
                skip_reason=f"No commit of others: {'; '.join(notes)}.",
                asset_events=events,
                cursor=cursor,
            )
        return SensorResult(asset_events=events, cursor=cursor)

    return commit_observer


@dataclass(frozen=True)
class _Look:
    """What one look at a table found.

    Attributes:
        followed: Up to where it was looked at; None where there is no table.
        of_others: The new commits that no run made and that were not observed, oldest first.
        note: A word for the skip reason.
        is_first: Whether nothing says that the table was looked at before.
    """

    followed: Followed | None
    of_others: Sequence[Commit]
    note: str
    is_first: bool = False


def _followed(context: SensorEvaluationContext) -> dict[str, Followed]:
    try:
        tables = json.loads(context.cursor or "{}")
        return {
            key: Followed(
                str(each["location"]),
                Position(int(each["seen"]["version"]), int(each["seen"]["timestamp"])),
            )
            for key, each in tables.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        context.log.warning("The cursor cannot be read: observations say what was looked at.")
        return {}


def _newest_materialization(
    instance: DagsterInstance, key: AssetKey
) -> AssetMaterialization | None:
    event = instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def _location(newest: AssetMaterialization | None, table: AssetsDefinition) -> str | None:
    """Where the asset's table is: as its last materialization says, else its declaration."""
    uri = newest.metadata.get(URI) if newest else None
    if uri is not None:
        return str(uri.value)
    declaration = table_declaration(
        table.metadata_by_key[table.key], asset=table.key.to_user_string()
    )
    declared = declaration.table if declaration else None
    return declared if declared and "/" in declared and "`" not in declared else None


def _look(
    instance: DagsterInstance, key: AssetKey, location: str, before: Followed | None, limit: int
) -> _Look:
    log = DeltaLog(location)
    observed = None if before else last_observed(instance, key)
    before = Followed(location, observed) if observed else before
    commits = _commits_after(log, location, before, limit) if before else None
    if before is None or commits is None:
        return _first_look(log, location)
    judged, others = _judged(instance, key, log, commits)
    seen = judged[-1].position if judged else before.seen
    if not commits:
        note = f"version {seen.version} of {location} was the newest before"
    elif len(judged) < len(commits):
        note = f"version {commits[len(judged)].version} of {location} waits for the runs going on"
    else:
        note = f"{len(commits)} new commits of {key.to_user_string()}, all of runs"
    return _Look(Followed(location, seen), others, note)


def _first_look(log: DeltaLog, location: str) -> _Look:
    newest = next(log.newest_first(), None)
    if newest is None:
        return _Look(None, [], f"there is no Delta table at {location} yet")
    note = f"{location} is followed from version {newest.version} on"
    return _Look(Followed(location, newest.position), [], note, is_first=True)


def _commits_after(
    log: DeltaLog, location: str, before: Followed, limit: int
) -> list[Commit] | None:
    """The commits to be looked at, oldest first; None for a table that is another one elsewhere."""
    # A position tells whether this is still the table that was looked at, wherever it is.
    commits = log.after(before.seen, limit)
    if commits is None and same_place(location) == same_place(before.location):
        # Made anew, or cleaned up behind the cursor.
        commits = log.all(limit)
    return commits


def _judged(
    instance: DagsterInstance, key: AssetKey, log: DeltaLog, commits: Sequence[Commit]
) -> tuple[Sequence[Commit], list[Commit]]:
    """The first commits, of which it is known by now who made them, and those to be observed."""
    unmarked = [each for each in commits if run_id_in(each.user_metadata) is None]
    if not unmarked:
        return commits, []
    # Asked before the versions: a run that ends in between has recorded its version then.
    asks = any(each.user_metadata for each in unmarked)
    began = first_run_going_on(instance, key) if asks else math.inf
    oldest = min(each.position.timestamp for each in unmarked)
    of_runs = versions_of_runs(instance, key, {each.version for each in unmarked}, oldest)
    others = [each for each in unmarked if each.version not in of_runs]
    # A run that began after a commit did not make it.
    unclear = (e.version for e in others if e.user_metadata and began <= e.position.timestamp)
    first = next(unclear, None)
    if first is not None:
        commits = [each for each in commits if each.version < first]
        others = [each for each in others if each.version < first]
    # A tick that was killed before its cursor was saved may have recorded some.
    observed = last_observed(instance, key) if others else None
    if observed is not None and log.holds(observed):
        others = [each for each in others if each.version > observed.version]
    return commits, others


def _is_of_others(event: AssetEvent) -> bool:
    return isinstance(event, AssetObservation) and _OPERATION in event.metadata


def _last_change(commits: Sequence[Commit]) -> list[Commit]:
    return [each for each in commits if each.changes_data][-1:]


def _beginning(key: AssetKey, seen: Position) -> AssetObservation:
    return AssetObservation(
        asset_key=key,
        description=f"Commits by other writers are observed after version {seen.version}.",
        metadata=position_metadata(seen),
    )


def _observation(key: AssetKey, commit: Commit) -> AssetObservation:
    return AssetObservation(
        asset_key=key,
        description=f"{commit.operation or 'A commit'} by another writer",
        metadata=_metadata(commit),
        tags={DATA_VERSION_TAG: str(commit.version)},
    )


def _materialization(key: AssetKey, location: str, commit: Commit) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=key,
        description="Another writer changed rows of the table.",
        metadata={**_metadata(commit), URI: MetadataValue.text(location)},
        tags={DATA_VERSION_TAG: str(commit.version)},
    )


def _metadata(commit: Commit) -> dict[str, Any]:
    return {
        **position_metadata(commit.position),
        _OPERATION: MetadataValue.text(commit.operation),
        "commit/engine": MetadataValue.text(commit.engine),
        "commit/changes_data": MetadataValue.bool(commit.changes_data),
        **_numbers(commit.metrics),
    }


def _numbers(metrics: Mapping[str, str]) -> dict[str, MetadataValue]:
    """The metrics that are whole numbers, flat and in snake_case; sizes and times stay in units."""
    return {
        "commit/" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): MetadataValue.int(
            int(value)
        )
        for name, value in metrics.items()
        if re.fullmatch(r"-?\d{1,18}", str(value))
    }
