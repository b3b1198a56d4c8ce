"""The runs of landed deliveries: which are under way, and when one is requested (again)."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetRecordsFilter,
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
    CheckError,
    PartitionBackfill,
)
from dagster_deltaweave.landing import SECOND_IN_NS, Delivery
from dagster_deltaweave.partitions import (
    ATTEMPT_TAG,
    DELIVERY_TAG,
    FIRST_ATTEMPT_TAG,
    HELD_TAG,
    IDENTITY_TAG,
    WAITED_TAG,
    backfills_in_progress,
    ended_at,
    is_under_way,
    left_of_assets,
    left_of_job,
    partitions_of_run,
    planned_assets,
    shown_name,
    tags_of_run,
    written_tag,
    wrote,
)
from dagster_deltaweave.sensors.run_requests import is_here
from dagster_deltaweave.sensors.target_tables import SensorTarget, TargetAsset
from dagster_deltaweave.storage import local_path, without_query

_LONGEST_DELIVERY_PAUSE_SECONDS = 3600.0
_CLOCKS_DIFFER_NS = 60 * SECOND_IN_NS


@dataclass(frozen=True)
class RetryPolicy:
    """How a sensor retries failed runs of a delivery.

    Attributes:
        attempts: The most runs that are requested for a delivery.
        retry_after_seconds: How long after the first one ended the second is requested, in s;
            twice as long each further time, up to an hour.
    """

    attempts: int
    retry_after_seconds: float


@dataclass(frozen=True)
class Standing:
    """The state of a delivery by Dagster's runs.

    Attributes:
        attempt: The number of the run to request now; None to request none.
        run_key: The run key of that run; empty if it is to get one that no run has.
        run: The run that is under way, merged the delivery, or failed, if any.
        problem: Why the delivery is not requested now, if its runs failed, in words.
        is_done: Whether runs merged the delivery.
        missing: The assets that lack the delivery.
        selected: The assets that the run materializes; None for all of the target.
        held: The assets that the run makes, because a step makes them, and that hold the delivery.
        first: The id of the first run for the delivery whose work the requested run repeats.
    """

    attempt: int | None = None
    run_key: str = ""
    run: DagsterRun | None = None
    problem: str = ""
    is_done: bool = False
    missing: frozenset[AssetKey] = frozenset()
    selected: Sequence[AssetKey] | None = None
    held: frozenset[AssetKey] = frozenset()
    first: str | None = None


def standing_of(
    delivery: Delivery,
    runs: Sequence[RunRecord],
    policy: RetryPolicy,
    missing: Iterable[TargetAsset],
    of_target: TargetRuns,
) -> Standing:
    """Return whether a delivery is to be requested, by the runs of its partition."""
    runs = _without_replaced(runs, delivery)
    for record in runs:
        run = record.dagster_run
        if run.status == DagsterRunStatus.NOT_STARTED and _is_requested(record, delivery):
            # The daemon died before it launched the run: it does so if it is requested again.
            attempt = int(written_tag(run.tags, ATTEMPT_TAG) or "1")
            return Standing(attempt, run.tags[RUN_KEY_TAG], missing=of_target.assets_of(run))
        if of_target.is_under_way(record):
            return Standing(run=run)
    left = {each.key: each for each in missing}
    ended: list[RunRecord] = []
    waited: list[RunRecord] = []
    for record in runs:
        run = record.dagster_run
        merges = left.keys() & of_target.assets_of(run)
        is_for_it = _is_for(record, delivery)
        is_by_hand = written_tag(run.tags, IDENTITY_TAG) is None
        if not is_for_it and not is_by_hand:
            break  # what was before another delivery does not count for this one
        # What a run merged counts even if it failed later: by a check, or by another asset.
        is_success = run.status == DagsterRunStatus.SUCCESS
        merged = merges if is_success else merges & of_target.made_by(run, delivery.partition)
        for key in merged:
            is_later = _created_at(record) > delivery.changed_at + left[key].margin
            if (is_for_it or is_later) and left[key].counts(run):
                del left[key]
        if merged and not left:
            return Standing(run=run, is_done=True)
        if is_for_it and left.keys() & merges:
            (waited if wrote(run, WAITED_TAG) else ended).append(record)
    return _standing_after(ended, waited, policy, frozenset(left))


def _standing_after(
    ended: Sequence[RunRecord],
    waited: Sequence[RunRecord],
    policy: RetryPolicy,
    missing: frozenset[AssetKey],
) -> Standing:
    """Return the standing of a delivery that none of the ended runs has merged for these assets.

    `waited` are those that failed because an older partition was not merged. They are no attempts,
    but only the first is followed at once.
    """
    left = _pause_left(waited, policy, followed_at_once=1)
    if left > 0:
        run = waited[0].dagster_run
        problem = f"run {run.run_id[:8]} waited for an older partition that was not merged"
        problem = f"{problem}; it is tried again in {left:.0f} s"
        return Standing(run=run, problem=problem, missing=missing)
    # A run that succeeded was undone by a RESTORE since, so failures before it do not count.
    counted = list(takewhile(lambda each: _succeeded(each) == _succeeded(ended[0]), ended))
    number = _requests(counted) + 1
    if not counted:
        return Standing(number, missing=missing)
    run, problem = counted[0].dagster_run, _failure(counted, policy)
    if problem:
        return Standing(run=run, problem=problem, missing=missing)
    # What an asset has appended whose table no log shows to the sensor stands.
    return Standing(number, run=run, missing=missing, first=_first_of(ended[-1].dagster_run))


def _first_of(run: DagsterRun) -> str:
    """Return the id of the run whose work a run repeats, by its tag; its own without one."""
    named = written_tag(run.tags, FIRST_ATTEMPT_TAG)
    is_given = shown_name(FIRST_ATTEMPT_TAG) in run.tags or wrote(run, FIRST_ATTEMPT_TAG)
    return named.split()[0] if named and is_given else run.run_id


def _requests(ended: Sequence[RunRecord]) -> int:
    """Return how often a sensor requested these runs: Dagster and people may retry each of them."""
    runs = [each.dagster_run for each in ended]
    return len({run.root_run_id or run.run_id for run in runs})


def _succeeded(record: RunRecord) -> bool:
    return record.dagster_run.status == DagsterRunStatus.SUCCESS


def _failure(ended: Sequence[RunRecord], policy: RetryPolicy) -> str:
    """Return why no run is requested now, after runs that ended without a merge, newest first."""
    newest = ended[0].dagster_run
    name = f"run {newest.run_id[:8]}"
    if newest.status == DagsterRunStatus.CANCELED:
        return f"{name} was cancelled: run it yourself, or deliver it again"
    how = "failed" if newest.status == DagsterRunStatus.FAILURE else "ended without a merge"
    number = _requests(ended)
    if number >= policy.attempts and how == "failed":
        return (
            f"{name} {how}, attempt {number} of {policy.attempts}: deliver it again, or run it "
            "yourself"
        )
    left = _pause_left(ended, policy, followed_at_once=0)
    if left <= 0:
        return ""
    tried = f", attempt {number} of {policy.attempts}" if how == "failed" else ""
    return f"{name} {how}{tried}; it is tried again in {left:.0f} s"


def _pause_left(ended: Sequence[RunRecord], policy: RetryPolicy, *, followed_at_once: int) -> float:
    """Return in how many s the next run after these is requested; not above 0 for now."""
    number = _requests(ended) - followed_at_once
    if number <= 0:
        return 0
    # Twice as long each time: after a dozen, the longest pause counts, whatever the first one is.
    pause = policy.retry_after_seconds * 2 ** min(number - 1, 30)
    pause = min(_LONGEST_DELIVERY_PAUSE_SECONDS, pause)
    left = max(map(ended_at, ended)) + pause - time.time()
    return float(left)


def _without_replaced(runs: Sequence[RunRecord], delivery: Delivery) -> Sequence[RunRecord]:
    """Leave out runs that were never launched, where the delivery has a newer one.

    Dagster launches such a run only for a sensor of the same name, and makes a new one for others.
    """
    kept: list[RunRecord] = []
    for record in runs:
        never_started = record.dagster_run.status == DagsterRunStatus.NOT_STARTED
        is_replaceable = never_started and _is_requested(record, delivery)
        if not (is_replaceable and any(_is_for(each, delivery) for each in kept)):
            kept.append(record)
    return kept


def _is_requested(record: RunRecord, delivery: Delivery) -> bool:
    return RUN_KEY_TAG in record.dagster_run.tags and _is_for(record, delivery)


def _is_for(record: RunRecord, delivery: Delivery) -> bool:
    tags = record.dagster_run.tags
    identity = written_tag(tags, IDENTITY_TAG)
    if identity is not None:
        return identity == delivery.identity
    # A run of an older release, which identified deliveries only by their fingerprints.
    is_later = _created_at(record) > delivery.marked_at - _CLOCKS_DIFFER_NS
    return tags.get(RUN_KEY_TAG) == f"{delivery.partition}@{delivery.fingerprint}" and is_later


def _created_at(record: RunRecord) -> int:
    return int(record.create_timestamp.timestamp() * SECOND_IN_NS)


def delivery_run_request(
    delivery: Delivery, standing: Standing, tags: Mapping[str, str]
) -> RunRequest:
    """Return the request of a run for a delivery, with these tags and those that name it."""
    own = {
        DELIVERY_TAG: _version_of_delivery(delivery),
        IDENTITY_TAG: str(delivery.identity),
        ATTEMPT_TAG: str(standing.attempt),
    }
    if standing.held:
        own[HELD_TAG] = json.dumps(sorted(each.to_user_string() for each in standing.held))
    if standing.first is not None:
        own[shown_name(FIRST_ATTEMPT_TAG)] = standing.first
    shown = {shown_name(name) for name in own}
    return RunRequest(
        run_key=standing.run_key,
        partition_key=delivery.partition,
        asset_selection=standing.selected,
        tags={name: value for name, value in tags.items() if name not in shown} | own,
    )


def _version_of_delivery(delivery: Delivery) -> str:
    """Return a version that no other delivery of the partition has; as a time, later is newer."""
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


_MATERIALIZATIONS_LOOKED_AT = 1_000


class TargetRuns:
    """The runs, whoever started them, that materialize what a sensor's target merges."""

    def __init__(self, target: SensorTarget) -> None:
        self._target = target
        self._instance: DagsterInstance = target.context.instance
        self._of_plans: dict[str, frozenset[AssetKey]] = {}
        self._made: dict[tuple[str, str], set[AssetKey]] = defaultdict(set)

    def of(
        self, partitions: Sequence[str], lacking: Collection[AssetKey] = ()
    ) -> Mapping[str, Sequence[RunRecord]]:
        """Return the runs of partitions, the newest first."""
        runs: dict[str, list[RunRecord]] = defaultdict(list)
        tags: dict[str, str | Sequence[str]] = {PARTITION_NAME_TAG: list(partitions)}
        for record in self._instance.get_run_records(RunsFilter(tags=tags)):
            if self.assets_of(record.dagster_run):
                runs[record.dagster_run.tags[PARTITION_NAME_TAG]].append(
                    self._with_delivery_tags(record)
                )
        for key in lacking:
            made = self._runs_that_made(key, partitions)
            for each in made:
                self._made[each].add(key)
            for partition, record in self._of_several_ended(made):
                runs[partition].append(record)
                runs[partition].sort(key=lambda each: each.create_timestamp, reverse=True)
        return runs

    def unused_key(self, delivery: Delivery, runs: Sequence[RunRecord]) -> str:
        """Return a run key of the delivery that no run has, whatever it makes, from anywhere.

        Dagster drops a request whose run key a run of the sensor has, also one for other assets or
        of another directory, and says so only in the daemon's log.

        `runs` are some runs of the partition; without them, numbers are tried one by one.
        """
        own = f"{delivery.partition}@{delivery.identity}"
        keys = [record.dagster_run.tags.get(RUN_KEY_TAG, "") for record in runs]
        numbers = [key.removeprefix(f"{own}#") for key in keys if key.startswith(f"{own}#")]
        used = [int(each) for each in numbers if each.isdigit()] + [1] * (own in keys)
        following = count(max(used, default=0) + 1)
        candidates = (own if number == 1 else f"{own}#{number}" for number in following)
        return next(key for key in candidates if not self._is_used(key))

    def _is_used(self, key: str) -> bool:
        return bool(self._instance.get_runs(RunsFilter(tags={RUN_KEY_TAG: key}), limit=1))

    def made_by(self, run: DagsterRun, partition: str) -> frozenset[AssetKey]:
        """Return the assets whose partition a run has materialized, of those looked up by `of`."""
        return frozenset(self._made.get((run.run_id, partition), ()))

    def _with_delivery_tags(self, record: RunRecord) -> RunRecord:
        """Return a run with the tags of its delivery, also if it re-executes steps of another."""
        run = record.dagster_run
        return record._replace(dagster_run=run.with_tags(tags_of_run(run, self._instance)))

    def _runs_that_made(self, key: AssetKey, partitions: Sequence[str]) -> set[tuple[str, str]]:
        """Return the runs that materialized some of these partitions, each with a partition."""
        wanted = AssetRecordsFilter(key, asset_partitions=list(partitions))
        found = self._instance.fetch_materializations(
            wanted, limit=_MATERIALIZATIONS_LOOKED_AT
        ).records
        named = ((each.run_id, each.partition_key) for each in found)
        # Sensors and people report materializations without a run.
        return {(run_id, partition) for run_id, partition in named if run_id and partition}

    def _of_several_ended(
        self, by_run: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, RunRecord]]:
        """Yield the runs of several partitions among these, each with a partition."""
        if not by_run:
            return
        of_runs = RunsFilter(run_ids=[run_id for run_id, _ in by_run])
        records = self._instance.get_run_records(of_runs)
        several = {
            each.dagster_run.run_id: each
            for each in records
            if PARTITION_NAME_TAG not in each.dagster_run.tags
        }
        for run_id, partition in by_run:
            if run_id in several:
                yield partition, several[run_id]

    def assets_of(self, run: DagsterRun) -> frozenset[AssetKey]:
        """Return those of the target's partitioned assets that a run materializes."""
        is_of_job = run.job_name == self._target.job_name and self._is_ours(run)
        if self._target.is_of_ops:
            return self._target.partitioned if is_of_job else frozenset()
        # Names of jobs, sensors and code locations change, and what a run was to do does not.
        plan = run.execution_plan_snapshot_id
        if run.asset_selection is not None or plan is None:
            planned = planned_assets(self._instance, run)
        else:
            planned = self._of_plans.get(plan) or planned_assets(self._instance, run)
            self._of_plans[plan] = planned
        is_whole = run.asset_selection is None and run.asset_check_selection is None
        if not planned and is_whole and is_of_job and run.status in NOT_FINISHED_STATUSES:
            return self._target.partitioned  # Dagster creates a run before it records its plan
        return self._target.partitioned & planned

    def _is_ours(self, run: DagsterRun) -> bool:
        """Return whether a run is of the code location, or was requested under its earlier name."""
        is_requested = written_tag(run.tags, IDENTITY_TAG) is not None
        return is_requested or is_here(self._target.context, run.remote_job_origin)

    def is_under_way(self, record: RunRecord) -> bool:
        """Return whether a run is queued, runs, or will be retried by Dagster."""
        return is_under_way(record, self._instance)

    def of_several(self) -> frozenset[str]:
        """Return the partitions that a run of several is to merge, or a backfill that goes on."""
        unfinished = self._instance.get_runs(RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
        of_runs = (
            partition
            for run in unfinished
            if PARTITION_NAME_TAG not in run.tags and self.assets_of(run)
            for partition in partitions_of_run(run, self._target.partitions_def, self._instance)
        )
        return frozenset(of_runs).union(self._left_to_backfills())

    def _left_to_backfills(self) -> Iterator[str]:
        """Yield the partitions for which backfills will make runs."""
        graph = self._target.repository.asset_graph
        for backfill in backfills_in_progress(self._instance):
            if not backfill.is_asset_backfill:
                if self._is_of_target(backfill):
                    yield from left_of_job(backfill)
                continue
            if self._target.partitioned.isdisjoint(backfill.asset_selection or ()):
                continue
            try:
                data = backfill.get_asset_backfill_data(graph)
            except (DagsterError, CheckError, KeyError):
                continue  # it was launched before the definitions changed
            for key in self._target.partitioned:
                yield from left_of_assets(data, key)

    def _is_of_target(self, backfill: PartitionBackfill) -> bool:
        """Return whether a job materializes assets of the target: all its own, or selected ones."""
        repository, job, selected = (
            self._target.repository,
            backfill.job_name,
            backfill.asset_selection,
        )
        if selected is None:
            if not is_here(self._target.context, backfill.partition_set_origin):
                return False
            if job == self._target.job_name:
                return True
            if job is None or not repository.has_job(job):
                return False
            selected = sorted(repository.get_job(job).asset_layer.executable_asset_keys)
        return not self._target.partitioned.isdisjoint(selected)
