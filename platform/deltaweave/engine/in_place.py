"""Copy on write, file by file: every row stays where it was, and only changed rows move.

Spark computes the changed rows and brings those of a file together; a task then copies the file
with pyarrow and puts them in their places (parquet_rewrite). One file in, one file out, in the same
order: unmodified rows are never shuffled, and a table that is sorted stays so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.conditions import keeps_columns
from deltaweave.delta.data_files import (
    additions,
    arrow_schema,
    codec,
    data_columns,
    why_not_writable,
)
from deltaweave.delta.failures import translated
from deltaweave.delta.file_list import FileList, decoded_location
from deltaweave.delta.row_tracking import tracked_columns
from deltaweave.delta.target_plan import target_plan
from deltaweave.delta.transaction import Transaction, WrittenFiles
from deltaweave.engine import file_statistics, parquet_rewrite
from deltaweave.engine.changed_rows import updated
from deltaweave.engine.evolution import columns_before
from deltaweave.engine.pairs import CLAUSE, FILE, NO_CLAUSE, SOURCE_ROW, TARGET_ROW_ID
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.source_rows import updates_from_source
from deltaweave.engine.touched_files import TouchedFilesScan, clause_taken
from deltaweave.errors import MergeFailedError

if TYPE_CHECKING:
    import numpy

logger = logging.getLogger(__name__)

# Executors need not have deltaweave: what a task runs travels with it.
for _module in (parquet_rewrite, file_statistics):
    register_pickle_by_value(_module)  # type: ignore[no-untyped-call]

SETTING = "spark.deltaweave.merge.rewriteInPlace"
"""Whether files are rewritten in place: `auto` where there is enough to copy, `true`, `false`."""

_LIBRARY_IS_MISSING = re.compile(r"No module named 'pyarrow|PACKAGE_NOT_INSTALLED")

# Below it, starting Python costs more than Spark needs for the rows.
MIN_BYTES = 16 * 1024 * 1024
# Above it, bringing the changed rows to Python costs more than Spark needs for all rows.
MAX_CHANGED_FRACTION = 0.25


def why_not_in_place(transaction: Transaction) -> str | None:
    """Why Spark is to rewrite the table's touched files; None where it need not."""
    setting = transaction.merge.spark.conf.get(SETTING, "auto") or "auto"
    if setting == "false":
        return f"{SETTING} is false"
    if setting == "auto" and transaction.size_in_bytes < MIN_BYTES:
        return "the table is small"
    if transaction.keeps_change_feed:
        return "the table keeps a change feed"
    if tracked_columns(transaction) is not None:
        return "the table tracks its rows"
    merge, partitioned_by = transaction.merge, transaction.partition_columns
    updates = [clause for clause in merge.clauses if clause.action == "update"]
    if partitioned_by and not all(keeps_columns(merge, each, partitioned_by) for each in updates):
        return "an update may move rows to another partition"
    return why_not_writable(transaction)


def rewrite_in_place(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, files: FileList
) -> tuple[WrittenFiles, FileList]:
    """Rewrite those of some touched files that can be.

    Args:
        transaction: The merge's transaction.
        source: The prepared source.
        scan: What the scan for matches found; it knows each row's place in its file.
        files: The files that are worth it.

    Returns:
        The new files, and the touched files that are left to Spark.
    """
    import numpy as np

    with_vectors = frozenset(
        row["location"].removeprefix("file:") for row in files.rows.to_pylist() if row["has_vector"]
    )
    transaction.own_files.may_exist = True
    changes = _changes(transaction, source, scan, files)
    task = parquet_rewrite.rewriter(_table_format(transaction), with_vectors)
    rewritten = (
        changes.repartition(max(1, min(len(files), 1000)), FILE)
        .groupBy(FILE)
        .applyInArrow(task, parquet_rewrite.REWRITTEN_SCHEMA)
    )
    try:
        with translated(transaction.merge.table, version=transaction.version):
            results = rewritten.toArrow().to_pylist()
    except MergeFailedError as error:
        if not _LIBRARY_IS_MISSING.search(error.problem):
            raise
        logger.warning(
            "%s: the executors' Python has no pyarrow, so Spark rewrites the files; install it "
            "there, or set %s=false",
            transaction.merge.table,
            SETTING,
        )
        return WrittenFiles.of(scan.touched.none()), scan.touched
    paths = dict(zip(files.rows["location"].to_pylist(), files.paths, strict=True))
    done = {paths[decoded_location(row["file"])]: row for row in results}
    for path, row in done.items():
        if row["refused"]:
            logger.info("%s: Spark rewrites %s: %s", transaction.merge.table, path, row["refused"])
    in_place = {path for path, row in done.items() if row["refused"] is None}
    left = np.array([path not in in_place for path in scan.touched.paths], dtype=bool)
    new = {
        path: (row["name"], row["size"], row["stats"])
        for path, row in done.items()
        if row["name"] is not None
    }
    return WrittenFiles.of(additions(files, new)), scan.touched.where(left)


