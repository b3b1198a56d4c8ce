"""The runs of landed deliveries: which are under way, and when one is requested (again)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterRun,
    DagsterRunStatus,
    MetadataValue,
    RunRecord,
    RunRequest,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, RUN_KEY_TAG
from dagster_deltaweave.landing import SECOND_IN_NS, Delivery
from dagster_deltaweave.partitions import (
    ATTEMPT_TAG,
    DELIVERY_TAG,
    IDENTITY_TAG,
    WAITED_TAG,
    ended_at,
    shown_name,
    written_tag,
    wrote,
)
from dagster_deltaweave.sensors.target_runs import TargetRuns
from dagster_deltaweave.sensors.target_tables import TargetAsset
from dagster_deltaweave.storage import local_path, without_query

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
        is_done: Whether runs merged it.
        missing: The assets that lack it.
        selected: The assets that the run materializes; None for all of the target.
    """

    attempt: int | None = None
    run_key: str = ""
    run: DagsterRun | None = None
    problem: str = ""
    is_done: bool = False
    missing: frozenset[AssetKey] = frozenset()
    selected: Sequence[AssetKey] | None = None


def standing_of(
    delivery: Delivery,
    runs: Sequence[RunRecord],
    policy: RetryPolicy,
    missing: Iterable[TargetAsset],
    of_target: TargetRuns,
) -> Standing:
    """Return whether a delivery is to be requested, by the runs of its partition.

    Args:
        delivery: A delivery that not all tables hold.
        runs: The runs of its partition, the newest first, less those of other landing directories.
        policy: When it is requested again.
        missing: The assets that lack it, by their tables.
        of_target: Knows what a run materializes, and whether it is under way.
    """
    for record in runs:
        run = record.dagster_run
        is_requested = RUN_KEY_TAG in run.tags and _is_for(record, delivery)
        if run.status == DagsterRunStatus.NOT_STARTED and is_requested:
            # The daemon died before it launched the run: it does so if it is requested again.
            attempt = int(written_tag(run.tags, ATTEMPT_TAG) or "1")
            return Standing(attempt, run.tags[RUN_KEY_TAG], missing=of_target.assets_of(run))
        if of_target.is_under_way(record):
            return Standing(run=run)
    left = {each.key: each for each in missing}
    ended: list[RunRecord] = []
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
        if is_for_it and left.keys() & merges and not wrote(run, WAITED_TAG):
            ended.append(record)
    return _after(delivery, runs, ended, policy, frozenset(left))


def _after(
    delivery: Delivery,
    runs: Sequence[RunRecord],
    ended: Sequence[RunRecord],
    policy: RetryPolicy,
    missing: frozenset[AssetKey],
) -> Standing:
    """Return the standing of a delivery that none of the ended runs has merged for these assets."""
    # What succeeded was taken back since: failures before that are no reason not to merge it.
    counted = list(takewhile(lambda each: _succeeded(each) == _succeeded(ended[0]), ended))
    number, key = len(counted) + 1, _run_key(delivery, runs)
    if not counted:
        return Standing(number, key, missing=missing)
    run, problem = counted[0].dagster_run, _problem(counted, policy)
    if problem:
        return Standing(run=run, problem=problem, missing=missing)
    return Standing(number, key, run, missing=missing)


def _run_key(delivery: Delivery, runs: Sequence[RunRecord]) -> str:
    """Return a run key of the delivery that none of the runs has."""
    own = f"{delivery.partition}@{delivery.identity}"
    keys = [record.dagster_run.tags.get(RUN_KEY_TAG, "") for record in runs]
    numbers = [key.removeprefix(f"{own}#") for key in keys if key.startswith(f"{own}#")]
    used = [int(each) for each in numbers if each.isdigit()] + [1] * (own in keys)
    return f"{own}#{max(used) + 1}" if used else own


def _succeeded(record: RunRecord) -> bool:
    return record.dagster_run.status == DagsterRunStatus.SUCCESS


def _problem(ended: Sequence[RunRecord], policy: RetryPolicy) -> str:
    """Return why no run is requested now, after these ended without a merge, the newest first."""
    newest = ended[0].dagster_run
    name = f"run {newest.run_id[:8]}"
    if newest.status == DagsterRunStatus.CANCELED:
        return f"{name} was cancelled: run it yourself, or deliver it again"
    how = "failed" if newest.status == DagsterRunStatus.FAILURE else "ended without a merge"
    if len(ended) >= policy.attempts and how == "failed":
        return (
            f"{name} {how}, attempt {len(ended)} of {policy.attempts}: deliver it again, or run it "
            "yourself"
        )
    at = max(map(ended_at, ended))
    pause = min(_LONGEST_PAUSE_SECONDS, policy.retry_after_seconds * 2 ** (len(ended) - 1))
    left = at + pause - time.time()
    if left <= 0:
        return ""
    tried = f", attempt {len(ended)} of {policy.attempts}" if how == "failed" else ""
    return f"{name} {how}{tried}; it is tried again in {left:.0f} s"


def _is_for(record: RunRecord, delivery: Delivery) -> bool:
    tags = record.dagster_run.tags
    identity = written_tag(tags, IDENTITY_TAG)
    if identity is not None:
        return identity == delivery.identity
    # A run of an older release, which identified deliveries only by their fingerprints.
    is_later = _created_at(record) > delivery.marked_at - _CLOCKS_DIFFER
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
