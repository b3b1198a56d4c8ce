"""The rows that WHEN NOT MATCHED clauses insert: source rows that no target row matches."""

from __future__ import annotations

import logging
import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.snapshot import FileList
from deltaweave.delta.target_plan import target_plan
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.candidates import candidate_files
from deltaweave.engine.source import SOURCE_ROW_ID, PreparedSource
from deltaweave.engine.source_keys import source_keys
from deltaweave.engine.touched_files import CLAUSE, NO_CLAUSE, SOURCE_ROW, TouchedFilesScan

logger = logging.getLogger(__name__)

# A file of inserted rows holds up to about this many bytes of source rows.
TARGET_FILE_BYTES = 128 * 1024 * 1024


def inserts_after_scan(
    transaction: Transaction, source: PreparedSource, scan: TouchedFilesScan
) -> DataFrame:
    """Inserted rows: the source rows that the scan found no match for."""
    merge = transaction.merge
    rows = source.rows
    if not source.is_materialized:
        # Row ids of rows that are computed anew mean nothing: match them anew, with the files
        # that hold the matches.
        if scan.num_matched_rows:
            target = target_plan(transaction, scan.matched, merge.condition_columns())
            rows = rows.join(target, merge.condition, "left_anti")
        return _inserted(merge, rows)
    if scan.num_matched_rows:
        matched = scan.pairs.select(SOURCE_ROW).filter(F.col(SOURCE_ROW).isNotNull())
        rows = rows.join(matched, F.col(SOURCE_ROW_ID) == F.col(SOURCE_ROW), "left_anti")
    # Without this, every partition of the source would leave a small file.
    files = math.ceil((source.size_in_bytes or 0) / TARGET_FILE_BYTES)
    return _inserted(merge, rows).coalesce(max(1, files))


def inserts_only(transaction: Transaction, source: PreparedSource) -> tuple[DataFrame, FileList]:
    """Inserted rows of a merge without other clauses: one left-anti join (document row M7).

    Returns:
        The rows, and the candidate files they were joined with.
    """
    merge = transaction.merge
    candidates = candidate_files(transaction, source, source_keys(merge, source))
    target = target_plan(transaction, candidates, merge.condition_columns())
    unmatched = source.rows.join(target, merge.condition, "left_anti")
    rows = _inserted(merge, unmatched)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeInsertsOnlyWhenNoMatchedClauses using leftanti join: output plan:\n%s",
            rows._jdf.queryExecution().toString(),
        )
    return rows, candidates


def _inserted(merge: ResolvedMerge, rows: DataFrame) -> DataFrame:
    """The values of the first insert clause whose condition holds; rows without one drop out."""
    inserts = merge.of_kind("not_matched")
    taken: Column = F.lit(NO_CLAUSE)
    for i, clause in reversed(list(enumerate(inserts))):
        taken = (
            F.lit(i) if clause.condition is None else F.when(clause.condition, i).otherwise(taken)
        )
    chosen = rows.withColumn(CLAUSE, taken).filter(F.col(CLAUSE) != NO_CLAUSE)
    output: list[Column] = []
    for place, name in enumerate(merge.evolved_schema.names):
        value = inserts[-1].values[place]
        for i, clause in reversed(list(enumerate(inserts[:-1]))):
            value = F.when(F.col(CLAUSE) == i, clause.values[place]).otherwise(value)
        output.append(value.alias(name))
    return chosen.select(*output)
