"""What tasks on executors run: plain Python over Arrow and Parquet, pickled by value.

Executors need not have deltaweave installed. So this folder imports nothing else of deltaweave, and
is pickled as a whole with the functions that a task calls.
"""

from __future__ import annotations

import sys

from pyspark.cloudpickle import register_pickle_by_value

from deltaweave.engine.tasks.batches import all_rows, read_batches, rows_at
from deltaweave.engine.tasks.file_tasks import (
    BOUNDED_SCHEMA,
    FILTERS_SCHEMA,
    HOLDERS_SCHEMA,
    OWN_NAME,
    REWRITTEN_SCHEMA,
    bounded_files,
    filters_of,
    holders_of,
    in_batches,
    in_whole,
    is_bounded,
    rewriter,
)
from deltaweave.engine.tasks.parquet_rewrite import (
    ChangeFile,
    FeedRows,
    as_stored,
    change_file,
    images,
    rewrite_rows,
)
from deltaweave.engine.tasks.storage import Disk, ObjectStore, Storage, location_of
from deltaweave.engine.tasks.table_format import (
    NotRewritableError,
    TableFormat,
    TooBigError,
    check_copyable,
    check_zones,
    write_file,
)

__all__ = [
    "BOUNDED_SCHEMA",
    "FILTERS_SCHEMA",
    "HOLDERS_SCHEMA",
    "OWN_NAME",
    "REWRITTEN_SCHEMA",
    "ChangeFile",
    "Disk",
    "FeedRows",
    "NotRewritableError",
    "ObjectStore",
    "Storage",
    "TableFormat",
    "TooBigError",
    "all_rows",
    "as_stored",
    "bounded_files",
    "change_file",
    "check_copyable",
    "check_zones",
    "filters_of",
    "holders_of",
    "images",
    "in_batches",
    "in_whole",
    "is_bounded",
    "location_of",
    "read_batches",
    "rewrite_rows",
    "rewriter",
    "rows_at",
    "write_file",
]

register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
