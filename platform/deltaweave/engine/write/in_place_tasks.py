"""The tasks that copy files in place: how many there are, and what each of them gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import collected, translated
from deltaweave.delta.log import FileList, file_versions
from deltaweave.engine import limits
from deltaweave.engine.columns import NUMBER
from deltaweave.engine.executor_python import found_without_pyarrow
from deltaweave.engine.tasks import REWRITTEN_SCHEMA, TableFormat, in_batches, in_whole, rewriter
from deltaweave.errors import MergeFailedError

_GROUPS_COME_IN_BATCHES = hasattr(PythonEvalType, "SQL_GROUPED_MAP_ARROW_ITER_UDF")  # Spark 4.1


def results_of_tasks(
    transaction: Transaction,
    changes: DataFrame,
    files: FileList,
    names: Sequence[str],
    table: TableFormat,
) -> list[dict[str, Any]] | None:
    """Rewrite files in tasks; return a row of `REWRITTEN_SCHEMA` for each, None without pyarrow.

    Args:
        transaction: The merge's transaction.
        changes: The changes of the files.
        files: The files.
        names: The files as `FILE` names them; `NUMBER` is an index among these.
        table: The format of the table's files.
    """
    with_vectors = frozenset(row["location"] for row in files.rows.to_pylist() if row["has_vector"])
    first_rows = {} if table.tracking is None else _first_rows(files)
    rewrite = rewriter(table, names, with_vectors, first_rows)
    task = in_batches(rewrite) if _GROUPS_COME_IN_BATCHES else in_whole(rewrite)
    rewritten = (
        _in_tasks(changes, _num_tasks(transaction, files))
        .groupBy(NUMBER)
        .applyInArrow(task, REWRITTEN_SCHEMA)
    )
    try:
        with translated(transaction.merge.table, version=transaction.version):
            rows: list[dict[str, Any]] = collected(rewritten).to_pylist()
    except MergeFailedError as error:
        if not found_without_pyarrow(transaction.merge.spark, error):
            raise
        return None
    return rows


def _in_tasks(changes: DataFrame, number: int) -> DataFrame:
    """Split the changes into this many tasks, which share the files evenly."""
    if hasattr(changes, "repartitionById"):
        return changes.repartitionById(number, NUMBER)
    # Before Spark 4.1, by a hash, which leaves tasks without a file.
    return changes.repartition(number, NUMBER)


def _num_tasks(transaction: Transaction, files: FileList) -> int:
    """Return how many tasks share the files: as many, unless a task would have little to do."""
    busy = 2 * transaction.merge.spark.sparkContext.defaultParallelism
    by_size = math.ceil(files.size_in_bytes / limits.MIN_BYTES_OF_TASK_IN_PLACE)
    return max(1, min(len(files), limits.MAX_TASKS_IN_PLACE, max(busy, by_size)))


def _first_rows(files: FileList) -> dict[str, tuple[int, int]]:
    """Return the first row's id and commit version, by location, of files with tracked rows."""
    versions = zip(files.rows["location"].to_pylist(), file_versions(files), strict=True)
    row_ids = {location: each.row_ids.split("|") for location, each in versions}
    return {
        location: (int(texts[0]), int(texts[1]))
        for location, texts in row_ids.items()
        if all(texts)
    }
