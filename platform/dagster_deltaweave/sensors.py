"""A sensor that finds newly landed source partitions and requests one run for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DefaultSensorStatus,
    DynamicPartitionsDefinition,
    JobDefinition,
    MetadataValue,
    PartitionsDefinition,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


@dataclass(frozen=True)
class Landed:
    """What one look at a landing directory found.

    Attributes:
        deliveries: Partition to the fingerprint of its delivery, in arrival order: by name.
        incomplete: Partitions without a marker file: their delivery goes on.
        unknown: Directories that a fixed partitions definition does not know.
    """

    deliveries: Mapping[str, str]
    incomplete: tuple[str, ...]
    unknown: tuple[str, ...]


def build_partition_sensor(
    *,
    name: str,
    target: JobDefinition | UnresolvedAssetJobDefinition | AssetSelection,
    directory: str | Path,
    partitions_def: PartitionsDefinition[str],
    landing_asset: AssetKey | None = None,
    marker: str = "_SUCCESS",
    max_requests_per_tick: int = 20,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor over a directory in which each source partition lands as a directory.

    A partition is new when its marker file is, so one that is delivered again is merged again.
    The run key holds the partition and the delivery: a lost cursor requests no run twice.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run for a partition.
        directory: The landing directory.
        partitions_def: The target's partitions; dynamic ones are added as they land.
        landing_asset: The external asset that the directory is; its arrivals are recorded there.
        marker: Name of the file that is written last and makes a partition complete.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: What the UI says of it.
    """
    root = Path(directory)

    @sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each partition landed in {root}.",
    )
    def partition_sensor(context: SensorEvaluationContext) -> SensorResult:
        if not root.is_dir():
            return SensorResult(
                skip_reason=f"The landing directory is missing: {root}", cursor=context.cursor
            )
        known = _known_partitions(partitions_def)
        landed = find_landed(root, marker, known)
        requested = _requested(context.cursor, landed)
        new = [
            partition
            for partition, delivery in landed.deliveries.items()
            if requested.get(partition) != delivery
        ]
        if not new:
            return SensorResult(
                skip_reason=_skip_reason(root, landed), cursor=json.dumps(requested)
            )
        now = new[:max_requests_per_tick]
        context.log.info(f"Requesting {len(now)} of {len(new)} new partitions in {root}.")
        return SensorResult(
            run_requests=[_run_request(each, landed.deliveries[each]) for each in now],
            dynamic_partitions_requests=_additions(partitions_def, now),
            asset_events=[_arrival(landing_asset, root, each) for each in now]
            if landing_asset
            else [],
            cursor=json.dumps({**requested, **{each: landed.deliveries[each] for each in now}}),
        )

    return partition_sensor


def find_landed(root: Path, marker: str, known: frozenset[str] | None) -> Landed:
    """The partitions in a landing directory; names that begin with `.` or `_` are none.

    Args:
        root: The landing directory.
        marker: Name of the file that makes a partition complete.
        known: The partitions there can be, or None when there can be any.
    """
    deliveries: dict[str, str] = {}
    incomplete, unknown = [], []
    directories = (each for each in root.iterdir() if each.is_dir())
    for directory in sorted(directories, key=lambda each: each.name):
        partition = directory.name
        if partition.startswith((".", "_")):
            continue
        if known is not None and partition not in known:
            unknown.append(partition)
            continue
        try:
            deliveries[partition] = str((directory / marker).stat().st_mtime_ns)
        except FileNotFoundError:
            incomplete.append(partition)
    return Landed(deliveries, tuple(incomplete), tuple(unknown))


def _known_partitions(partitions_def: PartitionsDefinition[str]) -> frozenset[str] | None:
    if isinstance(partitions_def, DynamicPartitionsDefinition):
        return None
    return frozenset(partitions_def.get_partition_keys())


def _requested(cursor: str | None, landed: Landed) -> dict[str, str]:
    """What the cursor says was requested, without partitions that are no longer there."""
    there = {*landed.deliveries, *landed.incomplete}
    requested: dict[str, str] = json.loads(cursor) if cursor else {}
    return {partition: delivery for partition, delivery in requested.items() if partition in there}


def _skip_reason(root: Path, landed: Landed) -> str:
    reason = f"No new partition in {root}: {len(landed.deliveries)} requested before"
    if landed.incomplete:
        reason += f", {len(landed.incomplete)} incomplete ({', '.join(landed.incomplete[:5])})"
    if landed.unknown:
        reason += f", {len(landed.unknown)} unknown ({', '.join(landed.unknown[:5])})"
    return reason + "."


def _run_request(partition: str, delivery: str) -> RunRequest:
    return RunRequest(
        run_key=f"{partition}@{delivery}",
        partition_key=partition,
        tags={"deltaweave/delivery": delivery},
    )


def _additions(
    partitions_def: PartitionsDefinition[str], partitions: list[str]
) -> list[AddDynamicPartitionsRequest]:
    if not isinstance(partitions_def, DynamicPartitionsDefinition):
        return []
    return [partitions_def.build_add_request(partitions)]


def _arrival(landing_asset: AssetKey, root: Path, partition: str) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key=landing_asset,
        partition=partition,
        description="A complete delivery was found.",
        metadata={"dagster/uri": MetadataValue.text((root / partition).absolute().as_uri())},
    )
