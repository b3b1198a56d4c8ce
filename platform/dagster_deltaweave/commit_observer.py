"""A sensor that observes what others commit to the tables of merge assets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
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
from dagster_deltaweave.run_mark import run_id_in

URI = "dagster/uri"

_MERGED_VERSION = "merge/version"
_RECORDS = 100

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
    before the first look at a table is not observed.

    Commits of runs are told by the run's id in their user metadata (`run_mark`), or by the version
    that a materialization recorded.

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
        followed = _followed(context.cursor)
        events: list[AssetEvent] = []
        notes: list[str] = []
        for table in tables:
            key = table.key
            before = followed.get(key.to_user_string())
            left = max_commits_per_tick - sum(isinstance(each, AssetObservation) for each in events)
            location = _location(context.instance, table) or (before.location if before else None)
            if location is None:
                notes.append(f"no run has said where the table of {key.to_user_string()} is")
                continue
            try:
                after, commits, note = _look(location, before, left)
            except (OSError, ValueError) as error:
                # One log that cannot be read is no reason to look at no other.
                context.log.warning(f"The log of {location} cannot be read: {error}")
                notes.append(f"the log of {location} cannot be read")
                continue
            if after is not None:
                followed[key.to_user_string()] = after
            others = _of_others(context.instance, key, commits)
            notes.append(
                note or f"{len(commits)} new commits of {key.to_user_string()}, all of runs"
            )
            events += [_observation(key, each) for each in others]
            if materializes and table.partitions_def is None:
                events += [_materialization(key, location, each) for each in _last_change(others)]
        cursor = json.dumps({key: asdict(each) for key, each in followed.items()})
        if not events:
            return SensorResult(
                skip_reason=f"No commit of others: {'; '.join(notes)}.", cursor=cursor
            )
        return SensorResult(asset_events=events, cursor=cursor)

    return commit_observer


def _followed(cursor: str | None) -> dict[str, Followed]:
    tables = json.loads(cursor) if cursor else {}
    return {
        key: Followed(each["location"], Position(**each["seen"])) for key, each in tables.items()
    }


def _location(instance: DagsterInstance, table: AssetsDefinition) -> str | None:
    """Where the asset's table is: as its last materialization says, else its declaration."""
    event = instance.get_latest_materialization_event(table.key)
    materialization = event.asset_materialization if event else None
    uri = materialization.metadata.get(URI) if materialization else None
    if uri is not None:
        return str(uri.value)
    declaration = table_declaration(
        table.metadata_by_key[table.key], asset=table.key.to_user_string()
    )
    declared = declaration.table if declaration else None
    return declared if declared and "/" in declared and "`" not in declared else None


def _look(
    location: str, before: Followed | None, limit: int
) -> tuple[Followed | None, list[Commit], str | None]:
    """How far the table was looked at, the new commits, and a word where there are none."""
    log = DeltaLog(location)
    # A position tells whether this is still the table that was looked at, wherever it is.
    commits = log.after(before.seen) if before else None
    if before is not None and commits is not None:
        commits = commits[:limit]
        seen = commits[-1].position if commits else before.seen
        note = None if commits else f"version {seen.version} of {location} was the newest before"
        return Followed(location, seen), commits, note
    newest = next(log.newest_first(), None)
    if newest is None:
        return None, [], f"there is no Delta table at {location} yet"
    return (
        Followed(location, newest.position),
        [],
        f"{location} is followed from version {newest.version} on",
    )


def _of_others(instance: DagsterInstance, key: AssetKey, commits: Sequence[Commit]) -> list[Commit]:
    unmarked = [each for each in commits if run_id_in(each.user_metadata) is None]
    if not unmarked:
        return []
    recorded = _recorded_versions(instance, key, unmarked[0].position)
    return [each for each in unmarked if each.version not in recorded]


def _recorded_versions(instance: DagsterInstance, key: AssetKey, oldest: Position) -> set[int]:
    """The versions that materializations of the asset recorded since a commit."""
    records = instance.fetch_materializations(
        AssetRecordsFilter(asset_key=key, after_timestamp=oldest.timestamp / 1000), limit=_RECORDS
    ).records
    entries = [
        record.asset_materialization.metadata.get(_MERGED_VERSION)
        for record in records
        if record.asset_materialization
    ]
    return {int(str(entry.value)) for entry in entries if entry is not None}


def _last_change(commits: Sequence[Commit]) -> list[Commit]:
    return [each for each in commits if each.changes_data][-1:]


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
        "commit/version": MetadataValue.int(commit.version),
        "commit/operation": MetadataValue.text(commit.operation),
        "commit/engine": MetadataValue.text(commit.engine),
        "commit/changes_data": MetadataValue.bool(commit.changes_data),
        "commit/timestamp": MetadataValue.timestamp(commit.position.timestamp / 1000),
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
