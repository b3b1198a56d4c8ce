"""Deletion vectors: changed rows are marked in their files, and only changed rows are written.

Every later scan reads the marked rows, too, until the table is purged. So a touched file that would
keep few rows is rewritten: copying these rows costs less than to read the others again and again. A
file without any row left is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

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
from deltaweave.engine.clauses import FILE, TARGET_ROW_ID
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan, plan_files
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import SparkScan, Strategy
from deltaweave.engine.strategies.rows import (
    remaining_rows,
    updated_and_inserted,
    updates_from_source,
    write_parts,
)


class DeletionVectors(Strategy):
    """Write deletion vectors and the changed rows, both at once in two threads.

    Usually few rows change, and each side plans queries for longer than it runs them.
    """

    name = StrategyName.DELETION_VECTORS
    local_name = StrategyName.DELETION_VECTORS
    needs_row_index = True

    def applies(self, run: MergeRun) -> Verdict:
        writable = vectors_writable(run.transaction)
        return YES if writable else no("the table takes no deletion vectors")

    def explain(self, run: MergeRun, instead_of: Mapping[StrategyName, str]) -> str:
        return (
            "the table takes deletion vectors; files in which more than "
            f"{run.settings.max_marked_fraction:.0%} of the rows would be marked are rewritten"
        )

    def write(self, run: MergeRun, found: SparkScan) -> Staged:
        scan = found.matches
        plan = plan_files(run, scan)

        def write_vectors() -> MarkedRows:
            status = f"MERGE operation - Rewriting Deletion Vectors to {len(plan.stay)} files"
            with run.phases.described(status):
                return _write_vectors(run.transaction, scan, plan.stay)

        with (
            alongside(run.statement.spark, write_vectors) as writing,
            run.phases.running(
                "writeModifiedRowsOnly",
                f"MERGE operation - Rewriting {len(scan.touched)} files",
                "rewriteTimeMs",
            ),
        ):
            parts = updated_and_inserted(run, scan)
            if plan.num_copied:
                parts = [remaining_rows(run.transaction, scan, plan.copied), *parts]
            written = write_parts(run.transaction, parts)
            marked = writing.result()
        return Staged.with_vectors(run, scan, plan, written, marked)

    def can_rebase(self, staged: Staged, removed_paths: Collection[str]) -> Verdict:
        assert staged.scan is not None
        transaction = staged.run.transaction
        keeps_feed = transaction.metadata.keeps_change_feed
        if keeps_feed or updates_from_source(transaction, staged.scan) is None:
            return no("its new rows depend on the rows that they replace")
        if staged.num_copied and set(staged.removed.paths) & set(removed_paths):
            return no("rows of a removed file were copied")
        return YES

    def rebased(
        self, staged: Staged, removed_paths: Collection[str], scan: TouchedFilesScan
    ) -> Staged | Verdict:
        plan = plan_files(staged.run, scan)
        rows = scan.changed_on_driver(plan.stay)
        if rows is None or len(plan.copied) or not may_mark_on_driver(plan.stay):
            return super().rebased(staged, removed_paths, scan)
        assert staged.marked is not None
        stayed = staged.touched.excluding(staged.removed.paths)
        own = without_files(staged.marked, stayed.with_paths(removed_paths))
        again = mark_on_driver(staged.run.transaction, rows[FILE], rows[TARGET_ROW_ID], plan.stay)
        removed = staged.removed.excluding(removed_paths).union(plan.removed)
        return replace(staged, removed=removed, marked=own.union(again))


def _write_vectors(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> MarkedRows:
    """Mark the rows of these files that a clause takes; on the driver if the pairs are there."""
    local_changes = scan.changed_on_driver(files)
    if local_changes is not None and may_mark_on_driver(files):
        return mark_on_driver(transaction, local_changes[FILE], local_changes[TARGET_ROW_ID], files)
    changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
    return mark_rows(transaction, changed, FILE, TARGET_ROW_ID, files)
