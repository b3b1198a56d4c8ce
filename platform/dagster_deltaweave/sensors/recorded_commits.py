"""Finds commits to an asset's table in Dagster's event log: those of runs, and observed ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    EventLogRecord,
    EventRecordsResult,
    MetadataValue,
    RunsFilter,
)

from dagster_deltaweave.logs import Position
from dagster_deltaweave.partitions import planned_assets

VERSION = "commit/version"
TIMESTAMP = "commit/timestamp"

_BY_RUNS = ("merge/version", "write/version", "rematerialize/version")
_GOING_ON = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_CLOCKS_DIFFER = 60_000
"""How much later than its commits' times a run may begin by Dagster's clock, in ms."""

_PAGE = 1_000
_SEARCHED = 10
"""How many pages of observations are searched for a commit's; each merge has one of its own."""


class _Fetch(Protocol):
    def __call__(
        self, records_filter: AssetRecordsFilter, limit: int, cursor: str | None
    ) -> EventRecordsResult: ...


def position_metadata(position: Position) -> dict[str, MetadataValue]:
    """Return a commit's version and time as metadata; `position_in` reads them back."""
    return {
        VERSION: MetadataValue.int(position.version),
        TIMESTAMP: MetadataValue.timestamp(position.timestamp / 1000),
    }


def position_in(metadata: Mapping[str, Any]) -> Position | None:
    """Return the position of the commit that metadata describes, or None."""
    version, timestamp = metadata.get(VERSION), metadata.get(TIMESTAMP)
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
        (record.start_time or record.create_timestamp.timestamp()) * 1000 - _CLOCKS_DIFFER
        for record in instance.get_run_records(RunsFilter(statuses=_GOING_ON))
        if key in planned_assets(instance, record.dagster_run)
    )
    return min(began, default=math.inf)


def materialized_by(instance: DagsterInstance, run_id: str, key: AssetKey) -> bool | None:
    """Return whether a run materialized the asset; None if it still may."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return False
    materialization = DagsterEventType.ASSET_MATERIALIZATION
    events = instance.get_records_for_run(run_id, of_type=materialization).records
    if any(each.asset_key == key for each in events):
        return True
    return False if run.is_finished or key not in planned_assets(instance, run) else None


def _newest_first(
    fetch: _Fetch, wanted: AssetRecordsFilter, pages: int | None = None
) -> Iterator[EventLogRecord]:
    cursor, read = None, 0
    while pages is None or read < pages:
        page = fetch(wanted, _PAGE, cursor)
        yield from page.records
        if not page.has_more:
            return
        cursor, read = page.cursor, read + 1
