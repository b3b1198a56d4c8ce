"""Write all changes: the strategies, and what each leaves for the commit.

- Insert-only merges append the source rows without a match, and need no scan for matches.
- A merge that touches no file inserts at most.
- On a table that takes deletion vectors, changed rows are marked and only changed rows are written.
- Otherwise touched files are rewritten: in place if that is cheaper, else by Spark.
- A small merge does all of this on the driver, if Arrow certainly gives what Spark gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

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
from deltaweave.engine.local_attempt import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.phases import Phases
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.copy_on_write import copy_files, copy_touched_files
from deltaweave.engine.write.deletion_vectors import mark_changed_rows
from deltaweave.engine.write.driver_choice import DriverChoice, choose_driver
from deltaweave.engine.write.driver_files import write_on_driver
from deltaweave.engine.write.in_place import rewrite_in_place, rewrite_without_changed_rows
from deltaweave.engine.write.insert_only import insert_phase, insert_unmatched, insert_without_scan
from deltaweave.engine.write.mark_or_rewrite import MarkedFiles
from deltaweave.engine.write.on_driver import Found, find_on_driver
from deltaweave.engine.write.strategy import (
    Strategy,
    choice_on_driver,
    choose_strategy,
    may_move_rows,
)
from deltaweave.engine.write.worth_in_place import most_rows_change, worth_rewriting_in_place


@dataclass(frozen=True)
class Changes:
    """What the write phase did. The table shows none of it before the commit.

    Attributes:
        strategy: How the changes were written.
        found: The candidate files, which were scanned, and the source's keys.
        matched: The candidate files in which a source row may match.
        touched: The files in which a row changes.
        removed: The touched files that leave the table.
        written: The new files, or None.
        marked: The deletion vectors of touched files that stay, or None.
        rows_by_clause: Rows taken by each clause that looks at target rows.
        num_copied: Unmodified rows of removed files that were rewritten.
        matched_source: The source rows that match; None if they were not counted.
        changes_every_match: Whether every target row that matches was changed; False if that is not
            known.
        scan: What the scan for matches found; None if its pairs are not kept on the driver, or if
            no query gives the same identity of source rows again.
        replacements: If each touched file was rewritten by itself, the path of its new file by its
            own; a file without rows left has none.
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
    scan: TouchedFilesScan | None = None
    replacements: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidates(self) -> FileList:
        """The files that were scanned."""
        return self.found.files


def write_changes(transaction: Transaction, source: PreparedSource, phases: Phases) -> Changes:
    """Find what changes, and write it by the strategy that fits."""
    choice = choose_strategy(transaction, source)
    strategy = choice.strategy
    driver = choose_driver(transaction, source)
    known: Candidates | None = None
    if driver.why_not is None:
        by_driver = choice_on_driver(choice).strategy
        changes, known = _on_driver(transaction, source, phases, by_driver, driver)
        if changes is not None:
            return changes
    if strategy is Strategy.INSERT_ONLY:
        written, found = insert_without_scan(transaction, source, phases, known)
        return _inserted_without_scan(written, found)
    with _scan_phase(phases):
        found = find_candidates(transaction, source) if known is None else known
        by_place = strategy in (Strategy.DELETION_VECTORS, Strategy.COPY_IN_PLACE)
        scan = find_touched_files(transaction, source, found, with_row_index=by_place)
    try:
        if not len(scan.touched):
            written_or_none = insert_unmatched(transaction, source, scan, phases)
            return _inserted_unmatched(written_or_none, found, scan)
        if strategy is Strategy.DELETION_VECTORS:
            done = mark_changed_rows(transaction, source, scan, phases)
            return _with_scan(_marked(found, scan, done), scan)
        return _with_scan(_copy(transaction, source, found, scan, phases, strategy), scan)
    finally:
        with letting_go("the pairs"):
            scan.pairs.unpersist()


def _with_scan(changes: Changes, scan: TouchedFilesScan) -> Changes:
    return changes if scan.pairs.on_driver is None else replace(changes, scan=scan)


def _scan_phase(phases: Phases) -> AbstractContextManager[None]:
    status = "MERGE operation - scanning files for matches"
    return phases.running("findTouchedFiles", status, "scanTimeMs")


