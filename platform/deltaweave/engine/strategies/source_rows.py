"""Rows that a merge writes from the source alone.

These are inserted rows, and updated rows whose new values read no column of the target, as with
UPDATE SET *.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import plan_text
from deltaweave.delta.scan import target_plan, tracked_columns
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.clauses import asked_after_join, first_insert, insert_indexes
from deltaweave.engine.columns import CLAUSE, CLAUSE_VALUES, SOURCE_ROW
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.prune import Candidates, find_candidates
from deltaweave.engine.source import PreparedSource, within

logger = logging.getLogger(__name__)


def updates_from_source(
    transaction: Transaction, scan: TouchedFilesScan, *, with_row_ids: bool = True
) -> list[int] | None:
    """Return the indexes of the update clauses that took rows, if none needs the target's rows.

    None if one needs them for a value or, unless the caller has them, for a row id; or if nothing
    identifies source rows.
    """
    merge = transaction.merge
    took_rows = [i for i, count in scan.rows_by_clause.items() if count]
    updates = [i for i in took_rows if merge.clauses[i].action == "update"]
    if not updates:
        return updates
    if scan.source_identity is None:
        return None
    if with_row_ids and tracked_columns(transaction) is not None:
        return None
    clauses = [merge.clauses[i] for i in updates]
    # WHEN NOT MATCHED BY SOURCE updates rows that are not in the source, even to constants.
    alone = all(each.kind == "matched" and merge.reads_source_alone(each) for each in clauses)
    return updates if alone else None


def may_insert(run: MergeRun, scan: TouchedFilesScan) -> bool:
    """Return whether the statement inserts, and not every source row is known to match."""
    if not run.statement.of_kind("not_matched"):
        return False
    num_matching = scan.pairs.num_source_rows if scan.source_identity is not None else None
    return num_matching is None or num_matching < run.source.num_rows


def rows_after_scan(
    run: MergeRun,
    scan: TouchedFilesScan,
    updates: Sequence[int] = (),
) -> DataFrame:
    """Return the rows to insert and the new rows of the update clauses at these indexes.

    Args:
        updates: Indexes of the clauses, from `updates_from_source`.
    """
    merge = run.statement
    rows, inserts, identity = run.source.rows, insert_indexes(merge), scan.source_identity
    if identity is None:
        # Without an identity, pairs do not show which rows match: they are matched again, with the
        # files that hold matches.
        if scan.num_matched_rows:
            target = target_plan(run.transaction, scan.matched, merge.condition_columns())
            rows = rows.join(target, merge.condition, "left_anti")
        return _rows_taken(
            merge, rows.withColumn(CLAUSE, asked_after_join(merge, first_insert(merge))), inserts
        )
    if _takes_every_row_once(merge, run.source, scan, updates):
        return _values_of(merge, _in_few_files(rows, run.source), updates[0])
    rows = _in_few_files(_with_clause(merge, rows, scan, identity, updates), run.source)
    return _rows_taken(merge, rows, [*inserts, *updates])


def _takes_every_row_once(
    merge: ResolvedMerge, source: PreparedSource, scan: TouchedFilesScan, updates: Sequence[int]
) -> bool:
    """Return whether every source row gives one row, with the values of the one update clause.

    The source is then written without a join with the pairs. It is known only if the pairs are on
    the driver.
    """
    num_matching = scan.pairs.num_source_rows
    if len(updates) != 1 or num_matching is None:
        return False
    [update] = updates
    if not num_matching == scan.num_matched_pairs == scan.rows_by_clause[update]:
        return False
    if num_matching == source.num_rows:
        return True
    inserts = insert_indexes(merge)
    first = merge.clauses[inserts[0]] if inserts else None
    return (
        first is not None
        and first.condition is None
        and first.gives_same_values(merge.clauses[update])
    )


def _with_clause(
    merge: ResolvedMerge,
    rows: DataFrame,
    scan: TouchedFilesScan,
    identity: Column,
    updates: Sequence[int],
) -> DataFrame:
    """Add to source rows the clause that takes each: that of its pairs, or an insert clause."""
    if not scan.num_matched_rows:
        return rows.withColumn(CLAUSE, first_insert(merge))
    new = None if updates else scan.pairs.few_unmatched()
    if new is not None:
        # A key of a new row may be null.
        rows = rows.join(F.broadcast(new), identity.eqNullSafe(F.col(SOURCE_ROW)), "left_semi")
        return rows.withColumn(CLAUSE, asked_after_join(merge, first_insert(merge)))
    how = "left" if insert_indexes(merge) else "inner"
    pairs = scan.matched_pairs(SOURCE_ROW, CLAUSE)
    rows = rows.join(pairs, identity == F.col(SOURCE_ROW), how)
    clause = F.when(F.col(SOURCE_ROW).isNotNull(), F.col(CLAUSE)).otherwise(first_insert(merge))
    return rows.withColumn(CLAUSE, clause)


def _in_few_files(rows: DataFrame, source: PreparedSource) -> DataFrame:
    """Repartition source rows to the number of new files, as each partition becomes a file.

    Values must be computed after this: those of identity columns depend on the partition's number,
    and a task that coalesces partitions would see several.
    """
    size = source.decoded_bytes
    if size is None or not source.is_materialized:
        return rows
    return rows.coalesce(_num_files(size, rows.sparkSession))


def _num_files(size_in_bytes: int, spark: SparkSession) -> int:
    """Return how many files to write: enough for several cores, but no small ones.

    More files are written only if each of them is full.
    """
    cores = spark.sparkContext.defaultParallelism
    small = min(limits.MAX_SMALL_FILES, cores, size_in_bytes // limits.MIN_FILE_BYTES)
    return max(1, small, math.ceil(size_in_bytes / limits.TARGET_FILE_BYTES))


@dataclass(frozen=True)
class Inserts:
    """The inserted rows of a merge that only inserts.

    Attributes:
        found: The candidate files with which the source was joined.
    """

    rows: DataFrame
    found: Candidates


def inserts_only(run: MergeRun, known: Candidates | None) -> Inserts:
    """Return the inserted rows of a merge without other clauses, by one left anti join."""
    merge = run.statement
    found = find_candidates(run) if known is None else known
    candidates, unmatched = found.files, run.source.rows
    if len(candidates):
        target = target_plan(run.transaction, candidates, merge.condition_columns())
        may_match = within(found.keys, merge.spark)
        if may_match is not None:
            target = target.filter(may_match)
        unmatched = unmatched.join(target, merge.condition, "left_anti")
    inserts = insert_indexes(merge)
    # With one clause, Delta evaluates its condition before the join, for every source row.
    clause = (
        first_insert(merge) if len(inserts) == 1 else asked_after_join(merge, first_insert(merge))
    )
    rows = _rows_taken(merge, unmatched.withColumn(CLAUSE, clause), inserts)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeInsertsOnlyWhenNoMatchedClauses using leftanti join: output plan:\n%s",
            plan_text(rows),
        )
    return Inserts(rows, found)


def _rows_taken(merge: ResolvedMerge, rows: DataFrame, clauses: Sequence[int]) -> DataFrame:
    """Return the rows that one of these clauses takes, with the values that it assigns."""
    *others, last = clauses
    others = [i for i in others if not merge.clauses[i].gives_same_values(merge.clauses[last])]
    chosen = rows.filter(F.col(CLAUSE).isin(list(clauses)))
    if not others:
        return _values_of(merge, chosen, last)
    output: list[Column] = []
    for index, value in enumerate(merge.clauses[last].values):
        for i in others:
            value = F.when(F.col(CLAUSE) == i, merge.clauses[i].values[index]).otherwise(value)
        output.append(value)
    return chosen.select(*output).toDF(*merge.evolved_schema.names)


def _values_of(merge: ResolvedMerge, rows: DataFrame, clause: int) -> DataFrame:
    """Return the values that a clause assigns, as columns of the evolved target schema."""
    values = rows.select(merge.clauses[clause].row().alias(CLAUSE_VALUES)).select(
        f"{CLAUSE_VALUES}.*"
    )
    return values.toDF(*merge.evolved_schema.names)
