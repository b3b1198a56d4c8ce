"""Copy in place: tasks copy touched files with pyarrow, and Spark the files that are not worth it.

Files in which few rows change are worth it. Where an update may move rows to another partition, all
changed rows leave their files (see file_copies).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from deltaweave._verdict import YES, Verdict, no
from deltaweave.delta.files import conditions_of_rows, written_columns
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.attempts import attempted
from deltaweave.engine.executor_python import WITHOUT_PYARROW, lacks_pyarrow
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import LocalForm, Strategy, matches, may_move_rows
from deltaweave.engine.strategies.file_copies import (
    rewrite_in_place,
    rewrite_without_changed_rows,
    rewrite_without_inserts,
)
from deltaweave.engine.strategies.rows import changed_rows, copy_phase, copy_touched_files

if TYPE_CHECKING:
    import numpy

ONLY_DELTA_CHECKS = "only Delta's writer checks some of the table's constraints"


class CopyInPlace(Strategy):
    """Rewrite the touched files: in place where that is cheaper, and by Spark the others."""

    name = StrategyName.COPY_IN_PLACE
    needs_row_index = True
    local = LocalForm.COPIES

    def applies(self, run: MergeRun) -> Verdict:
        attempt = partial(_may_copy, run)
        unknown = no("it is not known whether Arrow copies its files as Spark does")
        return attempted(run.table, "Spark rewrites the touched files", attempt) or unknown

    def reason(self, run: MergeRun, refusals: Mapping[StrategyName, str]) -> str:
        reason = "the table's files can be copied row by row in their order"
        if may_move_rows(run):
            reason += "; changed rows, which may move to other partitions, go to other files"
        return reason

    def write(
        self, run: MergeRun, scan: TouchedFilesScan | None, known: Candidates | None = None
    ) -> Staged:
        scan = matches(scan)
        name, replacements = StrategyName.COPY_ON_WRITE, dict[str, str]()
        with copy_phase(run, scan):
            files = _worth_copying(run, scan)
            if not len(files):
                # Writing them apart needs row indexes, which only this strategy's scan has.
                apart = scan.may_broadcast_pairs and _most_rows_change(run, scan)
                written = copy_touched_files(run, scan, without_join=apart)
            elif may_move_rows(run):
                done = rewrite_without_changed_rows(run, scan, files)
                name = name if len(done.left) else self.name
                written = done.written
            else:
                done = rewrite_in_place(run, scan, files)
                written = done.written
                if len(done.left):
                    rows = changed_rows(run, scan, done.left, with_unmodified=True)
                    written = run.transaction.write(rows).and_also(written)
                else:
                    name, replacements = self.name, done.replacements
        return Staged.copied(run, name, scan, written, replacements)

    def can_rebase(self, staged: Staged, gone: Collection[str]) -> Verdict:
        if may_move_rows(staged.run):
            return no("its new rows are in files with those of others")
        keeps_feed = staged.run.transaction.metadata.keeps_change_feed
        return no("it wrote the change feed") if keeps_feed else YES

    def rebased(
        self, staged: Staged, gone: Collection[str], scan: TouchedFilesScan
    ) -> Staged | None:
        done = rewrite_without_inserts(staged.run, scan, scan.touched)
        if len(done.left):
            return None
        assert staged.written is not None
        assert staged.scan is not None
        dropped = {new for old, new in staged.replacements.items() if old in gone}
        changed_before = zip(staged.scan.touched.paths, staged.scan.changed_by_file, strict=True)
        changed = sum(rows for path, rows in changed_before if path not in gone)
        stayed = staged.touched.excluding(gone)
        copied = staged.run.transaction.num_records(stayed) - changed
        copied += staged.run.transaction.num_records(scan.touched) - sum(scan.changed_by_file)
        return replace(
            staged,
            removed=stayed.and_also(scan.touched),
            written=staged.written.without(dropped).and_also(done.written),
            num_copied=copied,
        )


def _may_copy(run: MergeRun) -> Verdict:
    """Return whether some touched files may be rewritten in place."""
    if not run.source.gives_same_rows:
        # Changed rows are computed after the scan, and must be the rows that the scan saw.
        return no("the source may give other rows when it is read again")
    if not run.settings.allows_in_place.ok:
        return run.settings.allows_in_place
    if lacks_pyarrow(run.statement.spark):
        return no(WITHOUT_PYARROW)
    is_auto = run.settings.in_place == "auto"
    if is_auto and run.transaction.table.size_in_bytes < limits.MIN_BYTES_IN_PLACE:
        return no("the table is small")
    if is_auto and may_move_rows(run):
        # Each changed row would leave its file, and each merge add a file to each partition.
        return no("an update may move rows to another partition")
    if conditions_of_rows(run.transaction) is None:
        return no(ONLY_DELTA_CHECKS)
    columns = written_columns(run.transaction)
    return YES if isinstance(columns, list) else no(columns.reason)


def _most_rows_change(run: MergeRun, scan: TouchedFilesScan) -> bool:
    """Return whether too many rows of every touched file change to rewrite any in place."""
    is_big = scan.touched.size_in_bytes >= limits.MIN_BYTES_IN_PLACE
    return run.settings.in_place != "true" and is_big and not _few_rows_change(scan).any()


def _worth_copying(run: MergeRun, scan: TouchedFilesScan) -> FileList:
    """Return the touched files to rewrite in place: all of them if the setting is `true`."""
    if run.settings.in_place == "true":
        return scan.touched
    files = scan.touched.where(_few_rows_change(scan))
    return files if files.size_in_bytes >= limits.MIN_BYTES_IN_PLACE else scan.touched.none()


def _few_rows_change(scan: TouchedFilesScan) -> numpy.ndarray:
    """Return for each touched file whether few of its rows change; false if that is not known."""
    import numpy as np

    at_most = limits.MAX_CHANGED_FRACTION_IN_PLACE * scan.touched.row_counts
    few: numpy.ndarray = np.array(scan.changed_by_file) <= at_most
    return few
