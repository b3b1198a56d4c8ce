"""The partitions for which a backfill has still to make runs, as Dagster's daemon notes them.

The daemon makes the runs of a backfill step by step, and writes after each step for which
partitions it has made some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dagster import AssetKey, DagsterInstance

from dagster_deltaweave.dagster_private import (
    AssetBackfillData,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)

Materializes = Callable[[PartitionBackfill], bool]
"""Tells whether the job of a backfill materializes the asset in question."""


def backfills_in_progress(instance: DagsterInstance) -> Sequence[PartitionBackfill]:
    """Return the backfills that go on: not those that are cancelled, have failed or have ended."""
    going_on = BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
    return instance.get_backfills(filters=going_on)


def left_of_assets(data: AssetBackfillData, asset: AssetKey) -> Iterator[str]:
    """Yield the partitions of an asset for which a backfill of assets has still to make runs."""
    targets = data.target_subset.partitions_subsets_by_asset_key
    if asset not in targets:
        return
    left = targets[asset]
    for done in (
        data.materialized_subset,
        data.failed_and_downstream_subset,
        data.requested_subset,
    ):
        if asset in done.partitions_subsets_by_asset_key:
            left -= done.get_partitions_subset(asset)  # whole windows, where partitions are times
    yield from left.get_partition_keys()


def left_of_job(backfill: PartitionBackfill) -> Sequence[str]:
    """Return the partitions for which a backfill of a job has still to make runs."""
    names = list(backfill.partition_names or ())
    last = backfill.last_submitted_partition_name
    return names[names.index(last) + 1 :] if last in names else names


def left_to_backfill(
    backfill: PartitionBackfill, asset: AssetKey, materializes: Materializes
) -> Iterator[str]:
    """Yield the partitions of an asset for which a backfill in progress has still to make runs.

    Args:
        backfill: The backfill.
        asset: The asset.
        materializes: Tells whether the backfill's job materializes the asset.
    """
    if backfill.asset_backfill_data is not None:
        yield from left_of_assets(backfill.asset_backfill_data, asset)
    elif not backfill.is_asset_backfill and materializes(backfill):
        yield from left_of_job(backfill)