def _on_driver(
    transaction: Transaction,
    source: PreparedSource,
    phases: Phases,
    strategy: Strategy,
    driver: DriverChoice,
) -> tuple[Changes | None, Candidates | None]:
    """Write by the driver alone; None if Spark has to, and the candidates if they are known.

    The times are those of the phases that Spark would run.
    """
    inserts_alone = strategy is Strategy.INSERT_ONLY
    with insert_phase(phases) if inserts_alone else _scan_phase(phases):
        tried = find_on_driver(transaction, source, driver, strategy)
    if tried.found is None:
        return None, tried.candidates
    return _written_on_driver(transaction, tried.found, phases, strategy), tried.candidates


def _written_on_driver(
    transaction: Transaction, found: Found, phases: Phases, strategy: Strategy
) -> Changes | None:
    def write() -> MarkedFiles | None:
        attempt = partial(write_on_driver, transaction, found, strategy)
        return attempted(transaction.merge.table, SPARK_DOES_THE_MERGE, attempt)

    if strategy is Strategy.INSERT_ONLY:
        with insert_phase(phases):
            inserted = write()
        if inserted is None:
            return None
        written = inserted.written or WrittenFiles.of(found.scan.touched)
        return _inserted_without_scan(written, found.candidates)
    operation, status = "writeInsertsOnlyWhenNoMatches", "MERGE operation - writing inserts"
    if len(found.scan.touched):
        operation = "writeModifiedRowsOnly"
        status = f"MERGE operation - Rewriting {len(found.scan.touched)} files"
    with phases.running(operation, status, "rewriteTimeMs"):
        done = write()
    if done is None:
        return None
    if not len(found.scan.touched):
        return _inserted_unmatched(done.written, found.candidates, found.scan)
    if strategy is Strategy.DELETION_VECTORS:
        return _marked(found.candidates, found.scan, done)
    return _copied(transaction, strategy, found.candidates, found.scan, done.written)


def _inserted_without_scan(written: WrittenFiles, found: Candidates) -> Changes:
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


def _inserted_unmatched(
    written: WrittenFiles | None, found: Candidates, scan: TouchedFilesScan
) -> Changes:
    """Build the changes of a merge that touches no file and writes only inserts, if any."""
    return Changes(
        Strategy.NONE if written is None else Strategy.INSERT_ONLY,
        found,
        matched=scan.matched,
        touched=scan.touched,
        removed=scan.touched,
        written=written,
        matched_source=scan.matched_source,
    )


def _marked(found: Candidates, scan: TouchedFilesScan, done: MarkedFiles) -> Changes:
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
        replacements: dict[str, str] = {}
        if len(files) and may_move_rows(transaction):
            rewritten = rewrite_without_changed_rows(transaction, source, scan, files)
            written, left = rewritten.written, rewritten.left
        elif len(files):
            rewritten = rewrite_in_place(transaction, source, scan, files)
            written, left = rewritten.written, rewritten.left
            if len(left):
                written = copy_files(transaction, source, scan, left).and_also(written)
            else:
                replacements = rewritten.replacements
        else:
            left = scan.touched
            # Writing them apart needs row indexes, which only a scan for copies in place has.
            apart = in_place and scan.may_broadcast_pairs and most_rows_change(transaction, scan)
            written = copy_touched_files(transaction, source, scan, without_join=apart)
    done = Strategy.COPY_ON_WRITE if len(left) else Strategy.COPY_IN_PLACE
    return replace(_copied(transaction, done, found, scan, written), replacements=replacements)


def _copied(
    transaction: Transaction,
    strategy: Strategy,
    found: Candidates,
    scan: TouchedFilesScan,
    written: WrittenFiles | None,
) -> Changes:
    return Changes(
        strategy,
        found,
        matched=scan.matched,
        touched=scan.touched,
        removed=scan.touched,
        written=written,
        rows_by_clause=scan.rows_by_clause,
        num_copied=transaction.num_records(scan.touched) - sum(scan.changed_by_file),
        matched_source=scan.matched_source,
    )
