"""Files that the engine writes itself instead of through Delta's writer.

- `constraints`: the conditions that new rows must satisfy.
- `data_files`: which tables' data files the engine can write, and the AddFile actions for them.
- `deletion_vectors`: writes deletion vectors, on the driver or in a Spark job.
- `united_vectors`: marks a merge's rows in files that others have marked since.
- `object_stores`: which stores Python opens as Spark does, and how.
- `missing_statistics`: computes statistics for files that were written without them.
"""

from __future__ import annotations

from deltaweave.delta.files.constraints import conditions_of_rows
from deltaweave.delta.files.data_files import (
    OF_LIMITED_LENGTH,
    FurtherFile,
    NewFile,
    additions,
    are_own,
    arrow_schema,
    assumes_new_calendar,
    codec,
    data_columns,
    file_mode,
    row_schema,
    survives,
    table_columns,
    times_read_differently,
    why_not_writable,
)
from deltaweave.delta.files.deletion_vectors import (
    MarkedRows,
    mark_here,
    mark_rows,
    may_mark_here,
    vectors_writable,
)
from deltaweave.delta.files.missing_statistics import compute_missing_statistics
from deltaweave.delta.files.object_stores import settings_for_arrow
from deltaweave.delta.files.united_vectors import MarkedSince, marked_rows, without_files

__all__ = [
    "OF_LIMITED_LENGTH",
    "FurtherFile",
    "MarkedRows",
    "MarkedSince",
    "NewFile",
    "additions",
    "are_own",
    "arrow_schema",
    "assumes_new_calendar",
    "codec",
    "compute_missing_statistics",
    "conditions_of_rows",
    "data_columns",
    "file_mode",
    "mark_here",
    "mark_rows",
    "marked_rows",
    "may_mark_here",
    "row_schema",
    "settings_for_arrow",
    "survives",
    "table_columns",
    "times_read_differently",
    "vectors_writable",
    "why_not_writable",
    "without_files",
]
