"""The Spark backend: a scan finds the matches, and the strategy writes by Spark.

The scan joins the candidates' condition columns with the source. Each row of its result is a pair
(file, row, source row) with the clause that takes it. With a local master, the driver may look the
pairs up instead.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import (
    aliased,
    column_named,
    constant,
    selected,
    suppress_cleanup_errors,
    value_where,
)
from deltaweave.delta.log import has_plain_spelling
from deltaweave.delta.scan import RowColumns, target_plan
from deltaweave.engine import limits
from deltaweave.engine.backends.base import scan_phase
from deltaweave.engine.backends.local import pairs_by_keys
from deltaweave.engine.clauses import (
    CLAUSE,
    FILE,
    INSERTABLE,
    NO_CLAUSE,
    SOURCE_ROW,
    SOURCE_ROW_PRESENT,
    TARGET_ROW_ID,
    clause_taken,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import (
    Pairs,
    TouchedFilesScan,
    brought_to_driver,
    nothing_touched,
    touched_files_of_pairs,
)
from deltaweave.engine.prune import Candidates, find_candidates
from deltaweave.engine.source import PreparedSource, row_identity, within
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import SparkScan, Strategy, insert_phase, insert_unmatched

logger = logging.getLogger(__name__)


def write_by_spark(run: MergeRun, strategy: Strategy, known: Candidates | None) -> Staged:
    """Find and write the changes by Spark's executors; write only inserts if no file is touched.

    Args:
        known: The candidate files, if they were found before.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    if not strategy.needs_scan:
        with insert_phase(run.phases):
            return strategy.write(run, SparkScan(known or find_candidates(run)))
    with scan_phase(run.phases):
        found = known or find_candidates(run)
        scan = find_touched_files(run, found, with_row_index=strategy.needs_row_index)
    try:
        if not len(scan.touched):
            return insert_unmatched(run, scan)
        staged = strategy.write(run, SparkScan(found, scan))
        return staged if scan.pairs.on_driver is None else replace(staged, scan=scan)
    finally:
        with suppress_cleanup_errors("the pairs"):
            scan.pairs.unpersist()


def find_touched_files(
    run: MergeRun, candidates: Candidates, *, with_row_index: bool
) -> TouchedFilesScan:
    """Scan the candidate files for matches and changed rows.

    The caller unpersists `pairs`. With `with_row_index`, `TARGET_ROW_ID` is the row index.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    identity = row_identity(run.source, candidates.keys)
    if not len(candidates.files):
        return nothing_touched(run, candidates, identity)
    pairs = _scanned_pairs(run, candidates, identity, with_row_index=with_row_index)
    may_repeat = run.statement.may_match_repeatedly
    return touched_files_of_pairs(run, candidates, identity, pairs, may_repeat=may_repeat)


def _scanned_pairs(
    run: MergeRun,
    candidates: Candidates,
    identity: Column | None,
    *,
    with_row_index: bool,
) -> Pairs:
    """Return the pairs of the scan, kept where they are read more than once.

    Args:
        candidates: The files to scan, and the source's keys.
        identity: The column that identifies a source row, or None.
        with_row_index: Whether `TARGET_ROW_ID` is the row index, or any unique number.
    """
    merge = run.statement
    spark = merge.spark
    joined = _join_candidates(run, candidates, with_row_index=with_row_index)
    source_row = constant(spark, 0) if identity is None else identity
    source_row = value_where(spark, column_named(spark, SOURCE_ROW_PRESENT), source_row)
    query = selected(
        joined,
        [
            column_named(spark, FILE),
            column_named(spark, TARGET_ROW_ID),
            # A new name and attribute id, so that the pairs can be joined with the source again.
            aliased(source_row, SOURCE_ROW),
            aliased(clause_taken(merge), CLAUSE),
            *_insertable(run.source),
        ],
    )
    by_source = bool(merge.of_kind("not_matched_by_source"))
    if by_source:
        # Most rows of a table neither match nor change: they are no pairs.
        query = query.filter(F.col(SOURCE_ROW).isNotNull() | (F.col(CLAUSE) != NO_CLAUSE))
    found = pairs_by_keys(run, candidates, query)
    if found is not None:
        return found
    # Inserts, deletion vectors and rewriting in place read the pairs again.
    if not with_row_index and (identity is None or not merge.of_kind("not_matched")):
        return Pairs(query)
    with run.transaction.translated():
        return _kept(query, run.source, candidates, by_source=by_source)


def _join_candidates(
    run: MergeRun,
    candidates: Candidates,
    *,
    with_row_index: bool,
) -> DataFrame:
    """Join the candidates' rows with the source rows that match them."""
    merge = run.statement
    added = RowColumns(
        file=FILE,
        row=None if with_row_index else TARGET_ROW_ID,
        row_index=TARGET_ROW_ID if with_row_index else None,
    )
    target = target_plan(run.transaction, candidates.files, merge.scan_columns(), added=added)
    by_source = bool(merge.of_kind("not_matched_by_source"))
    join_type = "left" if by_source else "inner"
    may_match = within(candidates.keys, merge.spark)
    if may_match is not None and not by_source:
        target = target.filter(may_match)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "findTouchedFiles using %s join:\n  source.output: %s\n  target.output: %s\n"
            "  condition: %s\n  candidate files: %d",
            join_type,
            run.source.rows.columns,
            target.columns,
            merge.condition_text,
            len(candidates.files),
        )
    return target.join(run.source.for_join(), merge.condition, join_type)


def _kept(
    query: DataFrame, source: PreparedSource, candidates: Candidates, *, by_source: bool
) -> Pairs:
    """Keep pairs so that they can be read several times: on the driver if few are expected."""
    at_most = candidates.files.num_records if candidates.keys.are_unique else None
    few = source.is_counted and source.num_rows <= limits.MAX_PAIRS_ON_DRIVER
    if by_source:  # most rows of the candidates may be pairs without a source row
        few = at_most is not None and at_most <= limits.MAX_PAIRS_ON_DRIVER
    locations = candidates.files.rows["location"].to_pylist()
    only_file = locations[0] if len(locations) == 1 else None
    if only_file is not None and not has_plain_spelling(only_file):
        only_file = None
    pairs = brought_to_driver(query, at_most=at_most, only_file=only_file) if few else None
    return Pairs(query.persist()) if pairs is None else pairs


def _insertable(source: PreparedSource) -> list[Column]:
    """Return whether an insert clause would take the source row; no column if not asked for."""
    if source.insertable is None:
        return []
    # A pair that WHEN NOT MATCHED BY SOURCE clauses look at has no source row.
    return [(F.col(SOURCE_ROW_PRESENT).isNotNull() & source.insertable).alias(INSERTABLE)]
