"""Deletion vectors: changed rows are marked in their files, and only changed rows are written.

Every later scan reads the marked rows, too, until the table is purged. So a touched file that would
keep few rows is rewritten: copying these rows costs less than to read the others again and again. A
file without any row left is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    MarkedRows,
    mark_on_driver,
    mark_rows,
    may_mark_on_driver,
    vectors_writable,
    without_files,
)
from deltaweave.delta.jvm import alongside
from deltaweave.delta.log import FileList
from deltaweave.engine.columns import FILE, TARGET_ROW_ID
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import LocalForm, Strategy, matches
from deltaweave.engine.strategies.rows import remaining_rows, together, updated_and_inserted
from deltaweave.engine.strategies.source_rows import updates_from_source

if TYPE_CHECKING:
    import numpy


class DeletionVectors(Strategy):
    """Write deletion vectors and the changed rows, both at once in two threads.

    Usually few rows change, and each side plans queries for longer than it runs them.
    """

    name = StrategyName.DELETION_VECTORS
    needs_row_index = True
    writes_changes_alone = True
    local = LocalForm.VECTORS

    def applies(self, run: MergeRun) -> Verdict:
        writable = vectors_writable(run.transaction)
        return YES if writable else no("the table takes no deletion vectors")

    def reason(self, run: MergeRun, refusals: Mapping[StrategyName, str]) -> str:
        return (
            "the table takes deletion vectors; files in which more than "
            f"{run.settings.max_marked_fraction:.0%} of the rows would be marked are rewritten"
        )

    def write(
        self, run: MergeRun, scan: TouchedFilesScan | None, known: Candidates | None = None
    ) -> Staged:
        scan = matches(scan)
        plan = plan_files(run, scan)

        def mark() -> MarkedRows:
            status = f"MERGE operation - Rewriting Deletion Vectors to {len(plan.stay)} files"
            with run.phases.described(status):
                return _mark(run.transaction, scan, plan.stay)

        with (
            alongside(run.statement.spark, mark) as marking,
            run.phases.running(
                "writeModifiedRowsOnly",
                f"MERGE operation - Rewriting {len(scan.touched)} files",
                "rewriteTimeMs",
            ),
        ):
            parts = updated_and_inserted(run, scan)
            if plan.num_copied:
                parts = [remaining_rows(run.transaction, scan, plan.copied), *parts]
            written = run.transaction.write(together(parts)) if parts else None
            marked = marking.result()
        return Staged.with_vectors(run, scan, plan.removed, written, marked, plan.num_copied)

    def can_rebase(self, staged: Staged, gone: Collection[str]) -> Verdict:
        assert staged.scan is not None
        transaction = staged.run.transaction
        keeps_feed = transaction.metadata.keeps_change_feed
        if keeps_feed or updates_from_source(transaction, staged.scan) is None:
            return no("its new rows depend on the rows that they replace")
        if staged.num_copied and set(staged.removed.paths) & set(gone):
            return no("rows of a file that is gone were copied")
        return YES

    def rebased(
        self, staged: Staged, gone: Collection[str], scan: TouchedFilesScan
    ) -> Staged | None:
        plan = plan_files(staged.run, scan)
        rows = scan.changed_on_driver(plan.stay)
        if rows is None or len(plan.copied) or not may_mark_on_driver(plan.stay):
            return None
        assert staged.marked is not None
        stayed = staged.touched.excluding(staged.removed.paths)
        own = without_files(staged.marked, stayed.among(gone))
        again = mark_on_driver(staged.run.transaction, rows[FILE], rows[TARGET_ROW_ID], plan.stay)
        removed = staged.removed.excluding(gone).and_also(plan.removed)
        return replace(staged, removed=removed, marked=own.and_also(again))


@dataclass(frozen=True)
class FilePlan:
    """What becomes of the touched files.

    Attributes:
        stay: Files in which rows are marked.
        removed: Files that leave the table.
        copied: Removed files that have rows left, which are rewritten.
        num_copied: How many such rows there are.
    """

    stay: FileList
    removed: FileList
    copied: FileList
    num_copied: int


def plan_files(
    run: MergeRun, scan: TouchedFilesScan, row_counts: numpy.ndarray | None = None
) -> FilePlan:
    """Choose for each touched file, by the fraction of its rows that would be marked.

    Rows that earlier merges marked count as marked. A file with an unknown number of rows stays,
    and so does one in which more rows changed than its statistics count. A file whose own row count
    contradicts its statistics is rewritten: Delta would take it for empty by them.

    Args:
        run: The merge.
        scan: The touched files.
        row_counts: How many rows each of them has, as the file itself says, if that is known.
    """
    import numpy as np

    said = scan.touched.row_counts
    rows = said if row_counts is None else row_counts
    num_marked = scan.touched.rows["num_marked"].to_numpy()
    left = rows - np.array(scan.changed_by_file, dtype=float)
    fraction = 1 - left / np.maximum(rows + num_marked, 1)
    is_wrong = (rows != said) & ~np.isnan(said)
    is_full = fraction > run.settings.max_marked_fraction
    leaves = (left == 0) | ((left > 0) & (is_full | is_wrong))
    return FilePlan(
        scan.touched.where(~leaves),
        scan.touched.where(leaves),
        scan.touched.where(leaves & (left > 0)),
        int(left[leaves].sum()),
    )


def _mark(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> MarkedRows:
    """Mark the rows of these files that a clause takes; on the driver if the pairs are there."""
    here = scan.changed_on_driver(files)
    if here is not None and may_mark_on_driver(files):
        return mark_on_driver(transaction, here[FILE], here[TARGET_ROW_ID], files)
    changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
    return mark_rows(transaction, changed, FILE, TARGET_ROW_ID, files)
