"""Rows that a merge writes from the source alone.

These are the rows that WHEN NOT MATCHED clauses insert and, where their new values read no column
of the target (as with UPDATE SET *), the rows that it updates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.file_list import FileList
from deltaweave.delta.row_tracking import tracked_columns
from deltaweave.delta.target_plan import target_plan
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.candidates import find_candidates
from deltaweave.engine.pairs import CLAUSE, NO_CLAUSE, SOURCE_ROW
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.source_keys import within
from deltaweave.engine.touched_files import TouchedFilesScan
from deltaweave.identifiers import RESERVED_PREFIX

logger = logging.getLogger(__name__)

_VALUES = f"{RESERVED_PREFIX}values"

# A file of such rows holds up to about this many bytes of source rows.
TARGET_FILE_BYTES = 128 * 1024 * 1024
# A few are written where each has this many, which takes a core about a second.
MIN_FILE_BYTES = 4 * 1024 * 1024
_A_FEW = 4


def updates_from_source(transaction: Transaction, scan: TouchedFilesScan) -> list[int] | None:
    """The places of the update clauses that took rows, if none of them needs the target's rows.

    None where one does, for a value or for a row's id, or where the pairs do not tell the source's
    rows apart.
    """
    merge = transaction.merge
    took_rows = [i for i, count in scan.rows_by_clause.items() if count]
    updates = [i for i in took_rows if merge.clauses[i].action == "update"]
    if not updates:
        return updates
    if scan.source_identity is None or tracked_columns(transaction) is not None:
        return None
    clauses = [merge.clauses[i] for i in updates]
    # Rows that no source row matches are not the source's, even if they become constants.
    alone = all(each.kind == "matched" and merge.reads_source_alone(each) for each in clauses)
    return updates if alone else None


def may_insert(transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan) -> bool:
    """Whether the statement inserts, and not every source row is known to match."""
    if not transaction.merge.of_kind("not_matched"):
        return False
    num_matching = scan.pairs.num_source_rows if scan.source_identity is not None else None
    return num_matching is None or num_matching < source.num_rows


def rows_after_scan(
    transaction: Transaction,
    source: PreparedSource,
    scan: TouchedFilesScan,
    updates: Sequence[int] = (),
) -> DataFrame:
    """The rows to insert and, for the update clauses at these places, their new rows.

    Args:
        transaction: The merge's transaction.
        source: The prepared source.
        scan: What the scan for matches found.
        updates: Places of clauses that `updates_from_source` gave.
    """
    merge = transaction.merge
    rows, inserts, identity = source.rows, _inserts(merge), scan.source_identity
    if identity is None:
        # Nothing tells which rows the pairs mean: match them anew, with the files that hold the
        # matches.
        if scan.num_matched_rows:
            target = target_plan(transaction, scan.matched, merge.condition_columns())
            rows = rows.join(target, merge.condition, "left_anti")
        return _values(merge, rows.withColumn(CLAUSE, first_insert(merge)), inserts)
    if _takes_every_row_once(merge, source, scan, updates):
        return _values_of(merge, _in_few_files(rows, source), updates[0])
    rows = _in_few_files(_with_clause(merge, rows, scan, identity), source)
    return _values(merge, rows, [*inserts, *updates])


def _takes_every_row_once(
    merge: ResolvedMerge, source: PreparedSource, scan: TouchedFilesScan, updates: Sequence[int]
) -> bool:
    """Whether every source row gives one row, by the one update clause or in the same way.

    Then nothing of the pairs is needed to write them. It is seen where the pairs are at hand.
    """
    num_matching = scan.pairs.num_source_rows
    if len(updates) != 1 or num_matching is None:
        return False
    [update] = updates
    if not num_matching == scan.num_matched_pairs == scan.rows_by_clause[update]:
        return False
    if num_matching == source.num_rows:
        return True
    inserts = _inserts(merge)
    first = merge.clauses[inserts[0]] if inserts else None
    return (
        first is not None
        and first.condition is None
        and first.gives_same_values(merge.clauses[update])
    )


def _with_clause(
    merge: ResolvedMerge, rows: DataFrame, scan: TouchedFilesScan, identity: Column
) -> DataFrame:
    """Source rows with the place of the clause that takes each: by its pairs, or to insert it."""
    if not scan.num_matched_rows:
        return rows.withColumn(CLAUSE, first_insert(merge))
    how = "left" if _inserts(merge) else "inner"
    pairs = scan.matched_pairs(SOURCE_ROW, CLAUSE)
    rows = rows.join(pairs, identity == F.col(SOURCE_ROW), how)
    clause = F.when(F.col(SOURCE_ROW).isNotNull(), F.col(CLAUSE)).otherwise(first_insert(merge))
    return rows.withColumn(CLAUSE, clause)


def _in_few_files(rows: DataFrame, source: PreparedSource) -> DataFrame:
    """Source rows in as many partitions as files: each of the source's would leave a small one.

    Values come after this. Those of identity columns follow from the partition's number, of which a
    task that coalesces partitions would have several.
    """
    if source.size_in_bytes is None:
        return rows
    return rows.coalesce(_num_files(source.size_in_bytes, rows.sparkSession))


def _num_files(size_in_bytes: int, spark: SparkSession) -> int:
    """How many files hold the rows: a few, so that more cores than one are at work, but not small.

    More than a few only where each is full.
    """
    a_few = min(_A_FEW, spark.sparkContext.defaultParallelism, size_in_bytes // MIN_FILE_BYTES)
    return max(1, a_few, math.ceil(size_in_bytes / TARGET_FILE_BYTES))


def inserts_only(transaction: Transaction, source: PreparedSource) -> tuple[DataFrame, FileList]:
    """Inserted rows of a merge without other clauses: one left-anti join (document row M7).

    Returns:
        The rows, and the candidate files they were joined with.
    """
    merge = transaction.merge
    found = find_candidates(transaction, source)
    candidates, unmatched = found.files, source.rows
    if len(candidates):
        target = target_plan(transaction, candidates, merge.condition_columns())
        may_match = within(found.keys)
        if may_match is not None:
            target = target.filter(may_match)
        unmatched = unmatched.join(target, merge.condition, "left_anti")
    rows = _values(merge, unmatched.withColumn(CLAUSE, first_insert(merge)), _inserts(merge))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeInsertsOnlyWhenNoMatchedClauses using leftanti join: output plan:\n%s",
            rows._jdf.queryExecution().toString(),
        )
    return rows, candidates


def _inserts(merge: ResolvedMerge) -> list[int]:
    return [i for i, clause in enumerate(merge.clauses) if clause.action == "insert"]


def first_insert(merge: ResolvedMerge) -> Column:
    """The place of the first insert clause that takes a source row without a match, or -1."""
    taken: Column = F.lit(NO_CLAUSE)
    for i in reversed(_inserts(merge)):
        condition = merge.clauses[i].condition
        taken = F.lit(i) if condition is None else F.when(condition, i).otherwise(taken)
    return taken


def _values(merge: ResolvedMerge, rows: DataFrame, clauses: Sequence[int]) -> DataFrame:
    """The rows that one of these clauses takes, with the values that it gives them."""
    *others, last = clauses
    others = [i for i in others if not merge.clauses[i].gives_same_values(merge.clauses[last])]
    chosen = rows.filter(F.col(CLAUSE).isin(list(clauses)))
    if not others:
        return _values_of(merge, chosen, last)
    output: list[Column] = []
    for place, value in enumerate(merge.clauses[last].values):
        for i in others:
            value = F.when(F.col(CLAUSE) == i, merge.clauses[i].values[place]).otherwise(value)
        output.append(value)
    return chosen.select(*output).toDF(*merge.evolved_schema.names)


def _values_of(merge: ResolvedMerge, rows: DataFrame, clause: int) -> DataFrame:
    """The values that a clause gives the rows, as columns of the evolved target schema."""
    values = rows.select(merge.clauses[clause].row().alias(_VALUES)).select(f"{_VALUES}.*")
    return values.toDF(*merge.evolved_schema.names)
