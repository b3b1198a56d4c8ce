"""Reads the logs of Delta tables, mostly without Spark.

- `delta_log`: the commits of a table, which of them changed rows last, and the tables below a
  directory.
- `changeset_log`: which batches of a merge-on-read table are in its base, and which wait.
- `held_partitions`: which partitions a table holds, and the records that say so.
"""

from __future__ import annotations

from dagster_deltaweave.logs.changeset_log import (
    PendingChanges,
    batches_after,
    number_metadata,
    pending_changes,
)
from dagster_deltaweave.logs.delta_log import (
    FoundTable,
    LoggedCommit,
    LogReader,
    Position,
    find_tables,
    last_change,
    version_with_rows_of,
)
from dagster_deltaweave.logs.held_partitions import (
    NOTHING,
    HeldPartitions,
    merged_partitions,
    order_id,
    partition_id,
    record_of,
    recorded_name,
    recorded_names,
    records_id,
    records_of_merge,
    taken_back,
)

__all__ = [
    "NOTHING",
    "FoundTable",
    "HeldPartitions",
    "LogReader",
    "LoggedCommit",
    "PendingChanges",
    "Position",
    "batches_after",
    "find_tables",
    "last_change",
    "merged_partitions",
    "number_metadata",
    "order_id",
    "partition_id",
    "pending_changes",
    "record_of",
    "recorded_name",
    "recorded_names",
    "records_id",
    "records_of_merge",
    "taken_back",
    "version_with_rows_of",
]
