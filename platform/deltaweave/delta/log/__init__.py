"""A table's transaction log: versions, their data files, and the files' statistics.

- `table_log`: finds a table's log by its path or name, its versions, and what each commit did.
- `snapshot`: a version of a table: its rows, files, schema, properties; on a disk without Spark.
- `features`: the table features that the engine knows, its answers, and the error for the others.
- `file_list`: a list of data files, as one Arrow table: their layout, and strict scans of them.
- `statistics`: the bounds of a column's values in each file; the only reader of statistics.
- `statistic_bounds`: what statistics in the log mean: row counts, and the bounds of each type.
- `followed_tables`: a version's checksum; its files, brought up to date by later commits.
- `actions`: log actions as JSON, read and made without a Spark query; where their files are; a
  table's columns, partition columns and properties.
"""

from __future__ import annotations

from deltaweave.delta.log.actions import (
    KEY_INDEX_PROPERTY,
    TableMetadata,
    absolute_location,
    collected_actions,
    commit_file,
    commit_name,
    decoded,
    decoded_location,
    encoder,
    has_plain_spelling,
    location_in,
    physical_name,
)
from deltaweave.delta.log.features import (
    may_copy_in_place,
    may_merge_locally,
    may_rebase,
    refuse_unsupported,
)
from deltaweave.delta.log.file_list import (
    FILE_RELATION,
    STRICTLY,
    FileLayout,
    FileList,
    FileVersion,
    always_strict,
    file_versions,
    filtering_exactly,
    in_partitions,
    layout_in_log,
    options_of_files,
    scan_of_known_files,
    scan_with_index,
    scans_of_widened_decimals,
    strict,
)
from deltaweave.delta.log.snapshot import (
    TableSnapshot,
    VersionOnDisk,
    data_path,
    newest_checkpoint,
    newest_on_disk,
)
from deltaweave.delta.log.statistic_bounds import (
    are_bounded,
    is_collated,
    num_physical_rows_column,
    parsed,
)
from deltaweave.delta.log.statistics import (
    KeyOverlap,
    are_without_nulls,
    bounded_columns,
    bounds,
    key_overlaps,
    key_overlaps_in_log,
    python_values,
    sorted_values,
)
from deltaweave.delta.log.table_log import (
    Commit,
    FileChanges,
    TableLog,
    absolute_path,
    commit_from,
    commit_of,
    file_changes_from,
    file_changes_of,
    location_of_new_table,
    version_at,
)

__all__ = [
    "FILE_RELATION",
    "KEY_INDEX_PROPERTY",
    "STRICTLY",
    "Commit",
    "FileChanges",
    "FileLayout",
    "FileList",
    "FileVersion",
    "KeyOverlap",
    "TableLog",
    "TableMetadata",
    "TableSnapshot",
    "VersionOnDisk",
    "absolute_location",
    "absolute_path",
    "always_strict",
    "are_bounded",
    "are_without_nulls",
    "bounded_columns",
    "bounds",
    "collected_actions",
    "commit_file",
    "commit_from",
    "commit_name",
    "commit_of",
    "data_path",
    "decoded",
    "decoded_location",
    "encoder",
    "file_changes_from",
    "file_changes_of",
    "file_versions",
    "filtering_exactly",
    "has_plain_spelling",
    "in_partitions",
    "is_collated",
    "key_overlaps",
    "key_overlaps_in_log",
    "layout_in_log",
    "location_in",
    "location_of_new_table",
    "may_copy_in_place",
    "may_merge_locally",
    "may_rebase",
    "newest_checkpoint",
    "newest_on_disk",
    "num_physical_rows_column",
    "options_of_files",
    "parsed",
    "physical_name",
    "python_values",
    "refuse_unsupported",
    "scan_of_known_files",
    "scan_with_index",
    "scans_of_widened_decimals",
    "sorted_values",
    "strict",
    "version_at",
]
