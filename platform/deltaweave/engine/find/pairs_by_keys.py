"""Pairs of a merge that Spark writes, found on the driver by the source's collected keys.

Spark would read the same key columns, shuffle them and the source by their keys, and sort both. It
serves sources of millions of rows and a local master, whose driver has all cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DateType, IntegralType, StructType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    Verdict,
    assumes_new_calendar,
    partitioning,
    reading_of,
    table_columns,
    written_columns,
)
from deltaweave.delta.log import is_spelled_as_it_is
from deltaweave.delta.statement import equalities_alone
from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, FILE, SOURCE_ROW, TARGET_ROW_ID
from deltaweave.engine.find.candidates import Candidates
from deltaweave.engine.find.driver_keys import Compared, compared
from deltaweave.engine.find.driver_matches import Matches, matches_on_driver, own_locations
from deltaweave.engine.find.driver_partitions import PartitionColumns
from deltaweave.engine.find.driver_setting import ON_DRIVER, setting_on_driver
from deltaweave.engine.find.driver_size import is_local
from deltaweave.engine.find.pairs import Pairs
from deltaweave.engine.local_attempt import attempted
from deltaweave.engine.source import PreparedSource, SourceKeys
from deltaweave.engine.storages import storage_of
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import pyarrow

_WHOLE_NUMBERS = (IntegralType, DateType)


def pairs_by_keys(
    transaction: Transaction, source: PreparedSource, candidates: Candidates, query: DataFrame
) -> Pairs | None:
    """Find the pairs of the candidate files by keys; None if Spark has to find them.

    `FILE` is a dictionary, as each file has many rows; `TARGET_ROW_ID` is the row index.

    Args:
        transaction: The merge's transaction.
        source: The source.
        candidates: The files to read, and the source's keys.
        query: The query that gives the pairs, which is not run.
    """
    attempt = partial(_pairs_by_keys, transaction, source, candidates, query)
    return attempted(transaction.merge.table, "Spark finds the pairs", attempt)


def _pairs_by_keys(
    transaction: Transaction, source: PreparedSource, candidates: Candidates, query: DataFrame
) -> Pairs:
    import numpy as np
    import pyarrow as pa

    conjuncts = compared_by_keys(transaction, source, candidates.keys)
    if isinstance(conjuncts, Verdict):
        raise NotRewritableError(conjuncts.reason)
    storage = storage_of(transaction.table)
    if storage is None:
        raise NotRewritableError("Arrow does not see the table's store")
    # Rows that Spark reads are compared with these names.
    if not all(map(is_spelled_as_it_is, own_locations(candidates.files))):
        raise NotRewritableError("the path of a file may be spelled in several ways")
    matches = matches_on_driver(
        transaction,
        candidates.files,
        candidates.keys,
        conjuncts,
        _partition_keys(transaction, conjuncts),
        storage=storage,
        new_calendar=assumes_new_calendar(transaction.merge.spark),
        at_most=limits.MAX_PAIRS_BY_KEYS,
        numbered=True,
    )
    source_rows = _source_rows(candidates.keys, query.schema[SOURCE_ROW].dataType)
    is_matched = np.zeros(len(source_rows), dtype=bool)
    is_matched[matches.source_rows] = True
    others = source_rows.filter(pa.array(~is_matched))
    return Pairs(query, _pairs(transaction, matches, source_rows), unmatched=others)


def _partition_keys(transaction: Transaction, conjuncts: Sequence[Compared]) -> PartitionColumns:
    """Return the partition columns among the keys."""
    columns = []
    for each in conjuncts:
        if each.column.name in transaction.partition_columns:
            column = partitioning(each.column.column, reading_of(transaction))
            if isinstance(column, Verdict):
                raise NotRewritableError(column.reason)
            columns.append(column)
    return PartitionColumns.of(transaction, columns)


def compared_by_keys(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys
) -> list[Compared] | Verdict:
    """Return the equalities by which the driver finds the pairs.

    If Spark has to find them, as far as is known before reading, return why.
    """
    why_not = _why_not_by_keys(transaction, source, keys)
    if why_not is not None:
        return Verdict(False, why_not)
    written = written_columns(transaction)
    if isinstance(written, Verdict):
        return written
    return compared(transaction, equalities_alone(transaction.merge) or ())


def _why_not_by_keys(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys
) -> str | None:
    merge, conjuncts = transaction.merge, equalities_alone(transaction.merge)
    setting = setting_on_driver(merge.spark)
    if setting not in ("auto", "true"):
        return f"{ON_DRIVER} is {setting}"
    if not is_local(str(merge.spark.sparkContext.master)):
        return "executors have cores of their own"
    matched = merge.of_kind("matched")
    if not matched or matched[0].condition is not None or merge.of_kind("not_matched_by_source"):
        return "which clause takes a pair depends on its rows"
    if merge.skips_unchanged:
        return "updates that change nothing are skipped"
    if source.insertable is not None:
        return "inserts have conditions"
    if not conjuncts or not keys.are_unique:
        return "the source's keys are not known, or not unique"
    if source.is_materialized and keys.source_rows is None:
        return "the source's rows are numbered"
    kinds = {column.name: column.dataType for column in table_columns(transaction)}
    for equality in conjuncts:
        if not isinstance(kinds.get(equality.path[0]), _WHOLE_NUMBERS):
            return f"{equality.path[0]!r} is no column of whole numbers"
    return None


def _pairs(transaction: Transaction, matches: Matches, source_rows: pyarrow.Array) -> pyarrow.Table:
    import pyarrow as pa

    merge = transaction.merge
    first = merge.clauses.index(merge.of_kind("matched")[0])
    number = len(matches.files)
    return pa.table(
        {
            FILE: pa.DictionaryArray.from_arrays(
                pa.array(matches.files, pa.int32()), pa.array(matches.locations, pa.string())
            ),
            TARGET_ROW_ID: pa.array(matches.rows, pa.int64()),
            SOURCE_ROW: source_rows.take(pa.array(matches.source_rows)),
            CLAUSE: pa.repeat(pa.scalar(first, pa.int32()), number),
        }
    )


def _source_rows(keys: SourceKeys, kind: DataType) -> pyarrow.Array:
    """Return what identifies each row of the source, as `row_identity` defines it."""
    import pyarrow as pa

    if keys.source_rows is not None:
        return keys.source_rows.combine_chunks()
    assert keys.rows is not None, "they are collected"
    columns = [column.combine_chunks() for column in keys.rows.columns]
    if not isinstance(kind, StructType):
        return columns[0]
    fields = [
        pa.field(field.name, column.type, nullable=field.nullable)
        for field, column in zip(kind.fields, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=fields)
