"""The output of a merge, written and not yet committed, and the metrics that are counted from it.

Row counts come from the pairs and from the statistics of the new files, which count what
successful tasks wrote. So retried and speculative tasks cannot inflate them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deltaweave.delta.commit import Committed, TableLock, WrittenFiles
from deltaweave.delta.files import MarkedRows
from deltaweave.delta.log import FileList
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import FilePlan, MatchedRows, TouchedFilesScan
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import MERGE_METRICS, MergeMetrics, StrategyName


@dataclass(frozen=True)
class Staged:
    """The output of a merge. The table shows none of it before the commit.

    Attributes:
        run: The run that wrote it, with the transaction that may commit it.
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
        files_redone: How many files were changed again to follow other commits.
    """

    run: MergeRun
    strategy: StrategyName
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
    files_redone: int = 0

    @property
    def candidates(self) -> FileList:
        """The files that were scanned."""
        return self.found.files

    @property
    def new_files(self) -> FileList:
        """The new files; none if no row was written."""
        return self.touched.empty() if self.written is None else self.written.files

    @property
    def changes_table(self) -> bool:
        """Whether a commit of it changes rows of the table."""
        return bool(len(self.touched) or len(self.new_files))

    def commit(self, metrics: MergeMetrics, lock: TableLock) -> Committed:
        """Commit the staged files.

        Raises:
            CommitConflictError: Another commit changed what the merge read.
            CommitStateUnknownError: The commit failed, and whether it landed is unknown.
        """
        return self.run.transaction.commit(
            removed=self.removed,
            marked=self.marked.actions if self.marked is not None else None,
            written=self.written,
            metrics=metrics,
            transaction_ids=self.run.preconditions.transaction_ids,
            held=lock,
        )

    def discard(self, *, unless_in: Staged | None = None) -> None:
        """Delete the new files, except files shared with `unless_in`."""
        kept = () if unless_in is None else unless_in.new_files.paths
        if self.written is not None:
            self.run.transaction.own_files.delete(self.new_files.excluding(set(kept)))

    @classmethod
    def inserted(cls, run: MergeRun, found: Candidates, written: WrittenFiles) -> Staged:
        """Build the output of a merge that only inserts, without a scan for matches."""
        none = found.files.empty()
        return cls(
            run,
            StrategyName.INSERT_ONLY,
            found,
            matched=found.files,
            touched=none,
            removed=none,
            written=written,
            matched_source=None if len(found.files) else MatchedRows(),
        )

    @classmethod
    def of_scan(
        cls,
        run: MergeRun,
        strategy: StrategyName,
        scan: TouchedFilesScan,
        written: WrittenFiles | None,
        num_copied: int = 0,
    ) -> Staged:
        """Build the output of a merge whose touched files all leave the table."""
        return cls(
            run,
            strategy,
            scan.found,
            matched=scan.matched,
            touched=scan.touched,
            removed=scan.touched,
            written=written,
            rows_by_clause=scan.rows_by_clause,
            num_copied=num_copied,
            matched_source=scan.matched_source,
        )

    @classmethod
    def untouched(
        cls, run: MergeRun, scan: TouchedFilesScan, written: WrittenFiles | None
    ) -> Staged:
        """Build the output of a merge that touches no file and writes only inserts, if any."""
        strategy = StrategyName.NONE if written is None else StrategyName.INSERT_ONLY
        return cls.of_scan(run, strategy, scan, written)

    @classmethod
    def with_vectors(
        cls,
        run: MergeRun,
        scan: TouchedFilesScan,
        plan: FilePlan,
        written: WrittenFiles | None,
        marked: MarkedRows,
    ) -> Staged:
        """Build the output of a merge that marked rows of touched files."""
        strategy = StrategyName.DELETION_VECTORS
        return replace(
            cls.of_scan(run, strategy, scan, written, plan.num_copied),
            removed=plan.removed,
            marked=marked,
            changes_every_match=scan.num_matched_rows == sum(scan.changed_by_file),
        )

    @classmethod
    def copied(
        cls,
        run: MergeRun,
        strategy: StrategyName,
        scan: TouchedFilesScan,
        written: WrittenFiles | None,
        replacements: Mapping[str, str] | None = None,
    ) -> Staged:
        """Build the output of a merge that rewrote all touched files."""
        num_copied = run.transaction.num_records(scan.touched) - sum(scan.changed_by_file)
        staged = cls.of_scan(run, strategy, scan, written, num_copied)
        return replace(staged, replacements=replacements or {})


def merge_metrics(staged: Staged) -> MergeMetrics:
    """Collect all metrics of a merge that is about to be committed."""
    run, transaction = staged.run, staged.run.transaction
    values: dict[str, int] = dict.fromkeys(MERGE_METRICS, 0)
    values |= {
        "numSourceRows": run.source.num_rows,
        "operationNumSourceRows": run.source.num_rows,
        "numTargetFilesBeforeSkipping": transaction.table.num_files,
        "numTargetBytesBeforeSkipping": transaction.table.size_in_bytes,
        "numTargetFilesAfterSkipping": len(staged.candidates),
        "numTargetBytesAfterSkipping": staged.candidates.size_in_bytes,
        "numTargetPartitionsAfterSkipping": staged.candidates.num_partitions,
        "numTargetFilesRemoved": len(staged.removed),
        "numTargetBytesRemoved": staged.removed.size_in_bytes,
        "numTargetPartitionsRemovedFrom": staged.removed.num_partitions,
        **run.phases.times_ms,
    }
    for i, num_rows in staged.rows_by_clause.items():
        clause = run.statement.clauses[i]
        if clause.kind != "not_matched":
            by = "Matched" if clause.kind == "matched" else "NotMatchedBySource"
            did = "Updated" if clause.action == "update" else "Deleted"
            values[f"numTargetRows{did}"] += num_rows
            values[f"numTargetRows{by}{did}"] += num_rows
    values["numTargetRowsCopied"] = staged.num_copied
    if staged.written is not None:
        added = staged.written.files
        not_inserted = values["numTargetRowsCopied"] + values["numTargetRowsUpdated"]
        values |= {
            "numTargetRowsInserted": transaction.num_records(added) - not_inserted,
            "numTargetFilesAdded": len(added),
            "numTargetBytesAdded": added.size_in_bytes,
            "numTargetPartitionsAddedTo": added.num_partitions,
            "numTargetChangeFilesAdded": staged.written.num_change_files,
            "numTargetChangeFileBytes": staged.written.change_file_bytes,
        }
    if staged.marked is not None:
        values |= {
            "numTargetDeletionVectorsAdded": staged.marked.num_added,
            "numTargetDeletionVectorsRemoved": staged.marked.num_removed
            + staged.removed.num_vectors,
            "numTargetDeletionVectorsUpdated": staged.marked.num_updated,
        }
    return MergeMetrics(values)


def num_unaffected(staged: Staged, metrics: MergeMetrics) -> int | None:
    """Count the source rows that change nothing, since no clause exists for them or takes them.

    If a clause's condition skips a source row, the written rows do not show whether it was skipped
    or lost. So skipped rows are counted apart: among matched rows by the pairs, among the others by
    the query that collects the source's keys, which counts the rows that insert clauses would take
    if nothing matched. If the insert clauses have conditions and the keys were not collected, one
    job evaluates the conditions. A source row whose target row another source row deletes counts,
    too.

    Returns:
        None if it is not known; after an insert-only merge, since matches were not counted.
    """
    source, matched = staged.run.source, staged.matched_source
    if matched is None:
        return None
    changed = metrics.num_target_rows_matched_updated + metrics.num_target_rows_matched_deleted
    unmatched = source.num_rows - matched.source_rows
    inserts = staged.run.statement.of_kind("not_matched")
    if not inserts:
        not_inserted = unmatched
    elif any(clause.condition is None for clause in inserts):
        not_inserted = 0
    elif source.insertable is None or not source.gives_same_rows:
        return None
    else:
        not_inserted = unmatched - (source.num_insertable - matched.insertable)
    # Below 0 only if source rows match several target rows, which have more pairs than rows.
    return matched.pairs - changed + max(not_inserted, 0)
