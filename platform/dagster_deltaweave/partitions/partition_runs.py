"""The runs of an asset's partitions, as Dagster knows them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    PartitionsDefinition,
)

from dagster_deltaweave.dagster_private import (
    AUTO_RETRY_RUN_ID_TAG,
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    RANGE_TAGS,
    WILL_RETRY_TAG,
)
from dagster_deltaweave.partitions.run_partitions import PARTITIONS


def is_under_way(run: DagsterRun) -> bool:
    """Whether a run is queued or runs, or Dagster will try it again."""
    will_retry = run.tags.get(WILL_RETRY_TAG) == "true" and AUTO_RETRY_RUN_ID_TAG not in run.tags
    return will_retry or run.status in NOT_FINISHED_STATUSES


def planned_assets(instance: DagsterInstance, run: DagsterRun) -> frozenset[AssetKey]:
    """The assets that a run is to materialize."""
    if run.asset_selection is not None:
        return frozenset(run.asset_selection)
    # A run of a whole job names no assets, but its planned materializations are recorded.
    planned = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    events = instance.get_records_for_run(run.run_id, of_type=planned).records
    return frozenset(each.asset_key for each in events if each.asset_key)


def partitions_of_run(
    run: DagsterRun, partitions_def: PartitionsDefinition[str], instance: DagsterInstance
) -> Sequence[str]:
    """The partitions that a run's tags name: one, a range, or a list; none if they name none."""
    if PARTITION_NAME_TAG in run.tags:
        return [run.tags[PARTITION_NAME_TAG]]
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    if first is not None and last is not None:
        keys = list(partitions_def.get_partition_keys(None, instance))
        if first in keys and last in keys:
            return keys[keys.index(first) : keys.index(last) + 1]
    text = run.tags.get(PARTITIONS, "")
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        return [str(each) for each in json.loads(text)]
    except ValueError:  # the run fails for this
        return []


def unmerged_attempts(instance: DagsterInstance, asset: AssetKey) -> list[tuple[str, str]]:
    """Each partition that was not materialized since its last run was created, with that run."""
    storage = instance.event_log_storage
    found = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        asset
    )
    # The partition is None for a run without one, e.g. from before the asset had partitions.
    return [(partition, run_id) for partition, (run_id, _) in found.items() if partition]
