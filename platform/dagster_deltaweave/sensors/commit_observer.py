"""A sensor that observes the commits of other writers to the tables of merge assets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, AssetGraph
from dagster_deltaweave.logs import Commit, Position
from dagster_deltaweave.sensors.commits_of_others import Followed, look_for_commits
from dagster_deltaweave.sensors.recorded_commits import (
    position_in,
    position_metadata,
)
from dagster_deltaweave.sensors.sensor_arguments import SensorArguments, check_least
from dagster_deltaweave.storage import redacted
from dagster_deltaweave.tables import AssetOrKey, NamedAsset, table_place
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import is_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

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

    A run's commit is recognized by the run in its user metadata (`run_mark`) or, if the user sets
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


def _look_at_asset(
    context: SensorEvaluationContext,
    table: NamedAsset,
    followed: dict[str, Followed],
    limit: int,
    materializes: bool,
) -> tuple[list[AssetEvent], str]:
    """Return the events to record for one asset, and a note; update `followed`.

    Args:
        context: The sensor's context.
        table: The asset.
        followed: How far each asset's table was read, by the asset's key.
        limit: How many commits may still be recorded.
        materializes: Whether commits that changed rows count as a materialization.
    """
    name = table.name
    newest = _newest_materialization(context.instance, table.key)
    before = followed.get(name)
    try:
        location = _location(newest, table) or (before.location if before else None)
    except StatementError as error:
        context.log.warning(f"The table of {name} is not looked at: {redacted(error)}")
        return [], f"the metadata of {name} is not valid"
    if location is None:
        graph = _graph(context)
        if graph is not None and not graph.has(table.key):
            return [], f"there is no asset {name} here: its key may have got a prefix when loaded"
        return [], f"no run has said where the table of {name} is"
    if limit <= 0:
        return [], f"{name} waits for the next tick"
    try:
        look = look_for_commits(context.instance, table.key, location, before, limit)
    except (OSError, ValueError, DeltaweaveError) as error:
        # One unreadable log must not keep the other logs from being read.
        shown = redacted(location)
        context.log.warning(f"The log of {shown} cannot be read: {redacted(error)}")
        return [], f"the log of {shown} cannot be read"
    events: list[AssetEvent] = []
    if look.followed is not None:
        followed[name] = look.followed
    if look.is_first and look.followed is not None:
        events.append(_beginning(table.key, look.followed.seen))
    changed = _last_change(look.of_others) if materializes else []
    if not _is_partitioned(context, table):
        events += [
            _materialization(table.key, location, each)
            for each in changed
            # A tick that was killed before it saved its cursor may have recorded it.
            if newest is None or position_in(newest.metadata) != each.position
        ]
    # The observations follow the materialization, so if they are recorded, it is recorded too.
    events += [_observation(table.key, each) for each in look.of_others]
    return events, look.note


def _is_partitioned(context: SensorEvaluationContext, table: NamedAsset) -> bool:
    if table.is_partitioned is not None:
        return table.is_partitioned
    graph = _graph(context)
    if graph is None or not graph.has(table.key):
        return False
    return graph.get(table.key).partitions_def is not None


def _graph(context: SensorEvaluationContext) -> AssetGraph | None:
    """Return the assets of the code location; None if the tick has none, as in a test."""
    return None if context.repository_def is None else context.repository_def.asset_graph


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
        context.log.warning("The cursor cannot be read: observations say which commits were seen.")
        return {}


def _newest_materialization(
    instance: DagsterInstance, key: AssetKey
) -> AssetMaterialization | None:
    event = instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def _location(newest: AssetMaterialization | None, table: NamedAsset) -> str | None:
    """Return the location of the asset's table, by its last materialization or its declaration."""
    uri = newest.metadata.get(URI) if newest else None
    if uri is not None:
        return str(uri.value)
    place = table_place(table.metadata or {}, asset=table.name)
    return place.table if place.table and is_path(place.table) else None


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
    """Return the whole-number metrics, flat and in snake_case, in their original units."""
    return {
        "commit/" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(): MetadataValue.int(
            int(value)
        )
        for name, value in metrics.items()
        if re.fullmatch(r"-?\d{1,18}", str(value))
    }
