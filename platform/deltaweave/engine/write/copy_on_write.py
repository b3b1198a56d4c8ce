"""Copy on write: Spark rewrites touched files, with changed, unmodified and inserted rows."""

from __future__ import annotations

from pyspark.sql import DataFrame

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.delta.log import FileList
from deltaweave.engine.find import TouchedFilesScan
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.rows import (
    changed_rows,
    inserted_rows,
    may_join_once,
    remaining_rows,
    rows_from_source_alone,
    together,
)


def copy_touched_files(
    transaction: Transaction,
    source: PreparedSource,
    scan: TouchedFilesScan,
    *,
    without_join: bool,
) -> WrittenFiles | None:
    """Rewrite all touched files, and the inserts with them; None if no row is left.

    Args:
        transaction: The merge's transaction.
        source: The prepared source.
        scan: What the scan for matches found.
        without_join: Whether to write changed rows from the source alone, if that is possible, and
            unmodified rows from the target alone. The scan must know the rows' indexes then.
    """
    parts = _changed_and_remaining(transaction, source, scan) if without_join else None
    if parts is None:
        parts = _joined(transaction, source, scan)
    return transaction.write(together(parts)) if parts else None


def copy_files(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, files: FileList
) -> WrittenFiles:
    """Rewrite some touched files, without the inserts."""
    return transaction.write(changed_rows(transaction, source, scan, files, with_unmodified=True))


def _joined(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """Return all rows of the touched files, joined with the source, and the inserts."""
    once = may_join_once(transaction, scan)
    rows = changed_rows(
        transaction, source, scan, scan.touched, with_unmodified=True, with_inserts=once
    )
    return [rows] if once else [rows, *inserted_rows(transaction, source, scan)]


def _changed_and_remaining(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame] | None:
    """Return changed rows from the source alone, and unmodified rows from the target alone.

    None if a changed row, or its entry in the change feed, needs values of both.
    """
    import numpy as np

    if transaction.metadata.keeps_change_feed:
        return None
    parts = rows_from_source_alone(transaction, source, scan)
    if parts is None:
        return None
    changed = np.array(scan.changed_by_file)
    with_rows_left = scan.touched.where(changed != scan.touched.row_counts)
    if len(with_rows_left):
        parts = [remaining_rows(transaction, scan, with_rows_left), *parts]
    return parts
