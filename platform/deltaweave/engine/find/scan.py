"""The scan for matches: the candidates' condition columns joined with the source.

Each row of its result is a pair (file, row, source row) with the clause that takes it.
"""

from __future__ import annotations

import logging

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import (
    aliased,
    column_named,
    constant,
    selected,
    translated,
    where_true,
)
from deltaweave.delta.log import is_spelled_as_it_is
from deltaweave.delta.scan import target_plan
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    INSERTABLE,
    NO_CLAUSE,
    SOURCE_ROW,
    SOURCE_ROW_PRESENT,
    TARGET_ROW_ID,
)
from deltaweave.engine.find.candidates import Candidates
from deltaweave.engine.find.pairs import Pairs, brought_to_driver
from deltaweave.engine.find.pairs_by_keys import pairs_by_keys
from deltaweave.engine.source import PreparedSource, within
from deltaweave.engine.statement import clause_taken

logger = logging.getLogger(__name__)


def scanned_pairs(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    identity: Column | None,
    *,
    with_row_index: bool,
) -> Pairs:
    """Return the pairs of the scan, kept where they are read more than once.

    Args:
        transaction: The merge's transaction.
        source: The prepared source.
        candidates: The files to scan, and the source's keys.
        identity: What identifies a source row, or None if nothing does.
        with_row_index: Whether `TARGET_ROW_ID` is the row index, or any unique number.
    """
    merge = transaction.merge
    spark = merge.spark
    joined = _joined(transaction, source, candidates, with_row_index=with_row_index)
    source_row = constant(spark, 0) if identity is None else identity
    source_row = where_true(spark, column_named(spark, SOURCE_ROW_PRESENT), source_row)
    query = selected(
        joined,
        [
            column_named(spark, FILE),
            column_named(spark, TARGET_ROW_ID),
            # A new name and attribute id, so that the pairs can be joined with the source again.
            aliased(source_row, SOURCE_ROW),
            aliased(clause_taken(merge), CLAUSE),
            *_insertable(source),
        ],
    )
    by_source = bool(merge.of_kind("not_matched_by_source"))
    if by_source:
        # Most rows of a table neither match nor change: they are no pairs.
        query = query.filter(F.col(SOURCE_ROW).isNotNull() | (F.col(CLAUSE) != NO_CLAUSE))
    found = pairs_by_keys(transaction, source, candidates, query)
    if found is not None:
        return found
    # Inserts, deletion vectors and rewriting in place read the pairs again.
    if not with_row_index and (identity is None or not merge.of_kind("not_matched")):
        return Pairs(query)
    with translated(merge.table, version=transaction.version):
        return _kept(query, source, candidates, by_source=by_source)


def _joined(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    *,
    with_row_index: bool,
) -> DataFrame:
    """Join the candidates' rows with the source rows that match them."""
    merge = transaction.merge
    target = target_plan(
        transaction,
        candidates.files,
        merge.scan_columns(),
        file_column=FILE,
        row_column=None if with_row_index else TARGET_ROW_ID,
        row_index_column=TARGET_ROW_ID if with_row_index else None,
    )
    by_source = bool(merge.of_kind("not_matched_by_source"))
    join_type = "left" if by_source else "inner"
    may_match = within(candidates.keys)
    if may_match is not None and not by_source:
        target = target.filter(may_match)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "findTouchedFiles using %s join:\n  source.output: %s\n  target.output: %s\n"
            "  condition: %s\n  candidate files: %d",
            join_type,
            source.rows.columns,
            target.columns,
            merge.condition_text,
            len(candidates.files),
        )
    return target.join(source.for_join(), merge.condition, join_type)


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
    if only_file is not None and not is_spelled_as_it_is(only_file):
        only_file = None
    pairs = brought_to_driver(query, at_most=at_most, only_file=only_file) if few else None
    return Pairs(query.persist()) if pairs is None else pairs


def _insertable(source: PreparedSource) -> list[Column]:
    """Return whether an insert clause would take the source row; no column if not asked for."""
    if source.insertable is None:
        return []
    # A pair that WHEN NOT MATCHED BY SOURCE clauses look at has no source row.
    return [(F.col(SOURCE_ROW_PRESENT).isNotNull() & source.insertable).alias(INSERTABLE)]
