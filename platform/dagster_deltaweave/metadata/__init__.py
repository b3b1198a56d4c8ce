"""Records what Dagster shows about a run: metadata, observations, lineage and data versions.

- `materialization`: records what a run did in its materialization.
- `metadata_entries`: the metadata of merges, writes and table versions.
- `merge_summary`: what a merge did, in sentences.
- `statement_text`: the text of a MERGE.
- `phases`: the observation of a merge, with a table of its phases.
- `column_lineage`: from which upstream columns the columns of a table come.
- `view_staleness`: keeps the view of a merge-on-read table fresh when its base changes.
- `latency`: prints how long runs took from request to commit.
"""

from __future__ import annotations

from dagster_deltaweave.metadata.materialization import (
    record_data_version,
    record_merge,
    record_unchanged,
    record_write,
)
from dagster_deltaweave.metadata.metadata_entries import (
    TABLE_ID,
    TABLE_VERSION,
    in_order,
    table_metadata,
    warnings_metadata,
)
from dagster_deltaweave.metadata.statement_text import statement_metadata
from dagster_deltaweave.metadata.view_staleness import keep_view_fresh

__all__ = [
    "TABLE_ID",
    "TABLE_VERSION",
    "in_order",
    "keep_view_fresh",
    "record_data_version",
    "record_merge",
    "record_unchanged",
    "record_write",
    "statement_metadata",
    "table_metadata",
    "warnings_metadata",
]
