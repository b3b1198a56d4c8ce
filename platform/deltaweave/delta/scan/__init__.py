"""How the rows of source and target are read.

- `source`: whether the source must be materialized, and rows that are computed once and kept; the
  files of a source that is a Delta table.
- `dependence`: whether the rows of source and subqueries depend on the target.
- `target_rows`: the target's rows in chosen files, with their positions and row ids.
"""

from __future__ import annotations

from deltaweave.delta.scan.dependence import (
    clauses_dependence,
    source_dependence,
    unknown_in_clauses,
)
from deltaweave.delta.scan.source import (
    UNSTABLE_OPERATORS,
    ListedRows,
    SourceFiles,
    cached,
    checkpointed,
    estimated_bytes,
    from_cache,
    is_cached,
    limit_of_partitions,
    materialized,
    reason_to_materialize,
    with_files_chosen,
    with_listed_files,
)
from deltaweave.delta.scan.target_rows import (
    METADATA_COLUMN,
    RowColumns,
    TrackedColumns,
    file_metadata,
    target_plan,
    tracked_columns,
    with_attribute_ids,
)

__all__ = [
    "METADATA_COLUMN",
    "UNSTABLE_OPERATORS",
    "ListedRows",
    "RowColumns",
    "SourceFiles",
    "TrackedColumns",
    "cached",
    "checkpointed",
    "clauses_dependence",
    "estimated_bytes",
    "file_metadata",
    "from_cache",
    "is_cached",
    "limit_of_partitions",
    "materialized",
    "reason_to_materialize",
    "source_dependence",
    "target_plan",
    "tracked_columns",
    "unknown_in_clauses",
    "with_attribute_ids",
    "with_files_chosen",
    "with_listed_files",
]
