"""Rows that several strategies write, and how such parts become one write job."""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import DataFrame

from deltaweave.delta.commit import Transaction
from deltaweave.engine.find import TouchedFilesScan
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.rows.change_feed import recorded_inserts
from deltaweave.engine.write.rows.changed import changed_rows
from deltaweave.engine.write.rows.from_source import (
    may_insert,
    rows_after_scan,
    updates_from_source,
)


def rows_from_source_alone(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame] | None:
    """Return updated and inserted rows, if any; None if an update needs the target's rows."""
    updates = updates_from_source(transaction, scan)
    if updates is None:
        return None
    if not updates and not may_insert(transaction, source, scan):
        return []
    return [rows_after_scan(transaction, source, scan, updates)]


def updated_and_inserted(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """Return updated and inserted rows: from the source alone if it has all that they need.

    If the table keeps a change data feed, its rows are among them.
    """
    if not transaction.metadata.keeps_change_feed:
        rows = rows_from_source_alone(transaction, source, scan)
        if rows is not None:
            return rows
    changed = changed_rows(transaction, source, scan, scan.touched, with_unmodified=False)
    return [changed, *inserted_rows(transaction, source, scan)]


def inserted_rows(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """Return the inserted rows, with those of the change data feed; nothing if none can be."""
    if not may_insert(transaction, source, scan):
        return []
    inserts = rows_after_scan(transaction, source, scan)
    return [recorded_inserts(inserts) if transaction.metadata.keeps_change_feed else inserts]


def together(parts: list[DataFrame]) -> DataFrame:
    """Union the parts to one write job.

    Inserted rows have no row id or commit version yet: parts that have them come first, since the
    columns are known by their metadata there.
    """
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
