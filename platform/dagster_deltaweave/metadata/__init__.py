"""Records what Dagster shows about a run: metadata, observations, lineage and data versions.

- `materialization`: records what a run did in its materialization: data version, lineage, and the
  view that stays fresh.
- `metadata_entries`: the metadata of merges, writes and table versions, in numbers and sentences.
"""

from __future__ import annotations

from dagster_deltaweave.metadata.materialization import (
    data_version_of,
    keep_view_fresh,
    newest_materialization,
    record_data_version,
    record_merge,
    record_unchanged,
    record_write,
    recorded_batch,
)
from dagster_deltaweave.metadata.metadata_entries import (
    TABLE_ID,
    TABLE_VERSION,
    in_order,
    statement_metadata,
    table_metadata,
    warnings_metadata,
)

__all__ = [
    "TABLE_ID",
    "TABLE_VERSION",
    "data_version_of",
    "in_order",
    "keep_view_fresh",
    "newest_materialization",
    "record_data_version",
    "record_merge",
    "record_unchanged",
    "record_write",
    "recorded_batch",
    "statement_metadata",
    "table_metadata",
    "warnings_metadata",
]
