"""What differs between the tested releases of Spark and Delta: a module for each difference.

Each function calls what the session's release has. `deltaweave.tested_releases` lists the pairs.

- `arrow_types`: PySpark's types in Arrow.
- `update_clauses`: Spark's node of an UPDATE clause before analysis.
- `log_replays`: a replay of Delta's log in memory.
- `operations`: Delta's operations, which go into the history.
- `write_commands`: Delta's command that writes rows.
- `old_snapshots`: an old version of a table.
- `tracked_columns`: the metadata of the columns that keep row ids.
- `string_prefixes`: how much of a text the statistics keep.
- `vector_actions`: the actions that put deletion vectors in place.
- `cached_relations`: whether a query reads what Spark has cached.
- `partition_columns`: whether files hold partition columns.
- `partition_times`: whether times as partition values stay what they are.
- `changed_metadata`: the check of type widening, and the error for metadata that changed.
"""

from __future__ import annotations

from deltaweave.delta.releases.arrow_types import arrow_type
from deltaweave.delta.releases.cached_relations import reads_cached_rows
from deltaweave.delta.releases.changed_metadata import check_type_widening, metadata_changed
from deltaweave.delta.releases.log_replays import log_replay
from deltaweave.delta.releases.old_snapshots import snapshot_at
from deltaweave.delta.releases.operations import replace_operation, write_operation
from deltaweave.delta.releases.partition_columns import files_may_hold_partition_columns
from deltaweave.delta.releases.partition_times import partition_times_are_kept
from deltaweave.delta.releases.string_prefixes import string_prefix_length
from deltaweave.delta.releases.tracked_columns import tracked_metadata
from deltaweave.delta.releases.update_clauses import update_action
from deltaweave.delta.releases.vector_actions import actions_of_vectors
from deltaweave.delta.releases.write_commands import write_command

__all__ = [
    "actions_of_vectors",
    "arrow_type",
    "check_type_widening",
    "files_may_hold_partition_columns",
    "log_replay",
    "metadata_changed",
    "partition_times_are_kept",
    "reads_cached_rows",
    "replace_operation",
    "snapshot_at",
    "string_prefix_length",
    "tracked_metadata",
    "update_action",
    "write_command",
    "write_operation",
]
