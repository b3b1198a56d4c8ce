"""The runs of an asset's partitions, as Dagster knows them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress

from dagster import (
    AssetKey,
    DagsterError,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    PartitionKeyRange,
    PartitionsDefinition,
    RunRecord,
    partition_loading_context,
)

from dagster_deltaweave.dagster_private import (
    BACKFILL_ID_TAG,
    BULK_ACTION_TERMINAL_STATUSES,
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    RANGE_TAGS,
    CheckError,
)
from dagster_deltaweave.partitions.run_partitions import PARTITIONS

# Dagster launches the retry of a failed run within seconds. If its daemon is off, or the job gone,
# the run keeps the tag that promises a retry.
_SECONDS_UNTIL_RETRY = 600


def is_under_way(record: RunRecord, instance: DagsterInstance) -> bool:
    """Return whether a run is queued or runs, or Dagster will try it again."""
    run = record.dagster_run
    if not run.is_complete_and_waiting_to_retry:
        return run.status in NOT_FINISHED_STATUSES
    if BACKFILL_ID_TAG in run.tags:
        backfill = instance.get_backfill(run.tags[BACKFILL_ID_TAG])
        if backfill is None or backfill.status in BULK_ACTION_TERMINAL_STATUSES:
            return False  # the daemon does not try it again either
    return time.time() - ended_at(record) < _SECONDS_UNTIL_RETRY


def ended_at(record: RunRecord) -> float:
    """Return when an ended run ended, in s since 1970; if unknown, when it last changed."""
    # Neither a run that ended without an event nor a storage of Dagster of 2021 has the first.
    return record.end_time or record.update_timestamp.timestamp()


def planned_assets(instance: DagsterInstance, run: DagsterRun) -> frozenset[AssetKey]:
    """Return the assets that a run is to materialize."""
    if run.asset_selection is not None:
        return frozenset(run.asset_selection)
    # A run of a whole job names no assets, but its planned materializations are recorded.
    planned = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    events = instance.get_records_for_run(run.run_id, of_type=planned).records
    return frozenset(each.asset_key for each in events if each.asset_key)


def partitions_of_run(
    run: DagsterRun, partitions_def: PartitionsDefinition[str], instance: DagsterInstance
) -> Sequence[str]:
    """Return the partitions that a run's tags name: one, a range, or a list; empty if none."""
    if PARTITION_NAME_TAG in run.tags:
        return [run.tags[PARTITION_NAME_TAG]]
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    if first is not None and last is not None:
        # Of several dimensions, it is a range of each of them.
        with (
            suppress(DagsterError, CheckError, ValueError),  # a key that is gone
            partition_loading_context(dynamic_partitions_store=instance),
        ):
            keys = partitions_def.get_partition_keys_in_range(PartitionKeyRange(first, last))
            return list(map(str, keys))
    text = run.tags.get(PARTITIONS, "")
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        return [str(each) for each in json.loads(text)]
    except ValueError:  # the run fails for this
        return []


def unmerged_attempts(instance: DagsterInstance, asset: AssetKey) -> list[tuple[str, str]]:
    """Return each partition not materialized since its last run was created, with that run."""
    storage = instance.event_log_storage
    found = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        asset
    )
    # The partition is None for a run without one, e.g. from before the asset had partitions.
    return [(partition, run_id) for partition, (run_id, _) in found.items() if partition]
