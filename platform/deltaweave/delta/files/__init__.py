"""Files that the engine writes itself instead of through Delta's writer.

- `capabilities`: what Arrow may do with a column in place of Spark, by its type and metadata.
- `data_files`: which tables' data files the engine can write, and the AddFile actions for them.
- `deletion_vectors`: writes deletion vectors, on the driver or in a Spark job, and unites them.
- `object_stores`: which stores Python opens as Spark does, and how.
"""

from __future__ import annotations

from deltaweave.delta.files.capabilities import (
    Capable,
    ComparableColumn,
    PartitioningColumn,
    PassableColumn,
    ReadableColumn,
    Reading,
    Use,
    WritableColumn,
    capability,
    comparable,
    partitioning,
    passable,
    readable,
)
from deltaweave.delta.files.data_files import (
    ONLY_DELTA_CHECKS,
    FurtherFile,
    NewFile,
    additions,
    are_own,
    arrow_schema,
    assumes_new_calendar,
    codec,
    conditions_of_rows,
    data_columns,
    encryption_properties,
    file_mode,
    reading_of,
    row_schema,
    table_columns,
    written_columns,
)
from deltaweave.delta.files.deletion_vectors import (
    MarkedRows,
    RemarkedFiles,
    mark_on_driver,
    mark_rows,
    marked_rows,
    may_mark_on_driver,
    vectors_writable,
    without_files,
)
from deltaweave.delta.files.object_stores import settings_for_arrow

__all__ = [
    "ONLY_DELTA_CHECKS",
    "Capable",
    "ComparableColumn",
    "FurtherFile",
    "MarkedRows",
    "NewFile",
    "PartitioningColumn",
    "PassableColumn",
    "ReadableColumn",
    "Reading",
    "RemarkedFiles",
    "Use",
    "WritableColumn",
    "additions",
    "are_own",
    "arrow_schema",
    "assumes_new_calendar",
    "capability",
    "codec",
    "comparable",
    "conditions_of_rows",
    "data_columns",
    "encryption_properties",
    "file_mode",
    "mark_on_driver",
    "mark_rows",
    "marked_rows",
    "may_mark_on_driver",
    "partitioning",
    "passable",
    "readable",
    "reading_of",
    "row_schema",
    "settings_for_arrow",
    "table_columns",
    "vectors_writable",
    "without_files",
    "written_columns",
]
