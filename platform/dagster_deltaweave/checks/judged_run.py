"""Which run's materializations an asset check judges, if several runs are concurrent.

A check judges what its own run materialized. If its run is a re-execution that did not materialize
the asset, it judges the run before. Only a check that runs alone judges the newest materialization
of any run, and it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    MetadataValue,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, PARENT_RUN_ID_TAG

_PAGE = 200


@dataclass(frozen=True)
class JudgedRun:
    """What one run materialized of an asset, and whether it is the check's own run.

    Attributes:
        run_id: The run.
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
        """A sentence that names the judged run, or nothing if it is the check's own."""
        if self.is_own:
            return ""
        return f" The check judges run {self.run_id[:8]} of {self.at:%Y-%m-%d %H:%M:%S %Z}."

    @property
    def metadata(self) -> dict[str, MetadataValue]:
        """The run as metadata of the check."""
        return {"check/judged_run": MetadataValue.dagster_run(self.run_id)}


def judged_run(instance: DagsterInstance, run: DagsterRun, key: AssetKey) -> JudgedRun | None:
    """Return the materializations that a check of this run judges; None if no run made any."""
    own = materializations_of_run(instance, run.run_id, key)
    if own is not None:
        return JudgedRun(run.run_id, True, *own)
    seen = {run.run_id}
    while (parent := run.tags.get(PARENT_RUN_ID_TAG)) and parent not in seen:
        before = materializations_of_run(instance, parent, key)
        if before is not None:
            return JudgedRun(parent, False, *before)
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
        page = instance.fetch_materializations(key, limit=_PAGE, cursor=cursor)
        for run_id in [each.run_id for each in page.records if each.run_id]:
            if run_id not in seen:
                seen.add(run_id)
                found = materializations_of_run(instance, run_id, key)
                if found is not None:
                    yield JudgedRun(run_id, False, *found)
        if not page.has_more:
            return
        cursor = page.cursor


def materializations_of_run(
    instance: DagsterInstance, run_id: str, key: AssetKey
) -> tuple[datetime, int, Sequence[AssetMaterialization]] | None:
    """Time and number of a run's last materialization of the asset, and all of them; or None."""
    records = instance.get_records_for_run(
        run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION, ascending=False
    ).records
    made = [(record, record.event_log_entry.asset_materialization) for record in records]
    of_asset = [(record, each) for record, each in made if each and each.asset_key == key]
    if not of_asset:
        return None
    newest, _ = of_asset[0]
    at = datetime.fromtimestamp(newest.event_log_entry.timestamp, timezone.utc)
    return at, newest.storage_id, [each for _, each in of_asset]
