"""Write all changes: the one visible choice of path and strategy.

- Insert-only merges write the source rows that match nothing; no scan for matches comes before.
- A merge that touches no file inserts at most.
- Otherwise touched files are rewritten (copy on write), in place where that is proven, or, on a
  table that takes deletion vectors, their changed rows are marked as deleted and only changed rows
  are written; files of which little would be left are rewritten there, too (files_left).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import DataFrame

from deltaweave.delta.alongside import alongside
from deltaweave.delta.deletion_vectors import (
    MarkedRows,
    mark_here,
    mark_rows,
    may_mark_here,
    vectors_writable,
)
from deltaweave.delta.failures import letting_go
from deltaweave.delta.file_list import FileList
from deltaweave.delta.transaction import Transaction, WrittenFiles
from deltaweave.engine.candidates import find_candidates
from deltaweave.engine.change_feed import recorded_inserts
from deltaweave.engine.changed_rows import changed_rows, may_join_once, remaining_rows
from deltaweave.engine.files_left import mark_or_remove
from deltaweave.engine.in_place import (
    most_rows_change,
    rewrite_in_place,
    why_not_in_place,
    worth_rewriting_in_place,
)
from deltaweave.engine.pairs import FILE, TARGET_ROW_ID
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.source_rows import (
    inserts_only,
    may_insert,
    rows_after_scan,
    updates_from_source,
)
from deltaweave.engine.touched_files import TouchedFilesScan, find_touched_files
from deltaweave.engine.unaffected_rows import MatchedRows


@dataclass(frozen=True)
class Changes:
    """What the write phase did; nothing of it is in the table before the commit.

    Attributes:
        strategy: How the changes were written.
        candidates: The files that were read.
        touched: The files in which a row changed.
        removed: Those of them that leave the table.
        written: The new files, or None.
        marked: The deletion vectors of touched files that stay, or None.
        rows_by_clause: Rows taken by each clause that looks at target rows.
        num_copied: Unmodified rows of removed files that were written anew.
        matched_source: The source rows that match; None where that was not found out.
    """

    strategy: str
    candidates: FileList
    touched: FileList
    removed: FileList
    written: WrittenFiles | None = None
    marked: MarkedRows | None = None
    rows_by_clause: Mapping[int, int] = field(default_factory=dict)
    num_copied: int = 0
    matched_source: MatchedRows | None = None


def write_changes(transaction: Transaction, source: PreparedSource, phases: Phases) -> Changes:
    """Find what changes, and write it."""
    if transaction.merge.takes_insert_only_path:
        return _insert_only(transaction, source, phases)
    with_vectors = vectors_writable(transaction)
    # The changed rows are computed after the scan: they must be those that it saw.
    in_place = not with_vectors and source.gives_same_rows and why_not_in_place(transaction) is None
    with phases.running(
        "findTouchedFiles", "MERGE operation - scanning files for matches", "scanTimeMs"
    ):
        candidates = find_candidates(transaction, source)
        by_place = with_vectors or in_place
        scan = find_touched_files(transaction, source, candidates, with_row_index=by_place)
    try:
        if not len(scan.touched):
            changes = _insert_unmatched(transaction, source, scan, phases)
        elif with_vectors:
            changes = _mark_touched_rows(transaction, source, scan, phases)
        else:
            changes = _rewrite_touched_files(transaction, source, scan, phases, in_place=in_place)
        return replace(changes, matched_source=scan.matched_source)
    finally:
        with letting_go("the pairs"):
            scan.pairs.unpersist()


def _insert_only(transaction: Transaction, source: PreparedSource, phases: Phases) -> Changes:
    with phases.running(
        "writeInsertsOnlyWhenNoMatchedClauses",
        "MERGE operation - writing new files for only inserts",
        "rewriteTimeMs",
    ):
        rows, candidates = inserts_only(transaction, source)
        written = transaction.write(rows)
    none = candidates.none()
    matched = None if len(candidates) else MatchedRows()
    return Changes("insert-only", candidates, none, none, written, matched_source=matched)


def _insert_unmatched(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, phases: Phases
) -> Changes:
    """No file is touched: there is nothing to write but inserts, if the statement has any."""
    none = scan.touched
    if not may_insert(transaction, source, scan) or source.num_rows == 0:
        return Changes("none", scan.candidates, none, none)
    with phases.running(
        "writeInsertsOnlyWhenNoMatches",
        "MERGE operation - writing new files for only inserts",
        "rewriteTimeMs",
    ):
        written = transaction.write(rows_after_scan(transaction, source, scan))
    return Changes("insert-only", scan.candidates, none, none, written)


def _rewrite_touched_files(
    transaction: Transaction,
    source: PreparedSource,
    scan: TouchedFilesScan,
    phases: Phases,
    *,
    in_place: bool,
) -> Changes:
    matched_only = transaction.merge.is_matched_only
    with phases.running(
        "writeAllUpdatesAndDeletes" if matched_only else "writeAllChanges",
        f"MERGE operation - Rewriting {len(scan.touched)} files",
        "rewriteTimeMs",
    ):
        parts, files = None, scan.touched.none()
        if in_place and scan.may_broadcast_pairs and most_rows_change(transaction, scan):
            parts = _changed_and_remaining_rows(transaction, source, scan)
        if in_place and parts is None:
            files = worth_rewriting_in_place(transaction, scan)
        written: WrittenFiles | None
        if len(files):
            written, left = _rewrite_in_place(transaction, source, scan, files)
        else:
            left = scan.touched
            if parts is None:
                parts = _rows_by_join(transaction, source, scan)
            written = transaction.write(_together(parts)) if parts else None
    return Changes(
        "copy-on-write" if len(left) else "copy-in-place",
        scan.candidates,
        touched=scan.touched,
        removed=scan.touched,
        written=written,
        rows_by_clause=scan.rows_by_clause,
        num_copied=transaction.num_records(scan.touched) - sum(scan.changed_by_file),
    )


def _rewrite_in_place(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, files: FileList
) -> tuple[WrittenFiles, FileList]:
    """Rewrite these files and write the inserts meanwhile; then Spark rewrites the others.

    Returns:
        All new files, and the touched files that were left to Spark.
    """

    def insert() -> WrittenFiles | None:
        with transaction.active():
            inserts = _inserts(transaction, source, scan)
            return transaction.write(_together(inserts)) if inserts else None

    # A file is rewritten by one task: a few files leave cores without work.
    with alongside(transaction.merge.spark, insert) as inserting:
        written, left = rewrite_in_place(transaction, source, scan, files)
    inserted = inserting.result()
    if inserted is not None:
        written = inserted.and_also(written)
    if len(left):
        rows = changed_rows(transaction, source, scan, left, with_unmodified=True)
        written = transaction.write(rows).and_also(written)
    return written, left


def _rows_by_join(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """All rows of the touched files, joined with the source, and the inserts."""
    once = may_join_once(transaction, scan)
    rows = changed_rows(
        transaction, source, scan, scan.touched, with_unmodified=True, with_inserts=once
    )
    return [rows] if once else [rows, *_inserts(transaction, source, scan)]


def _changed_and_remaining_rows(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame] | None:
    """Changed rows of the source's values alone, and the rows that stay as they are.

    Neither is joined with all columns of the other side. None where a changed row needs more.
    """
    import numpy as np

    parts = _rows_from_source_alone(transaction, source, scan)
    if parts is None:
        return None
    changed = np.array(scan.changed_by_file)
    with_rows_left = scan.touched.where(changed != scan.touched.row_counts)
    if len(with_rows_left):
        parts.append(remaining_rows(transaction, scan, with_rows_left))
    return parts


def _mark_touched_rows(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan, phases: Phases
) -> Changes:
    files = mark_or_remove(transaction, scan)

    def mark() -> MarkedRows:
        status = f"MERGE operation - Rewriting Deletion Vectors to {len(files.stay)} files"
        with phases.described(status):
            here = scan.changed_on_driver(files.stay)
            if here is not None and may_mark_here(files.stay):
                return mark_here(transaction, here[FILE], here[TARGET_ROW_ID], files.stay)
            changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files.stay)
            return mark_rows(transaction, changed, FILE, TARGET_ROW_ID, files.stay)

    # Few rows are changed, as a rule, and each side waits for Spark to plan more than it computes.
    with (
        alongside(transaction.merge.spark, mark) as marking,
        phases.running(
            "writeModifiedRowsOnly",
            f"MERGE operation - Rewriting {len(scan.touched)} files",
            "rewriteTimeMs",
        ),
    ):
        parts = _changed_rows_alone(transaction, source, scan)
        if files.num_copied:
            parts.append(remaining_rows(transaction, scan, files.copied))
        written = transaction.write(_together(parts)) if parts else None
        marked = marking.result()
    return Changes(
        "deletion-vectors",
        scan.candidates,
        touched=scan.touched,
        removed=files.removed,
        written=written,
        marked=marked,
        rows_by_clause=scan.rows_by_clause,
        num_copied=files.num_copied,
    )


def _changed_rows_alone(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """Updated and inserted rows: from the source alone where it holds all that they need."""
    if not transaction.keeps_change_feed:
        rows = _rows_from_source_alone(transaction, source, scan)
        if rows is not None:
            return rows
    changed = changed_rows(transaction, source, scan, scan.touched, with_unmodified=False)
    return [changed, *_inserts(transaction, source, scan)]


def _rows_from_source_alone(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame] | None:
    """Updated and inserted rows, if there are any; None where an update needs the target's rows."""
    updates = updates_from_source(transaction, scan)
    if updates is None:
        return None
    if not updates and not may_insert(transaction, source, scan):
        return []
    return [rows_after_scan(transaction, source, scan, updates)]


def _inserts(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> list[DataFrame]:
    """The inserted rows, if there may be any; they share the write job of the others."""
    if not may_insert(transaction, source, scan):
        return []
    inserts = rows_after_scan(transaction, source, scan)
    return [recorded_inserts(inserts) if transaction.keeps_change_feed else inserts]


def _together(parts: list[DataFrame]) -> DataFrame:
    """Rows for one write job; inserted rows have no row id or commit version yet."""
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
