"""Files that an earlier release wrote with bounds of floating values, by which rows may be missed.

`tasks/reader_contract` says why. Upkeep has Delta's writer rewrite them.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import rewrite_files
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import (
    TableMetadata,
    TableSnapshot,
    VersionOnDisk,
    absolute_location,
    location_in,
)
from deltaweave.engine.executor_python import lacks_pyarrow
from deltaweave.engine.file_format import storage_of
from deltaweave.engine.tasks import BOUNDED_SCHEMA, OWN_NAME, Disk, bounded_files, is_bounded

# The log's entries of files that are rewritten come to the driver.
_FILES_OF_A_COMMIT = 10_000


def count_floating_bounds(table: TableSnapshot) -> int | None:
    """Count the files with bounds of floating values; tasks read the footers of the engine's.

    Return None if tasks cannot read them.
    """
    if not _has_floating_columns(table.metadata):
        return 0
    paths = _with_floating_bounds(table)
    return None if paths is None else paths.count()


def count_floating_bounds_on_disk(table: VersionOnDisk) -> int:
    """Return the same for a table on a disk, whose footers are read here, without Spark.

    Raises:
        OSError: A file cannot be read.
    """
    if not _has_floating_columns(table.metadata):
        return 0
    own = [add["path"] for add in table.adds if re.search(OWN_NAME, add["path"])]
    return sum(is_bounded(Disk(), absolute_location(path, table.data_path)) for path in own)


def rewrite_floating_bounds(table: TableSnapshot, log: JavaObject) -> int | None:
    """Rewrite the files with bounds of floating values, and return how many there were.

    Return None if tasks cannot read the footers; nothing is rewritten then. Each commit rewrites up
    to 10,000 files and changes no row; rows keep their ids.

    Raises:
        CommitConflictError: Another writer removed one of the files (by `translated`).
    """
    if not _has_floating_columns(table.metadata):
        return 0
    rewritten = None
    while (paths := _with_floating_bounds(table)) is not None:
        first = paths.limit(_FILES_OF_A_COMMIT).localCheckpoint()
        number = rewrite_files(table.spark, log, first)
        rewritten = (rewritten or 0) + number
        if number < _FILES_OF_A_COMMIT:
            break
        table = TableSnapshot(table.spark, log, log.update())
    return rewritten


def _has_floating_columns(metadata: TableMetadata) -> bool:
    types = str(metadata.schema.json())
    return '"double"' in types or '"float"' in types


def _with_floating_bounds(table: TableSnapshot) -> DataFrame | None:
    """Return the paths of these files in the log; None if tasks cannot read footers."""
    storage = storage_of(table)
    if storage is None or lacks_pyarrow(table.spark):
        return None
    named = table.files.where(F.col("path").rlike(OWN_NAME))
    located = named.select("path", location_in(table.data_path).alias("location"))
    return located.mapInArrow(bounded_files(storage), BOUNDED_SCHEMA)
