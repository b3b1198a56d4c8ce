"""Insert only: no file of the target changes, and the source rows without a match are appended."""

from __future__ import annotations

from contextlib import AbstractContextManager

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.engine.find import Candidates, TouchedFilesScan
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.rows import inserts_only, may_insert, rows_after_scan

_STATUS = "MERGE operation - writing new files for only inserts"


def insert_phase(phases: Phases) -> AbstractContextManager[None]:
    """Run the one phase of a merge that only inserts."""
    return phases.running("writeInsertsOnlyWhenNoMatchedClauses", _STATUS, "rewriteTimeMs")


def insert_without_scan(
    transaction: Transaction, source: PreparedSource, phases: Phases, known: Candidates | None
) -> tuple[WrittenFiles, Candidates]:
    """Insert by one anti join, for a statement that has only WHEN NOT MATCHED clauses.

    Args:
        transaction: The merge's transaction.
        source: The source.
        phases: The merge's phases.
        known: The candidate files, if they are known.

    Returns:
        The new files, and the candidate files that the source was joined with.
    """
    with insert_phase(phases):
        rows, candidates = inserts_only(transaction, source, known)
        return transaction.write(rows), candidates


def insert_unmatched(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, phases: Phases
) -> WrittenFiles | None:
    """Insert after a scan that touched no file; None if there is nothing to insert."""
    if not may_insert(transaction, source, scan) or source.num_rows == 0:
        return None
    with phases.running("writeInsertsOnlyWhenNoMatches", _STATUS, "rewriteTimeMs"):
        return transaction.write(rows_after_scan(transaction, source, scan))
