"""Insert only: no file of the target changes, and the source rows without a match are appended."""

from __future__ import annotations

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.engine.find import Candidates, TouchedFilesScan
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.rows import inserts_only, may_insert, rows_after_scan

_STATUS = "MERGE operation - writing new files for only inserts"


def insert_without_scan(
    transaction: Transaction, source: PreparedSource, phases: Phases
) -> tuple[WrittenFiles, Candidates]:
    """Insert by one anti join, for a statement that has only WHEN NOT MATCHED clauses.

    Returns:
        The new files, and the candidate files that the source was joined with.
    """
    with phases.running("writeInsertsOnlyWhenNoMatchedClauses", _STATUS, "rewriteTimeMs"):
        rows, candidates = inserts_only(transaction, source)
        return transaction.write(rows), candidates


def insert_unmatched(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, phases: Phases
) -> WrittenFiles | None:
    """Insert after a scan that touched no file; None if there is nothing to insert."""
    if not may_insert(transaction, source, scan) or source.num_rows == 0:
        return None
    with phases.running("writeInsertsOnlyWhenNoMatches", _STATUS, "rewriteTimeMs"):
        return transaction.write(rows_after_scan(transaction, source, scan))
