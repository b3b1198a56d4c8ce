"""What a table's transaction log says: versions, their data files, and the files' statistics.

- `snapshot`: a version of a table: its rows, files, schema and properties.
- `catalogs`: finds the log of a table by its name, in the catalog that the name means.
- `version_on_disk`: the newest version of a table on a disk, without Spark.
- `checkpoint_files`: which files in a log are a whole checkpoint.
- `versions`: finds a table's log, and a version in it.
- `commits`: what a commit did, its files, and the application ids that it holds.
- `file_list`: a list of data files, read as one Arrow table.
- `followed_tables`: the files of a version, brought up to date by later commits.
- `checksum`: what a version's checksum says of it.
- `file_paths`: where a file of the log is, so that paths can be compared.
- `file_layout`: how rows are spread over files.
- `key_overlap`: how the ranges of a column's values in files overlap.
- `partition_files`: which files' partitions can satisfy a predicate.
- `file_version`: what distinguishes a file in one version from the same file in another.
- `file_index`: a scan of listed files that does not ask Delta for the list again.
- `metadata`: columns, partition columns and properties.
- `actions`: log actions as JSON, read and made without a Spark query.
- `statistics`: the bounds of a column's values in each file; the only reader of statistics.
- `statistic_bounds`: what a bound in the log means for each type, and how inexact ones are widened.
- `num_records`: the number of rows in a file, by its statistics.
- `arrow_values`: values of Arrow columns in the form in which bounds are compared.
- `repeated_hours`: the hours that come twice a year in a zone, and partition values in them.
- `features`: the table features that the engine knows, its answers, and the error for the others.
"""

from __future__ import annotations

from deltaweave.delta.log.actions import encoder
from deltaweave.delta.log.arrow_values import python_values, sorted_values
from deltaweave.delta.log.catalogs import place_of_new_table
from deltaweave.delta.log.checkpoint_files import newest_checkpoint
from deltaweave.delta.log.commits import (
    Commit,
    FileChanges,
    commit_from,
    commit_of,
    file_changes_from,
    file_changes_of,
)
from deltaweave.delta.log.features import may_rebase, refuse_unsupported
from deltaweave.delta.log.file_index import scan_of_known_files, scan_with_index
from deltaweave.delta.log.file_layout import FileLayout, layout_in_log
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.log.file_paths import (
    absolute_location,
    commit_file,
    commit_name,
    decoded,
    decoded_location,
    is_spelled_as_it_is,
    location_in,
)
from deltaweave.delta.log.file_version import FileVersion, file_versions
from deltaweave.delta.log.key_overlap import (
    KeyOverlap,
    bounded_columns,
    key_overlaps,
    key_overlaps_in_log,
)
from deltaweave.delta.log.metadata import KEY_INDEX_PROPERTY, TableMetadata, physical_name
from deltaweave.delta.log.num_records import num_physical_rows_column, parsed
from deltaweave.delta.log.partition_files import in_partitions
from deltaweave.delta.log.repeated_hours import PartitionTime, RepeatedHours, hours_that_repeat
from deltaweave.delta.log.snapshot import TableSnapshot, data_path
from deltaweave.delta.log.statistic_bounds import are_bounded
from deltaweave.delta.log.statistics import are_without_nulls, bounds
from deltaweave.delta.log.strict_reads import (
    FILE_RELATION,
    STRICTLY,
    always_strict,
    options_of_files,
    strict,
)
from deltaweave.delta.log.table_log import TableLog
from deltaweave.delta.log.version_on_disk import VersionOnDisk, newest_on_disk
from deltaweave.delta.log.versions import at_version, latest, version_at

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
    "PartitionTime",
    "RepeatedHours",
    "TableLog",
    "TableMetadata",
    "TableSnapshot",
    "VersionOnDisk",
    "absolute_location",
    "always_strict",
    "are_bounded",
    "are_without_nulls",
    "at_version",
    "bounded_columns",
    "bounds",
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
    "hours_that_repeat",
    "in_partitions",
    "is_spelled_as_it_is",
    "key_overlaps",
    "key_overlaps_in_log",
    "latest",
    "layout_in_log",
    "location_in",
    "may_rebase",
    "newest_checkpoint",
    "newest_on_disk",
    "num_physical_rows_column",
    "options_of_files",
    "parsed",
    "physical_name",
    "place_of_new_table",
    "python_values",
    "refuse_unsupported",
    "scan_of_known_files",
    "scan_with_index",
    "sorted_values",
    "strict",
    "version_at",
]
