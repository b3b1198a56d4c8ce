"""Make pairs of matches that were found on the driver.

The local backend has the source's rows, with their clauses. For a merge that Spark writes, the
source's collected keys find the pairs: Spark would read the same key columns, shuffle them and the
source by their keys, and sort both. That serves sources of millions of rows and a local master,
whose driver has all cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DateType, IntegralType, StructType

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    assumes_new_calendar,
    partitioning,
    reading_of,
    table_columns,
    written_columns,
)
from deltaweave.delta.jvm import has_local_master
from deltaweave.delta.log import FileList, has_plain_spelling
from deltaweave.delta.statement import equalities_alone
from deltaweave.engine import limits
from deltaweave.engine.attempts import attempted, storage_of
from deltaweave.engine.backends.base import DeclinedError, allowed, require
from deltaweave.engine.backends.local.keys import Compared, compared
from deltaweave.engine.backends.local.matches import KeySearch, Matches, name_of, own_locations
from deltaweave.engine.backends.local.partitions import PartitionColumns, PartitionValues
from deltaweave.engine.clauses import (
    CLAUSE,
    FILE,
    INSERTABLE,
    NEW_ROW,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import Pairs
from deltaweave.engine.prune import Candidates
from deltaweave.engine.source import CollectedSource, SourceKeys
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import numpy
    import pyarrow


_WHOLE_NUMBERS = (IntegralType, DateType)


@dataclass(frozen=True)
class LocalPairs:
    """Pairs of matching rows, found by pyarrow.

    Attributes:
        pairs: The pairs, in the order of files and rows. `SOURCE_ROW` is the number of the row in
            the `CollectedSource`, and so is `NEW_ROW`; `TARGET_ROW_ID` is the row's index in its
            file.
        is_matched: For each source row, whether it is in a pair.
        row_counts: For each file with pairs, as `FILE` names it, the number of its rows that are
            not marked as deleted, as the file itself says.
        marked: For each file with pairs, as `FILE` names it, the indexes of the rows that were
            marked as deleted before; files without such rows are missing.
        partitions: The partition of each candidate file, as `FILE` names it.
    """

    pairs: Pairs
    is_matched: numpy.ndarray
    row_counts: Mapping[str, int]
    marked: Mapping[str, numpy.ndarray]
    partitioned_by: PartitionColumns
    partitions: Mapping[str, PartitionValues]

    def row_counts_in(self, touched: FileList) -> numpy.ndarray:
        """Return the number of rows in files with pairs, in their order, as the files record it."""
        import numpy as np

        names = [name_of(location) for location in touched.rows["location"].to_pylist()]
        return np.array([self.row_counts[name] for name in names], dtype=np.int64)


def local_pairs(search: KeySearch, source: CollectedSource, *, with_insertable: bool) -> LocalPairs:
    """Find the pairs in the candidate files.

    Args:
        search: The files, and the keys of `source`.
        with_insertable: Whether the pairs have `INSERTABLE`.

    Raises:
        NotRewritableError: Spark must find the pairs.
        OSError, pyarrow.ArrowException: A file could not be read.
    """
    import numpy as np
    import pyarrow as pa

    matches = search.matches()
    names = [name_of(location) for location in matches.locations]
    numbers, source_rows = matches.files, matches.source_rows
    of_pairs = {
        FILE: pa.array(names, pa.string()).take(pa.array(numbers)),
        TARGET_ROW_ID: pa.array(matches.rows),
        SOURCE_ROW: pa.array(source_rows),
        NEW_ROW: pa.array(source_rows),
        CLAUSE: pa.array(source.clauses[source_rows], pa.int32()),
    }
    if with_insertable:
        of_pairs[INSERTABLE] = pa.array(source.insert_clauses[source_rows] != NO_CLAUSE)
    is_matched = np.zeros(source.rows.num_rows, dtype=bool)
    is_matched[source_rows] = True
    pairs = Pairs(None, pa.table(of_pairs), search.transaction.merge.spark)
    marked = matches.marked
    row_counts = {
        names[i]: matches.row_counts[i] - len(marked.get(i, ())) for i in np.unique(numbers)
    }
    of_files = {names[i]: indexes for i, indexes in marked.items()}
    of_names = dict(zip(names, matches.partitions, strict=True))
    return LocalPairs(pairs, is_matched, row_counts, of_files, search.partitioned_by, of_names)


def by_file(changes: pyarrow.Table) -> dict[str, pyarrow.Table]:
    """Split the pairs by file, as `FILE` names it; those of a file are one after the other."""
    import numpy as np

    files = changes[FILE].combine_chunks().dictionary_encode()
    assert (np.diff(files.indices.to_numpy()) >= 0).all(), "pairs are in the order of files"
    bounds = np.searchsorted(files.indices.to_numpy(), np.arange(len(files.dictionary) + 1))
    return {
        name: changes.slice(bounds[i], bounds[i + 1] - bounds[i])
        for i, name in enumerate(files.dictionary.to_pylist())
    }


def pairs_by_keys(run: MergeRun, candidates: Candidates, query: DataFrame) -> Pairs | None:
    """Find the pairs of the candidate files by keys; None if Spark has to find them.

    `FILE` is a dictionary, as each file has many rows; `TARGET_ROW_ID` is the row index.

    Args:
        candidates: The files to read, and the source's keys.
        query: The query that gives the pairs, which is not run.
    """
    attempt = partial(_pairs_by_keys, run, candidates, query)
    return attempted(run.statement.table, "Spark finds the pairs", attempt)


def _pairs_by_keys(run: MergeRun, candidates: Candidates, query: DataFrame) -> Pairs:
    import numpy as np
    import pyarrow as pa

    conjuncts = _compared_by_keys(run, candidates.keys)
    storage = storage_of(run.transaction.table)
    if storage is None:
        raise NotRewritableError("Arrow does not see the table's store")
    # Rows that Spark reads are compared with these names.
    if not all(map(has_plain_spelling, own_locations(candidates.files))):
        raise NotRewritableError("the path of a file may be spelled in several ways")
    matches = KeySearch(
        run.transaction,
        candidates.files,
        candidates.keys,
        conjuncts,
        partitioned_by=_partition_keys(run.transaction, conjuncts),
        storage=storage,
        new_calendar=assumes_new_calendar(run.statement.spark),
        at_most=limits.MAX_PAIRS_BY_KEYS,
        numbered=True,
    ).matches()
    source_rows = _source_rows(candidates.keys, query.schema[SOURCE_ROW].dataType)
    is_matched = np.zeros(len(source_rows), dtype=bool)
    is_matched[matches.source_rows] = True
    others = source_rows.filter(pa.array(~is_matched))
    return Pairs(query, _pairs(run.transaction, matches, source_rows), unmatched=others)


def _partition_keys(transaction: Transaction, conjuncts: Sequence[Compared]) -> PartitionColumns:
    """Return the partition columns among the keys."""
    columns = [
        allowed(partitioning(each.column.column, reading_of(transaction)))
        for each in conjuncts
        if each.column.name in transaction.partition_columns
    ]
    return PartitionColumns.of(transaction, columns)


def may_find_by_keys(run: MergeRun, keys: SourceKeys) -> Verdict:
    """Return whether the driver finds the pairs, as far as is known before reading."""
    try:
        _compared_by_keys(run, keys)
    except DeclinedError as declined:
        return no(str(declined))
    return YES


def _compared_by_keys(run: MergeRun, keys: SourceKeys) -> list[Compared]:
    """Return the equalities by which the driver finds the pairs.

    Raises:
        DeclinedError: Spark has to find them.
    """
    require(*_merge_eligibility(run, keys))
    allowed(written_columns(run.transaction))
    return compared(run.transaction, equalities_alone(run.statement) or ())


def _merge_eligibility(run: MergeRun, keys: SourceKeys) -> Verdict:
    """Return whether the merge's clauses, source and keys let the driver find the pairs."""
    merge, conjuncts = run.statement, equalities_alone(run.statement)
    if not run.settings.local.verdict.ok:
        return run.settings.local.verdict
    if not has_local_master(merge.spark):
        return no("executors have cores of their own")
    matched = merge.of_kind("matched")
    if not matched or matched[0].condition is not None or merge.of_kind("not_matched_by_source"):
        return no("which clause takes a pair depends on its rows")
    if merge.skips_unchanged:
        return no("updates that change nothing are skipped")
    if run.source.insertable is not None:
        return no("inserts have conditions")
    if not conjuncts or not keys.are_unique:
        return no("the source's keys are not known, or not unique")
    if run.source.is_materialized and keys.source_rows is None:
        return no("the source's rows are numbered")
    kinds = {column.name: column.dataType for column in table_columns(run.transaction)}
    for equality in conjuncts:
        if not isinstance(kinds.get(equality.path[0]), _WHOLE_NUMBERS):
            return no(f"{equality.path[0]!r} is not a column of whole numbers")
    return YES


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
