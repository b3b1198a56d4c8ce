"""A sensor that finds newly landed source partitions and requests one run for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DefaultSensorStatus,
    JobDefinition,
    MetadataValue,
    PartitionsDefinition,
    RunRecord,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import RUN_KEY_TAG

from dagster_deltaweave.landing import Delivery, deliveries, hive_value
from dagster_deltaweave.landing_watermark import SECOND, Landed, Watermark, is_in_seconds, look
from dagster_deltaweave.read_delivery import landing_tag
from dagster_deltaweave.run_partitions import DELIVERY
from dagster_deltaweave.run_requests import (
    PastRuns,
    additions,
    first_to_request,
    known_partitions,
    was_launched,
)
from dagster_deltaweave.storage import local_path, same_place, without_query
from deltaweave.locations import refuse_credentials

IDENTITY = "deltaweave/fingerprint"
"""Run tag that tells the delivery from the partition's others."""

_CLOCKS_DIFFER = 60 * SECOND


def build_partition_sensor(
    *,
    name: str,
    target: JobDefinition | UnresolvedAssetJobDefinition | AssetSelection,
    directory: str | Path,
    partitions_def: PartitionsDefinition[str],
    landing_asset: AssetKey | None = None,
    marker: str | None = "_SUCCESS",
    max_requests_per_tick: int = 20,
    max_lateness_seconds: int = 600,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor over a directory in which each source partition lands as a directory.

    A partition is complete when its marker file is there or, without a marker, when names, sizes
    and times of its files are those of the tick before. The marker has to be written last: where a
    whole directory is copied, copy it under a name that begins with `.` or `_`, then rename it.

    One that is delivered again is merged again: the run key holds the partition and the delivery's
    fingerprint, which is the marker's time of modification or the digest of those names, sizes and
    times. A marker that keeps its time (`cp -a`) is told by the time at which the disk last saw it
    change; whatever else changes it, such as `chmod`, is a delivery too. Without a marker, files
    with the names, sizes and times that were requested last are the same delivery.

    A directory's name is its partition key. Where fixed partitions do not have it but have what
    follows `=` in it, as in Hive's `day=2024-01-01`, that is the key; `partition_path` finds the
    directory. What cannot be a key, or cannot be read, is skipped with a reason, and the others go
    on.

    The cursor is a watermark (`Watermark`), not a list of all that was ever requested. Where it is
    lost, the run keys of earlier runs say what was requested, and no run is doubled as long as
    Dagster's run storage still has them. To merge a delivery again, materialize its partition.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run for a partition.
        directory: The landing directory, a path or the URI of an object store (`s3://…`,
            `gs://…`, `abfss://…`); credentials come from the environment.
        partitions_def: The target's partitions; dynamic ones are added as they land.
        landing_asset: The external asset that the directory is; its arrivals are recorded there.
        marker: Name of the file that is written last and makes a partition complete; None where
            none is written and sizes have to settle.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        max_lateness_seconds: How much later than the storage's own time of a delivery it may come
            into view: clocks that differ, and stores that keep times when a directory is renamed.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: What the UI says of it.

    Raises:
        StatementError: The directory is a URI that holds credentials.
    """
    refuse_credentials(directory, operation="looking for new partitions")
    shown = without_query(directory)

    @sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each partition landed in {shown}.",
    )
    def partition_sensor(context: SensorEvaluationContext) -> SensorResult:
        found = deliveries(directory, marker)
        if found is None:
            return SensorResult(
                skip_reason=f"The landing directory is missing: {shown}", cursor=context.cursor
            )
        known = known_partitions(context, partitions_def)
        found = list(_with_keys(found, known))
        now = time.time_ns()
        horizon = _horizon(found, now - max_lateness_seconds * SECOND)
        watermark = _watermark(context, same_place(directory), horizon)
        landed = look(found, watermark, horizon, marker, known, now)
        runs = PastRuns(context, name)
        chosen, passed = first_to_request(
            landed.new,
            unused_key=lambda delivery: _unused_key(runs, delivery),
            limit=max_requests_per_tick,
        )
        dealt_with = landed.new[: len(chosen) + len(passed)]
        waiting = landed.new[len(dealt_with) :]
        later = {each.name for each in waiting}.intersection(watermark.unknown)
        cursor = (
            watermark.moved_by(dealt_with, waiting, horizon)
            .keeping(found, landed.unsettled, sorted({*landed.unknown, *landed.problems, *later}))
            .to_cursor()
        )
        if not chosen:
            reason = _skip_reason(shown, landed, len(passed), len(waiting))
            return SensorResult(skip_reason=reason, cursor=cursor)
        context.log.info(
            f"Requesting {len(chosen)} of {len(landed.new) - len(passed)} new partitions in "
            f"{shown}."
        )
        if landed.problems:
            context.log.warning(f"In {shown} are skipped {_listed_problems(landed.problems)}.")
        return SensorResult(
            run_requests=[
                _run_request(each, run_key, landing_tag(directory, marker, each))
                for each, run_key in chosen
            ],
            dynamic_partitions_requests=additions(
                context, partitions_def, [each.partition for each, _ in chosen]
            ),
            asset_events=[_arrival(landing_asset, directory, each) for each, _ in chosen]
            if landing_asset
            else [],
            cursor=cursor,
        )

    return partition_sensor


def _watermark(context: SensorEvaluationContext, place: str, horizon: int) -> Watermark:
    """Where the last tick left it; one that begins anew where that is not known."""
    watermark = Watermark.of(context.cursor)
    if context.cursor and watermark is None:
        context.log.warning("The cursor cannot be read: the runs say what was requested.")
    elif watermark is not None and watermark.place not in ("", place):
        context.log.info(f"{place} was not looked at before: the runs say what was requested.")
        watermark = None
    return replace(watermark or Watermark(until=horizon), place=place)


def _horizon(found: Iterable[Delivery], settled: int) -> int:
    """The time up to which nothing can come into view any more, in ns since 1970.

    Never later than the newest time that the storage has told: its clock may be behind.
    """
    newest = max((each.changed_at for each in found), default=settled)
    return min(settled, newest - SECOND if is_in_seconds(newest) else newest)


def _with_keys(found: Iterable[Delivery], known: frozenset[str] | None) -> Iterable[Delivery]:
    """The deliveries by their partition keys, which are not the names of Hive's directories."""
    if known is None:
        return found
    named = sorted(found, key=lambda each: (each.partition not in known, each.partition))
    taken: set[str] = set()
    return [_with_key(each, known, taken) for each in named]


def _with_key(delivery: Delivery, known: frozenset[str], taken: set[str]) -> Delivery:
    """The delivery by its partition key, which is taken then."""
    name = delivery.partition
    value = hive_value(name)
    if name not in known and value in known and value not in taken:
        delivery = replace(delivery, partition=value, directory=name)
    taken.add(delivery.partition)
    return delivery


def _skip_reason(directory: str, landed: Landed, passed: int, waiting: int) -> str:
    reason = f"No new partition in {directory}: {landed.covered + passed} requested before"
    if passed:
        reason += f" ({passed} by runs that the cursor did not know of)"
    if waiting:
        reason += f", {waiting} to be looked at by later ticks"
    if landed.incomplete:
        reason += f", {len(landed.incomplete)} incomplete ({', '.join(landed.incomplete[:5])})"
    if landed.unknown:
        reason += f", {len(landed.unknown)} unknown ({', '.join(landed.unknown[:5])})"
    if landed.problems:
        reason += f", skipped {_listed_problems(landed.problems)}"
    return reason + "."


def _listed_problems(problems: Mapping[str, str]) -> str:
    first = "; ".join(f"{name!a}: {problem}" for name, problem in list(problems.items())[:5])
    return f"{len(problems)} ({first})"


def _unused_key(runs: PastRuns, delivery: Delivery) -> str | None:
    """The run key for a delivery; None where the partition's newest run is for it."""
    run_key = f"{delivery.partition}@{delivery.fingerprint}"
    same = runs.with_key(run_key)
    if same is None:
        return run_key
    newest = runs.newest_of(delivery.partition) or same
    if _is_for(newest, delivery, run_key):
        return None if was_launched(newest) else newest.dagster_run.tags[RUN_KEY_TAG]
    return f"{run_key}@{delivery.changed_at}"


def _is_for(record: RunRecord, delivery: Delivery, run_key: str) -> bool:
    tags = record.dagster_run.tags
    if IDENTITY in tags:
        return tags[IDENTITY] == delivery.identity
    # A run of an older release, which told deliveries by their fingerprints alone.
    created_at = int(record.create_timestamp.timestamp() * SECOND)
    return tags.get(RUN_KEY_TAG) == run_key and created_at > delivery.marked_at - _CLOCKS_DIFFER


def _run_request(delivery: Delivery, run_key: str, landing: dict[str, str]) -> RunRequest:
    return RunRequest(
        run_key=run_key,
        partition_key=delivery.partition,
        tags={DELIVERY: _version(delivery), IDENTITY: str(delivery.identity), **landing},
    )


def _version(delivery: Delivery) -> str:
    """What no other delivery of the partition has; times count up from one to the next."""
    fingerprint, changed_at = delivery.fingerprint, str(delivery.changed_at)
    is_marked = delivery.marked_at or fingerprint == changed_at
    return changed_at if is_marked else f"{fingerprint}.{changed_at}"


def _arrival(
    landing_asset: AssetKey, directory: str | Path, delivery: Delivery
) -> AssetMaterialization:
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
        tags={DATA_VERSION_TAG: _version(delivery)},
    )
