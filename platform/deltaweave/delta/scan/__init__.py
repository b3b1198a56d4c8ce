"""How the rows of source and target are read.

- `source_plan`: whether the source must be materialized.
- `dependence`: whether the rows of source and subqueries depend on the target.
- `known_nodes`: the operators and expressions that are known to read no table by themselves.
- `local_rdds`: whether an RDD holds rows that were made in Python.
- `source_files`: the files of a source that is a Delta table.
- `checkpoint`: rows that are computed once and kept on the executors.
- `cached_rows`: rows that Spark caches, by a plan that is the cache alone.
- `target_rows`: the target's rows in chosen files, under the names that the statement uses.
- `row_index`: a scan that also gives the position of each row in its file.
- `row_tracking`: the columns that keep row ids and row commit versions.
- `metadata_column`: Spark's `_metadata` column.
- `literals`: collected values as Spark literals.
"""

from __future__ import annotations

from deltaweave.delta.scan.cached_rows import cached, from_cache
from deltaweave.delta.scan.checkpoint import checkpointed, materialized
from deltaweave.delta.scan.dependence import (
    Dependence,
    clauses_dependence,
    source_dependence,
    unknown_in_clauses,
)
from deltaweave.delta.scan.literals import literal
from deltaweave.delta.scan.metadata_column import METADATA_COLUMN, file_metadata
from deltaweave.delta.scan.row_tracking import TrackedColumns, tracked_columns
from deltaweave.delta.scan.source_files import SourceFiles, with_files_chosen, with_listed_files
from deltaweave.delta.scan.source_plan import (
    OPERATORS,
    estimated_bytes,
    first_of_partitions,
    is_cached,
    reason_to_materialize,
)
from deltaweave.delta.scan.target_rows import target_plan, with_ids_of

__all__ = [
    "METADATA_COLUMN",
    "OPERATORS",
    "Dependence",
    "SourceFiles",
    "TrackedColumns",
    "cached",
    "checkpointed",
    "clauses_dependence",
    "estimated_bytes",
    "file_metadata",
    "first_of_partitions",
    "from_cache",
    "is_cached",
    "literal",
    "materialized",
    "reason_to_materialize",
    "source_dependence",
    "target_plan",
    "tracked_columns",
    "unknown_in_clauses",
    "with_files_chosen",
    "with_ids_of",
    "with_listed_files",
]
