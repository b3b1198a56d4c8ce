"""The local backend: it finds what changes and writes it, or declines the merge.

Changed rows are marked in their files, or their files are rewritten row by row in their order, as
the strategies on Spark do. Before anything is written, any doubt leaves the merge to Spark.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from deltaweave._validation import Verdict
from deltaweave.delta.commit import WrittenFiles
from deltaweave.delta.files import row_schema
from deltaweave.delta.jvm import column_named
from deltaweave.delta.log import FileList
from deltaweave.engine.attempts import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.backends.base import Backend, DeclinedError, scan_phase
from deltaweave.engine.backends.local.budget import in_threads
from deltaweave.engine.backends.local.eligibility import (
    Eligible,
    file_eligibility,
    local_eligibility,
)
from deltaweave.engine.backends.local.files import Found, write_files
from deltaweave.engine.backends.local.matches import own_locations
from deltaweave.engine.backends.local.pairs import LocalPairs, local_pairs
from deltaweave.engine.backends.local.partitions import PartitionColumns, check_partitions
from deltaweave.engine.backends.local.values import values_of_pairs, values_of_source
from deltaweave.engine.columns import CLAUSE, FILE, NEW_ROW, NO_CLAUSE, SOURCE_ROW
from deltaweave.engine.file_format import table_format
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan, touched_files_of_pairs
from deltaweave.engine.prune import Candidates, candidate_files, files_by_conditions
from deltaweave.engine.source import CollectedSource, collect_source
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import (
    CopyInPlace,
    FilePlan,
    LocalForm,
    Strategy,
    insert_phase,
    plan_files,
)
from deltaweave.engine.tasks import NotRewritableError, TableFormat, check_copyable

if TYPE_CHECKING:
    import numpy


class LocalBackend(Backend[Found]):
    """Merge on the driver: one job at most evaluates the source, pyarrow does the rest."""

    def find(self, run: MergeRun, strategy: Strategy, known: Candidates | None) -> Found:
        """Find what changes, if the local backend can do that.

        The times are those of the phases that Spark would run.
        """
        eligible = local_eligibility(run, strategy)
        if isinstance(eligible, Verdict):
            raise DeclinedError(eligible.reason)
        inserts_alone = strategy.local is LocalForm.INSERTS
        with insert_phase(run.phases) if inserts_alone else scan_phase(run.phases):
            return _find(run, eligible, strategy.local)

    def write(self, run: MergeRun, strategy: Strategy, found: Found) -> Staged:
        """Write what was found: new files, and the deletion vectors of files that stay."""
        scan, touched = found.scan, len(found.scan.touched)
        marks = strategy.local is LocalForm.VECTORS and bool(touched)
        with _write_phase(run, strategy, touched):
            attempt = partial(write_files, run.transaction, found, marks=marks)
            done = attempted(run.table, SPARK_DOES_THE_MERGE, attempt)
        if done is None:
            raise DeclinedError("what it wrote failed", scan.found)
        if strategy.local is LocalForm.INSERTS:
            return Staged.inserted(run, scan.found, done.written or WrittenFiles.of(scan.touched))
        if not touched:
            return Staged.untouched(run, scan, done.written)
        if marks:
            plan = found.plan
            return Staged.with_vectors(
                run, scan, plan.removed, done.written, done.marked, plan.num_copied
            )
        return Staged.copied(run, CopyInPlace.name, scan, done.written)


def _write_phase(run: MergeRun, strategy: Strategy, touched: int) -> AbstractContextManager[None]:
    if strategy.local is LocalForm.INSERTS:
        return insert_phase(run.phases)
    operation, status = "writeInsertsOnlyWhenNoMatches", "MERGE operation - writing inserts"
    if touched:
        operation = "writeModifiedRowsOnly"
        status = f"MERGE operation - Rewriting {touched} files"
    return run.phases.running(operation, status, "rewriteTimeMs")


def _find(run: MergeRun, eligible: Eligible, form: LocalForm | None) -> Found:
    """Find what changes. Nothing is written.

    Args:
        run: The merge.
        eligible: What is known of it.
        form: What is written for the strategy that the merge starts with.

    Raises:
        DeclinedError: Spark has to find it.
        AmbiguousMatchError: Several source rows match a target row.
    """
    merge, equalities = run.statement, [each.equality for each in eligible.conjuncts]
    collected = attempted(
        merge.table,
        SPARK_DOES_THE_MERGE,
        lambda: collect_source(merge, run.source, equalities, eligible.conditions, eligible.reads),
    )
    if collected is None:
        raise DeclinedError("the source is not collected")
    files = files_by_conditions(run.transaction)
    chosen = candidate_files(run, collected.keys, files)
    candidates = Candidates(chosen, files, collected.keys)

    def find() -> Found:
        verdict = file_eligibility(chosen)
        if not verdict.ok:
            raise NotRewritableError(verdict.reason)
        table = table_format(run.transaction, eligible.written)
        pairs = local_pairs(
            run.transaction,
            chosen,
            collected,
            eligible.conjuncts,
            PartitionColumns.of(run.transaction, eligible.partitioned_by),
            with_insertable=run.source.insertable is not None,
            storage=table.storage,
            new_calendar=table.new_calendar,
        )
        return _found(run, candidates, collected, pairs, eligible, form, table)

    found = attempted(merge.table, SPARK_DOES_THE_MERGE, find)
    if found is None:
        raise DeclinedError("Spark has to find the matches", candidates)
    return found


def _found(
    run: MergeRun,
    candidates: Candidates,
    collected: CollectedSource,
    pairs: LocalPairs,
    eligible: Eligible,
    form: LocalForm | None,
    table: TableFormat,
) -> Found:
    import numpy as np

    rows = row_schema(run.transaction)
    inserts = values_of_source(collected, rows)
    if eligible.reads.takes_old_rows:
        pairs, updates = values_of_pairs(run.transaction, collected, pairs, eligible, table, rows)
    else:
        updates = inserts
    # The identity is the number of a collected row, which no query over the source can compute.
    identity = column_named(run.statement.spark, SOURCE_ROW)
    # Rows that are only inserted may match any number of times, and are not inserted then.
    may_repeat = form is LocalForm.INSERTS or run.statement.may_match_repeatedly
    scan = touched_files_of_pairs(run, candidates, identity, pairs.pairs, may_repeat=may_repeat)
    row_counts = pairs.row_counts_in(scan.touched)
    plan = (
        plan_files(run, scan, row_counts)
        if form is LocalForm.VECTORS
        else _all_rewritten(scan, row_counts)
    )
    _check_copies(plan.copied, table)
    is_inserted = ~pairs.is_matched & (collected.insert_clauses != NO_CLAUSE)
    inserted = np.flatnonzero(is_inserted)
    clauses = collected.insert_clauses[inserted]
    found = Found(pairs, scan, plan, updates, inserts, inserted, clauses, table)
    _check_new_rows(found)
    return found


def _check_new_rows(found: Found) -> None:
    """Raise NotRewritableError if the new rows may be too big, or if one must not be written.

    That is one that breaks a constraint, or of a partition that Spark must name.
    """
    import pyarrow as pa

    changes = found.scan.changed_on_driver(found.scan.touched)
    assert changes is not None, "the pairs are on the driver"
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
        scan: The touched files.
        row_counts: How many rows each of them has, as the file itself says.
    """
    import numpy as np

    copied = scan.touched.where(row_counts > np.array(scan.changed_by_file))
    return FilePlan(scan.touched.none(), scan.touched, copied, 0)


def _check_copies(files: FileList, table: TableFormat) -> None:
    """Raise NotRewritableError if Arrow may not copy one of these files."""

    def check(location: str) -> None:
        with table.storage.opened(location) as file:
            check_copyable(file, table.schema, new_calendar=table.new_calendar)

    for _ in in_threads(check, own_locations(files)):
        pass
