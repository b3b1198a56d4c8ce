"""The local backend: it finds what changes and writes it, or declines the merge.

Changed rows are marked in their files, or their files are rewritten row by row in their order, as
the strategies on Spark do. Before anything is written, any doubt leaves the merge to Spark.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deltaweave.delta.commit import WrittenFiles
from deltaweave.delta.files import row_schema
from deltaweave.delta.jvm import column_named
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.attempts import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.backends.base import DeclinedError, require, scan_phase
from deltaweave.engine.backends.local.eligibility import (
    Eligible,
    file_eligibility,
    in_threads,
    local_eligibility,
)
from deltaweave.engine.backends.local.files import LocalScan, write_files
from deltaweave.engine.backends.local.matches import KeySearch, own_locations
from deltaweave.engine.backends.local.pairs import LocalPairs, local_pairs
from deltaweave.engine.backends.local.partitions import PartitionColumns, check_partitions
from deltaweave.engine.backends.local.values import values_of_pairs, values_of_source
from deltaweave.engine.clauses import CLAUSE, FILE, NEW_ROW, NO_CLAUSE, SOURCE_ROW
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import (
    FilePlan,
    TouchedFilesScan,
    plan_files,
    touched_files_of_pairs,
)
from deltaweave.engine.prune import Candidates, candidate_files, files_by_conditions
from deltaweave.engine.report import StrategyName
from deltaweave.engine.source import CollectedSource, WantedRows, collect_source
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import Strategy, insert_phase, table_format
from deltaweave.engine.tasks import NotRewritableError, TableFormat, check_copyable

if TYPE_CHECKING:
    import numpy


def write_locally(run: MergeRun, strategy: Strategy) -> Staged:
    """Find and write the changes: one job at most evaluates the source, pyarrow does the rest.

    The times are those of the phases that Spark would run.

    Raises:
        DeclinedError: Spark must do the merge; what was written is deleted.
        AmbiguousMatchError: Several source rows match a target row.
    """
    eligible = local_eligibility(run)
    with scan_phase(run.phases) if strategy.needs_scan else insert_phase(run.phases):
        found = LocalMerge.of(run, eligible, strategy).find()
    scan, touched = found.scan, len(found.scan.touched)
    with _write_phase(run, strategy, touched):
        attempt = partial(write_files, run.transaction, found)
        done = attempted(run.table, SPARK_DOES_THE_MERGE, attempt)
    if done is None:
        raise DeclinedError("what it wrote failed", scan.found)
    if not strategy.needs_scan:
        return Staged.inserted(run, scan.found, done.written or WrittenFiles.of(scan.touched))
    if not touched:
        return Staged.untouched(run, scan, done.written)
    if found.marks_rows:
        return Staged.with_vectors(run, scan, found.plan, done.written, done.marked)
    return Staged.copied(run, strategy.local_name, scan, done.written)


def _write_phase(run: MergeRun, strategy: Strategy, touched: int) -> AbstractContextManager[None]:
    if not strategy.needs_scan:
        return insert_phase(run.phases)
    operation, status = "writeInsertsOnlyWhenNoMatches", "MERGE operation - writing inserts"
    if touched:
        operation = "writeModifiedRowsOnly"
        status = f"MERGE operation - Rewriting {touched} files"
    return run.phases.running(operation, status, "rewriteTimeMs")


@dataclass(frozen=True)
class LocalMerge:
    """A merge with a collected source, whose candidate files are chosen."""

    run: MergeRun
    eligible: Eligible
    strategy: Strategy
    collected: CollectedSource
    candidates: Candidates

    @classmethod
    def of(cls, run: MergeRun, eligible: Eligible, strategy: Strategy) -> LocalMerge:
        """Collect the source, and choose the candidate files by its keys.

        Raises:
            DeclinedError: The source cannot be collected.
        """
        merge, equalities = run.statement, [each.equality for each in eligible.conjuncts]
        wanted = WantedRows(merge, run.source, equalities, eligible.conditions, eligible.reads)
        attempt = partial(collect_source, wanted)
        collected = attempted(merge.table, SPARK_DOES_THE_MERGE, attempt)
        if collected is None:
            raise DeclinedError("the source is not collected")
        files = files_by_conditions(run.transaction)
        chosen = candidate_files(run, collected.keys, files)
        return cls(run, eligible, strategy, collected, Candidates(chosen, files, collected.keys))

    def find(self) -> LocalScan:
        """Find what changes. Nothing is written.

        Raises:
            DeclinedError: Spark has to find it.
            AmbiguousMatchError: Several source rows match a target row.
        """
        found = attempted(self.run.table, SPARK_DOES_THE_MERGE, self._find)
        if found is None:
            raise DeclinedError("Spark has to find the matches", self.candidates)
        return found

    def _find(self) -> LocalScan:
        import numpy as np

        require(*file_eligibility(self.candidates.files))
        table = table_format(self.run.transaction, self.eligible.written)
        pairs, transaction = self._pairs(table), self.run.transaction
        updates = inserts = values_of_source(self.collected, row_schema(transaction))
        if self.eligible.reads.takes_old_rows:  # the clauses are evaluated over the pairs
            pairs, updates = values_of_pairs(
                transaction, self.collected, pairs, self.eligible, table
            )
        scan = self._scan(pairs)
        row_counts = pairs.row_counts_in(scan.touched)
        marks_rows = self.strategy.local_name is StrategyName.DELETION_VECTORS
        plan = (
            plan_files(self.run, scan, row_counts)
            if marks_rows
            else _all_rewritten(scan, row_counts)
        )
        _check_copies(plan.copied, table)
        is_inserted = ~pairs.is_matched & (self.collected.insert_clauses != NO_CLAUSE)
        inserted = np.flatnonzero(is_inserted)
        found = LocalScan(
            pairs,
            scan,
            plan,
            updates=updates,
            inserts=inserts,
            inserted=inserted,
            insert_clauses=self.collected.insert_clauses[inserted],
            table=table,
            marks_rows=marks_rows,
        )
        _check_new_rows(found)
        return found

    def _pairs(self, table: TableFormat) -> LocalPairs:
        """Find the pairs of the collected rows with rows of the candidate files."""
        transaction, eligible = self.run.transaction, self.eligible
        search = KeySearch(
            transaction,
            self.candidates.files,
            self.collected.keys,
            eligible.conjuncts,
            partitioned_by=PartitionColumns.of(transaction, eligible.partitioned_by),
            storage=table.storage,
            new_calendar=table.new_calendar,
            at_most=limits.MAX_PAIRS_ON_DRIVER,
        )
        with_insertable = self.run.source.insertable is not None
        return local_pairs(search, self.collected, with_insertable=with_insertable)

    def _scan(self, pairs: LocalPairs) -> TouchedFilesScan:
        """Return what the pairs show about the files."""
        statement = self.run.statement
        # The identity is the number of a collected row, which no query over the source can compute.
        identity = column_named(statement.spark, SOURCE_ROW)
        # Rows that are only inserted may match any number of times, and are not inserted then.
        may_repeat = not self.strategy.needs_scan or statement.may_match_repeatedly
        return touched_files_of_pairs(
            self.run, self.candidates, identity, pairs.pairs, may_repeat=may_repeat
        )


def _check_new_rows(found: LocalScan) -> None:
    """Raise NotRewritableError if the new rows may be too big, or if one must not be written.

    That is one that breaks a constraint, or of a partition that Spark must name.
    """
    import pyarrow as pa

    changes = found.changes
    numbers, clauses = changes[NEW_ROW].to_numpy(), changes[CLAUSE].to_numpy()
    found.updates.check_size(numbers, clauses)
    if found.updates.breaks_constraint(numbers, clauses) or found.inserts.breaks_constraint(
        found.inserted, found.insert_clauses
    ):
        raise NotRewritableError("a new row breaks a constraint")  # Delta's writer reports it
    if found.partitioned_by.fields:
        new = [found.updates.rows(numbers, clauses), found.inserted_rows]
        feed = found.table.change_feed is not None
        touched = changes[FILE].unique().to_pylist() if feed else []
        recorded = [found.pairs.partitions[name] for name in touched]
        check_partitions(pa.concat_tables(new), found.partitioned_by, recorded)


def _all_rewritten(scan: TouchedFilesScan, row_counts: numpy.ndarray) -> FilePlan:
    """Return the plan of files in a table without deletion vectors: all are rewritten.

    Args:
        row_counts: The number of rows of each touched file, as the file records it.
    """
    import numpy as np

    copied = scan.touched.where(row_counts > np.array(scan.changed_by_file))
    return FilePlan(scan.touched.empty(), scan.touched, copied, 0)


def _check_copies(files: FileList, table: TableFormat) -> None:
    """Raise NotRewritableError if Arrow may not copy one of these files."""

    def check(location: str) -> None:
        with table.storage.opened(location) as file:
            check_copyable(file, table.schema, new_calendar=table.new_calendar)

    for _ in in_threads(check, own_locations(files)):
        pass
