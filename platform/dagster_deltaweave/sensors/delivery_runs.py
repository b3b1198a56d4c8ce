"""The runs of landed deliveries: which are under way, and when one is requested (again)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterError,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    MetadataValue,
    RunRecord,
    RunRequest,
    RunsFilter,
)

from dagster_deltaweave.dagster_private import (
    DATA_VERSION_TAG,
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    RUN_KEY_TAG,
    BulkActionsFilter,
    BulkActionStatus,
)
from dagster_deltaweave.landing import SECOND_IN_NS, Delivery
from dagster_deltaweave.partitions import (
    DELIVERY_TAG,
    IDENTITY_TAG,
    WAITED_TAG,
    is_under_way,
    partitions_of_run,
)
from dagster_deltaweave.sensors.target_tables import SensorTarget
from dagster_deltaweave.storage import local_path, without_query

ATTEMPT_TAG = "deltaweave/attempt"
"""Run tag: the number of the run among those that the sensor requested for its delivery."""

_LONGEST_PAUSE_SECONDS = 3600.0
_CLOCKS_DIFFER = 60 * SECOND_IN_NS


@dataclass(frozen=True)
class RetryPolicy:
    """How a sensor requests again what failed.

    Attributes:
        attempts: How many runs it requests for a delivery.
        retry_after_seconds: How long after the first one ended the second is requested, in s;
            twice as long each further time, up to an hour.
    """

    attempts: int
    retry_after_seconds: float


@dataclass(frozen=True)
class Standing:
    """What Dagster's runs say of a delivery.

    Attributes:
        attempt: The number of the run to request now; None if none is.
        run_key: Its run key.
        run: The run that is under way, merged it, or failed, if any.
        problem: Why it is not requested now, if runs for it failed; a sentence's end.
        is_done: Whether a run merged it.
    """

    attempt: int | None = None
    run_key: str = ""
    run: DagsterRun | None = None
    problem: str = ""
    is_done: bool = False


class TargetRuns:
    """The runs, whoever started them, that materialize what a sensor's target merges.

    Args:
        target: The sensor's target.
    """

    def __init__(self, target: SensorTarget) -> None:
        self._target = target
        self._instance: DagsterInstance = target.context.instance
        self._assets_of_jobs: dict[str, bool] = {}

    def of(self, partitions: Sequence[str]) -> Mapping[str, Sequence[RunRecord]]:
        """Return the runs of partitions, the newest first."""
        runs: dict[str, list[RunRecord]] = defaultdict(list)
        tags: dict[str, str | Sequence[str]] = {PARTITION_NAME_TAG: list(partitions)}
        for record in self._instance.get_run_records(RunsFilter(tags=tags)):
            if self._is_ours(record.dagster_run):
                runs[record.dagster_run.tags[PARTITION_NAME_TAG]].append(record)
        return runs

    def of_several(self) -> frozenset[str]:
        """Return the partitions that a run of several is to merge, or a backfill that goes on."""
        unfinished = self._instance.get_runs(RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
        of_runs = (
            partition
            for run in unfinished
            if PARTITION_NAME_TAG not in run.tags and self._is_ours(run)
            for partition in partitions_of_run(run, self._target.partitions_def, self._instance)
        )
        return frozenset(of_runs).union(self._left_to_backfills())

    def _left_to_backfills(self) -> Iterator[str]:
        """The partitions for which backfills will make runs."""
        graph = self._target.repository.asset_graph
        going_on = BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
        for backfill in self._instance.get_backfills(filters=going_on):
            if self._target.partitioned.isdisjoint(backfill.asset_selection or ()):
                continue
            try:
                data = backfill.get_asset_backfill_data(graph)
            except DagsterError:  # it was launched before the definitions changed
                continue
            left = data.target_subset - data.requested_subset - data.failed_and_downstream_subset
            for key in self._target.partitioned & left.asset_keys:
                yield from left.get_partitions_subset(key).get_partition_keys()

    def _is_ours(self, run: DagsterRun) -> bool:
        if run.asset_selection is not None:
            return not self._target.partitioned.isdisjoint(run.asset_selection)
        name = run.job_name
        if name == self._target.job_name:
            return True
        if name not in self._assets_of_jobs:
            repository = self._target.repository
            assets: Iterable[AssetKey] = ()
            if repository.has_job(name):
                assets = repository.get_job(name).asset_layer.executable_asset_keys
            self._assets_of_jobs[name] = not self._target.partitioned.isdisjoint(assets)
        return self._assets_of_jobs[name]


def standing_of(
    delivery: Delivery,
    runs: Sequence[RunRecord],
    policy: RetryPolicy,
    *,
    counts: Callable[[DagsterRun], bool],
) -> Standing:
    """Return whether a delivery is to be requested, by the runs of its partition.

    Args:
        delivery: A delivery that no table holds.
        runs: The runs of its partition, the newest first.
        policy: When it is requested again.
        counts: Whether a run that succeeded has merged it, though no table says so.
    """
    run_key = f"{delivery.partition}@{delivery.identity}"
    ended: list[RunRecord] = []
    for record in runs:
        run = record.dagster_run
        is_for_it = _is_for(record, delivery)
        if run.status == DagsterRunStatus.NOT_STARTED and is_for_it and RUN_KEY_TAG in run.tags:
            # The daemon died before it launched the run: it does so if it is requested again.
            attempt = int(run.tags.get(ATTEMPT_TAG, "1"))
            return Standing(attempt=attempt, run_key=run.tags[RUN_KEY_TAG])
        if is_under_way(run):
            return Standing(run=run)
    for record in runs:
        run = record.dagster_run
        is_for_it, is_by_hand = _is_for(record, delivery), IDENTITY_TAG not in run.tags
        if run.status == DagsterRunStatus.SUCCESS:
            is_later = is_by_hand and _created_at(record) > delivery.changed_at
            if (is_for_it or is_later) and counts(run):
                return Standing(run=run, is_done=True)
        if not is_for_it and not is_by_hand:
            break  # what was before another delivery does not count for this one
        if is_for_it and WAITED_TAG not in run.tags:
            ended.append(record)
    keys = [record.dagster_run.tags.get(RUN_KEY_TAG, "") for record in runs]
    number = len(ended) + 1
    used = sum(key == run_key or key.startswith(f"{run_key}#") for key in keys)
    key = f"{run_key}#{used + 1}" if used else run_key
    if not ended:
        return Standing(attempt=number, run_key=key)
    run, problem = ended[0].dagster_run, _problem(ended, policy)
    if problem:
        return Standing(run=run, problem=problem)
    return Standing(attempt=number, run_key=key, run=run)


def _problem(ended: Sequence[RunRecord], policy: RetryPolicy) -> str:
    """Why no run is requested now, after these have ended without a merge; the newest first."""
    newest = ended[0].dagster_run
    name = f"run {newest.run_id[:8]}"
    if newest.status == DagsterRunStatus.CANCELED:
        return f"{name} was cancelled: run it yourself, or deliver it again"
    how = "failed" if newest.status == DagsterRunStatus.FAILURE else "ended without a merge"
    if len(ended) >= policy.attempts:
        return (
            f"{name} {how}, attempt {len(ended)} of {policy.attempts}: deliver it again, or run it "
            "yourself"
        )
    at = max(each.end_time or each.update_timestamp.timestamp() for each in ended)
    pause = min(_LONGEST_PAUSE_SECONDS, policy.retry_after_seconds * 2 ** (len(ended) - 1))
    left = at + pause - time.time()
    if left <= 0:
        return ""
    tried = f"{name} {how}, attempt {len(ended)} of {policy.attempts}"
    return f"{tried}; it is tried again in {left:.0f} s"


def _is_for(record: RunRecord, delivery: Delivery) -> bool:
    tags = record.dagster_run.tags
    if IDENTITY_TAG in tags:
        return tags[IDENTITY_TAG] == delivery.identity
    # A run of an older release, which identified deliveries only by their fingerprints.
    is_later = _created_at(record) > delivery.marked_at - _CLOCKS_DIFFER
    return tags.get(RUN_KEY_TAG) == f"{delivery.partition}@{delivery.fingerprint}" and is_later


def _created_at(record: RunRecord) -> int:
    return int(record.create_timestamp.timestamp() * SECOND_IN_NS)


def delivery_run_request(
    delivery: Delivery, standing: Standing, tags: Mapping[str, str]
) -> RunRequest:
    """Return the request of a run for a delivery, with these tags and those that name it."""
    return RunRequest(
        run_key=standing.run_key,
        partition_key=delivery.partition,
        tags={
            **tags,
            DELIVERY_TAG: _version_of_delivery(delivery),
            IDENTITY_TAG: str(delivery.identity),
            ATTEMPT_TAG: str(standing.attempt),
        },
    )


def _version_of_delivery(delivery: Delivery) -> str:
    """A version that no other delivery of the partition has; if it is a time, later is newer."""
    fingerprint, changed_at = delivery.fingerprint, str(delivery.changed_at)
    is_marked = delivery.marked_at or fingerprint == changed_at
    return changed_at if is_marked else f"{fingerprint}.{changed_at}"


def arrival_of_delivery(
    landing_asset: AssetKey, directory: str | Path, delivery: Delivery
) -> AssetMaterialization:
    """Return the materialization of the landing asset that records a delivery."""
    path = local_path(directory)
    if path is None:
        uri = f"{without_query(directory)}/{delivery.name}"
    else:
        uri = (path / delivery.name).absolute().as_uri()
    return AssetMaterialization(
        asset_key=landing_asset,
        partition=delivery.partition,
        description="A complete delivery was found.",
        metadata={"dagster/uri": MetadataValue.text(uri)},
        tags={DATA_VERSION_TAG: _version_of_delivery(delivery)},
    )
