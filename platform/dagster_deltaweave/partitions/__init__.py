"""The partitions of a run, and the rows of a table that belong to them.

- `run_partitions`: which partitions a run is for, whether it is a full refresh, and which runs of
  partitions are under way.
- `partition_order`: which of two partitions is the older one.
- `backfill_partitions`: for which partitions backfills have still to make runs.
- `predicate`: the SQL predicate of the rows that belong to partitions.
"""

from __future__ import annotations

from dagster_deltaweave.partitions.backfill_partitions import (
    backfills_in_progress,
    left_of_assets,
    left_of_job,
    left_to_backfill,
)
from dagster_deltaweave.partitions.partition_order import (
    Positions,
    newest_first,
    partition_positions,
)
from dagster_deltaweave.partitions.predicate import NO_ROW_PREDICATE, partition_predicate
from dagster_deltaweave.partitions.run_partitions import (
    ATTEMPT_TAG,
    DELIVERY_TAG,
    FULL_REFRESH_TAG,
    HIDDEN,
    IDENTITY_TAG,
    ORDER_TAG,
    RECORDED_TAG,
    WAITED_TAG,
    by_run,
    covers_all_partitions,
    ended_at,
    hidden_tag,
    is_full_refresh,
    is_refresh,
    is_under_way,
    lists_partitions,
    output_is_full_refresh,
    output_partition_keys,
    partition_keys,
    partition_tags,
    partitions_of_run,
    planned_assets,
    shown_name,
    tags_of_run,
    unmerged_attempts,
    written_tag,
    wrote,
)

__all__ = [
    "ATTEMPT_TAG",
    "DELIVERY_TAG",
    "FULL_REFRESH_TAG",
    "HIDDEN",
    "IDENTITY_TAG",
    "NO_ROW_PREDICATE",
    "ORDER_TAG",
    "RECORDED_TAG",
    "WAITED_TAG",
    "Positions",
    "backfills_in_progress",
    "by_run",
    "covers_all_partitions",
    "ended_at",
    "hidden_tag",
    "is_full_refresh",
    "is_refresh",
    "is_under_way",
    "left_of_assets",
    "left_of_job",
    "left_to_backfill",
    "lists_partitions",
    "newest_first",
    "output_is_full_refresh",
    "output_partition_keys",
    "partition_keys",
    "partition_positions",
    "partition_predicate",
    "partition_tags",
    "partitions_of_run",
    "planned_assets",
    "shown_name",
    "tags_of_run",
    "unmerged_attempts",
    "written_tag",
    "wrote",
]
