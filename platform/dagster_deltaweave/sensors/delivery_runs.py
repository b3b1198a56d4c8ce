"""The run for a landed delivery: its run key, its tags and the event of its arrival."""

from __future__ import annotations

from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    MetadataValue,
    RunRecord,
    RunRequest,
)

from dagster_deltaweave.dagster_private import (
    DATA_VERSION_TAG,
    RUN_KEY_TAG,
)
from dagster_deltaweave.landing import (
    SECOND_IN_NS,
    Delivery,
)
from dagster_deltaweave.partitions import DELIVERY_TAG
from dagster_deltaweave.sensors.run_requests import (
    PastRuns,
    was_launched,
)
from dagster_deltaweave.storage import local_path, without_query

IDENTITY = "deltaweave/fingerprint"
"""Run tag that identifies the delivery among those of its partition."""

_CLOCKS_DIFFER = 60 * SECOND_IN_NS


def unused_run_key(runs: PastRuns, delivery: Delivery) -> str | None:
    """The run key for a delivery; None if the partition's newest run is for it."""
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
    # A run of an older release, which identified deliveries only by their fingerprints.
    created_at = int(record.create_timestamp.timestamp() * SECOND_IN_NS)
    return tags.get(RUN_KEY_TAG) == run_key and created_at > delivery.marked_at - _CLOCKS_DIFFER


def delivery_run_request(delivery: Delivery, run_key: str, landing: dict[str, str]) -> RunRequest:
    """The request of a run for a delivery, with the tags that name it."""
    return RunRequest(
        run_key=run_key,
        partition_key=delivery.partition,
        tags={
            DELIVERY_TAG: _version_of_delivery(delivery),
            IDENTITY: str(delivery.identity),
            **landing,
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
    """The materialization of the landing asset that records a delivery."""
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
