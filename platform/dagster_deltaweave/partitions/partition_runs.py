"""The runs of an asset's partitions, as Dagster knows them."""

from __future__ import annotations

from dagster import AssetKey, DagsterInstance, DagsterRun

from dagster_deltaweave.dagster_private import (
    AUTO_RETRY_RUN_ID_TAG,
    NOT_FINISHED_STATUSES,
    WILL_RETRY_TAG,
)


def is_under_way(run: DagsterRun) -> bool:
    """Whether a run is queued or runs, or Dagster will try it again."""
    will_retry = run.tags.get(WILL_RETRY_TAG) == "true" and AUTO_RETRY_RUN_ID_TAG not in run.tags
    return will_retry or run.status in NOT_FINISHED_STATUSES


def unmerged_attempts(instance: DagsterInstance, asset: AssetKey) -> list[tuple[str, str]]:
    """Each partition that was not materialized since its last run was created, with that run."""
    storage = instance.event_log_storage
    found = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        asset
    )
    # The partition is None for a run without one, e.g. from before the asset had partitions.
    return [(partition, run_id) for partition, (run_id, _) in found.items() if partition]
