"""Deletion vectors: changed rows are marked in their files, and only changed rows are written.

A touched file that would keep few rows is rewritten instead (see mark_or_rewrite).
"""

from __future__ import annotations

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import MarkedRows, mark_here, mark_rows, may_mark_here
from deltaweave.delta.jvm import alongside
from deltaweave.delta.log import FileList
from deltaweave.engine.columns import FILE, TARGET_ROW_ID
from deltaweave.engine.find import TouchedFilesScan
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.mark_or_rewrite import MarkedFiles, mark_or_rewrite
from deltaweave.engine.write.rows import remaining_rows, together, updated_and_inserted


def mark_changed_rows(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, phases: Phases
) -> MarkedFiles:
    """Write deletion vectors and the changed rows, both at once in two threads.

    Usually few rows change, and each side plans queries for longer than it runs them.
    """
    fates = mark_or_rewrite(transaction, scan)

    def mark() -> MarkedRows:
        status = f"MERGE operation - Rewriting Deletion Vectors to {len(fates.stay)} files"
        with phases.described(status):
            return _mark(transaction, scan, fates.stay)

    with (
        alongside(transaction.merge.spark, mark) as marking,
        phases.running(
            "writeModifiedRowsOnly",
            f"MERGE operation - Rewriting {len(scan.touched)} files",
            "rewriteTimeMs",
        ),
    ):
        parts = updated_and_inserted(transaction, source, scan)
        if fates.num_copied:
            parts = [remaining_rows(transaction, scan, fates.copied), *parts]
        written = transaction.write(together(parts)) if parts else None
        marked = marking.result()
    return MarkedFiles(fates, written, marked)


def _mark(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> MarkedRows:
    """Mark the rows of these files that a clause takes; on the driver if the pairs are there."""
    here = scan.changed_on_driver(files)
    if here is not None and may_mark_here(files):
        return mark_here(transaction, here[FILE], here[TARGET_ROW_ID], files)
    changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
    return mark_rows(transaction, changed, FILE, TARGET_ROW_ID, files)
