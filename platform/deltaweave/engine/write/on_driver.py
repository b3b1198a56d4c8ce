"""What changes in a small merge on the driver: one job at most evaluates the source.

pyarrow does the rest. Changed rows are marked in their files, or their files are rewritten row by
row in their order, as the strategies on Spark do. Before anything is written, any doubt leaves the
merge to them. `driver_files` writes what was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import row_schema
from deltaweave.delta.jvm import column_named
from deltaweave.engine.columns import CLAUSE, FILE, NEW_ROW, NO_CLAUSE, SOURCE_ROW
from deltaweave.engine.find import (
    Candidates,
    DriverPairs,
    PartitionColumns,
    TouchedFilesScan,
    candidate_files,
    files_by_conditions,
    pairs_on_driver,
    touched_files_of_pairs,
)
from deltaweave.engine.local_attempt import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.source import CollectedSource, PreparedSource, collect_source
from deltaweave.engine.tasks import NotRewritableError, TableFormat
from deltaweave.engine.write.driver_choice import (
    DriverChoice,
    check_copies,
    why_not_these_files,
)
from deltaweave.engine.write.driver_target import values_of_pairs
from deltaweave.engine.write.driver_values import NewValues, values_of_source
from deltaweave.engine.write.files_format import table_format
from deltaweave.engine.write.mark_or_rewrite import (
    TouchedFileFates,
    all_rewritten,
    mark_or_rewrite,
)
from deltaweave.engine.write.partition_parts import check_partitions
from deltaweave.engine.write.strategy import Strategy

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class Found:
    """What is known before anything is written.

    Attributes:
        candidates: The candidate files, and the source's keys.
        pairs: The pairs.
        scan: What the pairs show about the files.
        fates: What becomes of the touched files.
        updates: The values that clauses assign to pairs, by `NEW_ROW`.
        inserts: The values that clauses assign to source rows, by their numbers.
        inserted: The numbers of the source rows that are inserted.
        insert_clauses: The clauses that insert them, by their indexes.
        table: What new files look like.
    """

    candidates: Candidates
    pairs: DriverPairs
    scan: TouchedFilesScan
    fates: TouchedFileFates
    updates: NewValues
    inserts: NewValues
    inserted: numpy.ndarray
    insert_clauses: numpy.ndarray
    table: TableFormat

    @cached_property
    def inserted_rows(self) -> pyarrow.Table:
        """The rows that are inserted, in the order of the source."""
        return self.inserts.rows(self.inserted, self.insert_clauses)

    @property
    def partitioned_by(self) -> PartitionColumns:
        """The table's partition columns."""
        return self.pairs.partitioned_by


@dataclass(frozen=True)
class Tried:
    """How far the driver came.

    Attributes:
        candidates: The candidate files, if they are known.
        found: What is to be written; None if that is left to Spark.
    """

    candidates: Candidates | None = None
    found: Found | None = None


def find_on_driver(
    transaction: Transaction,
    source: PreparedSource,
    driver: DriverChoice,
    strategy: Strategy,
) -> Tried:
    """Find what changes, if the driver can do that. Nothing is written.

    Args:
        transaction: The merge's transaction.
        source: The source.
        driver: What `choose_driver` found.
        strategy: The strategy that the merge starts with.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    merge, equalities = transaction.merge, [each.equality for each in driver.conjuncts]
    collected = attempted(
        merge.table,
        SPARK_DOES_THE_MERGE,
        lambda: collect_source(merge, source, equalities, driver.conditions, driver.reads),
    )
    if collected is None:
        return Tried()
    files = files_by_conditions(transaction)
    chosen = candidate_files(transaction, source, collected.keys, files)
    candidates = Candidates(chosen, files, collected.keys)

    def find() -> Found:
        why_not = why_not_these_files(chosen)
        if why_not is not None:
            raise NotRewritableError(why_not)
        table = table_format(transaction, driver.written)
        pairs = pairs_on_driver(
            transaction,
            chosen,
            collected,
            driver.conjuncts,
            PartitionColumns.of(transaction, driver.partitioned_by),
            with_insertable=source.insertable is not None,
            storage=table.storage,
            new_calendar=table.new_calendar,
        )
        return _found(transaction, source, candidates, collected, pairs, driver, strategy, table)

    return Tried(candidates, attempted(merge.table, SPARK_DOES_THE_MERGE, find))


def _found(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    collected: CollectedSource,
    pairs: DriverPairs,
    driver: DriverChoice,
    strategy: Strategy,
    table: TableFormat,
) -> Found:
    import numpy as np

    rows = row_schema(transaction)
    inserts = values_of_source(collected, rows)
    if driver.reads.takes_old_rows:
        pairs, updates = values_of_pairs(transaction, collected, pairs, driver, table, rows)
    else:
        updates = inserts
    # The identity is the number of a collected row, which no query over the source can compute.
    identity = column_named(transaction.merge.spark, SOURCE_ROW)
    # Rows that are only inserted may match any number of times, and are not inserted then.
    may_repeat = strategy is Strategy.INSERT_ONLY or transaction.merge.may_match_repeatedly
    scan = touched_files_of_pairs(
        transaction, source, candidates, identity, pairs.pairs, may_repeat=may_repeat
    )
    row_counts = pairs.row_counts_in(scan.touched)
    if strategy is Strategy.DELETION_VECTORS:
        fates = mark_or_rewrite(transaction, scan, row_counts)
    else:
        fates = all_rewritten(scan, row_counts)
    check_copies(fates.copied, table)
    is_inserted = ~pairs.is_matched & (collected.insert_clauses != NO_CLAUSE)
    inserted = np.flatnonzero(is_inserted)
    clauses = collected.insert_clauses[inserted]
    found = Found(candidates, pairs, scan, fates, updates, inserts, inserted, clauses, table)
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
