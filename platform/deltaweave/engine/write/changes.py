"""Write all changes: the strategies, and what each leaves for the commit.

- Insert-only merges append the source rows without a match, and need no scan for matches.
- A merge that touches no file inserts at most.
- On a table that takes deletion vectors, changed rows are marked and only changed rows are written.
- Otherwise touched files are rewritten: in place if that is cheaper, else by Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.delta.files import MarkedRows
from deltaweave.delta.jvm import letting_go
from deltaweave.delta.log import FileList
from deltaweave.engine.find import (
    Candidates,
    MatchedRows,
    TouchedFilesScan,
    find_candidates,
    find_touched_files,
)
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.copy_on_write import copy_files, copy_touched_files
from deltaweave.engine.write.deletion_vectors import mark_changed_rows
from deltaweave.engine.write.in_place import (
    most_rows_change,
    rewrite_in_place,
    worth_rewriting_in_place,
)
from deltaweave.engine.write.insert_only import insert_unmatched, insert_without_scan
from deltaweave.engine.write.strategy import Strategy, choose_strategy


@dataclass(frozen=True)
class Changes:
    """What the write phase did. The table shows none of it before the commit.

    Attributes:
        strategy: How the changes were written.
        found: The candidate files, which were scanned, and the source's keys.
        matched: Those of them in which a source row may match.
        touched: The files in which a row changes.
        removed: The touched files that leave the table.
        written: The new files, or None.
        marked: The deletion vectors of touched files that stay, or None.
        rows_by_clause: Rows taken by each clause that looks at target rows.
        num_copied: Unmodified rows of removed files that were written anew.
        matched_source: The source rows that match; None if they were not counted.
        changes_every_match: Whether every target row that matches was changed; False if that is not
            known.
    """

    strategy: Strategy
    found: Candidates
    matched: FileList
    touched: FileList
    removed: FileList
    written: WrittenFiles | None = None
    marked: MarkedRows | None = None
    rows_by_clause: Mapping[int, int] = field(default_factory=dict)
    num_copied: int = 0
    matched_source: MatchedRows | None = None
    changes_every_match: bool = False

    @property
    def candidates(self) -> FileList:
        """The files that were scanned."""
        return self.found.files


def write_changes(transaction: Transaction, source: PreparedSource, phases: Phases) -> Changes:
    """Find what changes, and write it by the strategy that fits."""
    strategy = choose_strategy(transaction, source).strategy
    if strategy is Strategy.INSERT_ONLY:
        return _insert_without_scan(transaction, source, phases)
    with phases.running(
        "findTouchedFiles", "MERGE operation - scanning files for matches", "scanTimeMs"
    ):
        found = find_candidates(transaction, source)
        by_place = strategy in (Strategy.DELETION_VECTORS, Strategy.COPY_IN_PLACE)
        scan = find_touched_files(transaction, source, found, with_row_index=by_place)
    try:
        if not len(scan.touched):
            return _insert_unmatched(transaction, source, found, scan, phases)
        if strategy is Strategy.DELETION_VECTORS:
            return _mark(transaction, source, found, scan, phases)
        return _copy(transaction, source, found, scan, phases, strategy)
    finally:
        with letting_go("the pairs"):
            scan.pairs.unpersist()


def _insert_without_scan(
    transaction: Transaction, source: PreparedSource, phases: Phases
) -> Changes:
    written, found = insert_without_scan(transaction, source, phases)
    none = found.files.none()
    return Changes(
        Strategy.INSERT_ONLY,
        found,
        matched=found.files,
        touched=none,
        removed=none,
        written=written,
        matched_source=None if len(found.files) else MatchedRows(),
    )


def _insert_unmatched(
    transaction: Transaction,
    source: PreparedSource,
    found: Candidates,
    scan: TouchedFilesScan,
    phases: Phases,
) -> Changes:
    """No file is touched: only inserts are written, if there are any."""
    written = insert_unmatched(transaction, source, scan, phases)
    return Changes(
        Strategy.NONE if written is None else Strategy.INSERT_ONLY,
        found,
        matched=scan.matched,
        touched=scan.touched,
        removed=scan.touched,
        written=written,
        matched_source=scan.matched_source,
    )


def _mark(
    transaction: Transaction,
    source: PreparedSource,
    found: Candidates,
    scan: TouchedFilesScan,
    phases: Phases,
) -> Changes:
    done = mark_changed_rows(transaction, source, scan, phases)
    return Changes(
        Strategy.DELETION_VECTORS,
        found,
        matched=scan.matched,
        touched=scan.touched,
        removed=done.fates.removed,
        written=done.written,
        marked=done.marked,
        rows_by_clause=scan.rows_by_clause,
        num_copied=done.fates.num_copied,
        matched_source=scan.matched_source,
        changes_every_match=scan.num_matched_rows == sum(scan.changed_by_file),
    )


def _copy(
    transaction: Transaction,
    source: PreparedSource,
    found: Candidates,
    scan: TouchedFilesScan,
    phases: Phases,
    strategy: Strategy,
) -> Changes:
    """Rewrite the touched files: in place where that is cheaper, and by Spark the others."""
    matched_only = transaction.merge.is_matched_only
    with phases.running(
        "writeAllUpdatesAndDeletes" if matched_only else "writeAllChanges",
        f"MERGE operation - Rewriting {len(scan.touched)} files",
        "rewriteTimeMs",
    ):
        in_place = strategy is Strategy.COPY_IN_PLACE
        files = worth_rewriting_in_place(transaction, scan) if in_place else scan.touched.none()
        written: WrittenFiles | None
        if len(files):
            written, left = rewrite_in_place(transaction, source, scan, files)
            if len(left):
                written = copy_files(transaction, source, scan, left).and_also(written)
        else:
            left = scan.touched
            # Writing them apart needs row indexes, which only a scan for copies in place has.
            apart = in_place and scan.may_broadcast_pairs and most_rows_change(transaction, scan)
            written = copy_touched_files(transaction, source, scan, without_join=apart)
    return Changes(
        Strategy.COPY_ON_WRITE if len(left) else Strategy.COPY_IN_PLACE,
        found,
        matched=scan.matched,
        touched=scan.touched,
        removed=scan.touched,
        written=written,
        rows_by_clause=scan.rows_by_clause,
        num_copied=transaction.num_records(scan.touched) - sum(scan.changed_by_file),
        matched_source=scan.matched_source,
    )