def most_rows_change(transaction: Transaction, scan: TouchedFilesScan) -> bool:
    """Whether too many rows of every touched file change for any to be rewritten in place."""
    setting = transaction.merge.spark.conf.get(SETTING, "auto")
    is_big = scan.touched.size_in_bytes >= MIN_BYTES
    return setting != "true" and is_big and not _few_rows_change(scan).any()


def worth_rewriting_in_place(transaction: Transaction, scan: TouchedFilesScan) -> FileList:
    """Which touched files are to be rewritten in place: all where that is set."""
    if transaction.merge.spark.conf.get(SETTING, "auto") == "true":
        return scan.touched
    files = scan.touched.where(_few_rows_change(scan))
    return files if files.size_in_bytes >= MIN_BYTES else scan.touched.none()


def _few_rows_change(scan: TouchedFilesScan) -> numpy.ndarray:
    """In which touched files; not where their number of rows is not known."""
    import numpy as np

    limits = MAX_CHANGED_FRACTION * scan.touched.row_counts
    few: numpy.ndarray = np.array(scan.changed_by_file) <= limits
    return few


def _table_format(transaction: Transaction) -> parquet_rewrite.TableFormat:
    compression, extension = codec(transaction)
    return parquet_rewrite.TableFormat(
        arrow_schema(transaction),
        compression,
        extension,
        str(transaction.snapshot.statsSchema().json()),
        transaction.string_prefix_length,
        transaction.own_files.prefix,
    )


def _changes(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, files: FileList
) -> DataFrame:
    """A row per change: its file, its place there, whether it is deleted, its new row as struct."""
    import numpy as np

    merge = transaction.merge
    in_files = {column.name for column in data_columns(transaction)}
    stored = np.array([name in in_files for name in merge.evolved_schema.names])
    updates = updates_from_source(transaction, scan)
    if updates is not None:
        rows = scan.changed_pairs(FILE, TARGET_ROW_ID, SOURCE_ROW, CLAUSE, files=files)
        identity = scan.source_identity
        if updates and identity is not None:
            # The source to the left: Spark keeps the attribute ids of that side.
            rows = source.for_join().join(rows, identity == F.col(SOURCE_ROW), "right")
        after = _new_row(merge, scan, updates, stored)
    else:
        target = target_plan(transaction, files, file_column=FILE, row_index_column=TARGET_ROW_ID)
        outer = merge.of_kind("not_matched_by_source")
        rows = target.join(source.for_join(), merge.condition, "left" if outer else "inner")
        rows = rows.withColumn(CLAUSE, clause_taken(merge)).filter(F.col(CLAUSE) != NO_CLAUSE)
        after = _struct(updated(merge, columns_before(merge)), stored)
    deletes = [i for i, clause in enumerate(merge.clauses) if clause.action == "delete"]
    is_deleted = F.col(CLAUSE).isin(deletes).alias("is_deleted")
    return rows.select(FILE, TARGET_ROW_ID, is_deleted, after.alias("row"))


def _new_row(
    merge: ResolvedMerge, scan: TouchedFilesScan, updates: Sequence[int], stored: numpy.ndarray
) -> Column:
    """The new values of the rows that these update clauses took; null for deleted rows."""
    took_rows = [i for i, count in scan.rows_by_clause.items() if count]
    if len(took_rows) == len(updates) == 1:
        fields = compress(merge.evolved_schema.fields, stored)
        # Arrow takes no struct with two fields of one name.
        names = [StructField(f"v{i}", field.dataType) for i, field in enumerate(fields)]
        return merge.clauses[updates[0]].row(stored).cast(StructType(names))
    # The values of one clause must not be computed for the rows of another: they may fail there.
    values = [F.lit(None).cast(field.dataType) for field in merge.evolved_schema.fields]
    for i in updates:
        values = [
            F.when(F.col(CLAUSE) == i, value).otherwise(other)
            for value, other in zip(merge.clauses[i].values, values, strict=True)
        ]
    return _struct(values, stored)


def _struct(values: Sequence[Column], stored: numpy.ndarray) -> Column:
    return F.struct(*[value.alias(f"v{i}") for i, value in enumerate(values) if stored[i]])
