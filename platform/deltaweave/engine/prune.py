"""Prune files that hold no row that a merge changes: by conditions, statistics and an index.

A file is pruned if it can hold no row that the source matches: if its statistics prove that none of
the source's values lies between the lowest and the highest value of a key column, or if the key
index says so. A file without statistics is never pruned. If the statement has WHEN NOT MATCHED BY
SOURCE clauses, a pruned file must also hold no row that such a clause can take.

Statistics prune nothing if the keys of every file span the whole range, as UUIDs do. So a table
whose property `deltaweave.keyIndex` names a column has a key index: a small Delta table of Bloom
filters beside its data, keyed by the table's id and each file's path, size and time, as the log has
them. A table that was created again in the same place may have other files of the same names. Files
never change, so a filter is right in every version of the table that holds its file, and a file
without a filter is read. An index that is stale or missing costs time and nothing else. After its
commit, each merge indexes the files that it wrote, and at intervals also those that other writers
left without a filter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from deltaweave.delta.commit import (
    Transaction,
    Write,
    create_from,
    retried_after_creation,
    without_session_transaction_id,
    write_rows,
)
from deltaweave.delta.files import Reading, Use, capability, encryption_properties
from deltaweave.delta.jvm import collected, translated
from deltaweave.delta.log import (
    FileList,
    TableLog,
    TableSnapshot,
    bounds,
    decoded,
    is_collated,
)
from deltaweave.delta.scan import file_metadata
from deltaweave.delta.statement import by_source_predicate, skipping_predicates
from deltaweave.engine import limits
from deltaweave.engine.attempts import (
    attempted,
    found_without_pyarrow,
    lacks_pyarrow,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.source import KeyValues, SourceKeys, source_keys
from deltaweave.engine.tasks import FILTERS_SCHEMA, HOLDERS_SCHEMA, filters_of, holders_of
from deltaweave.errors import StatementError
from deltaweave.identifiers import column, spelled_as

if TYPE_CHECKING:
    import numpy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidates:
    """The files to scan, and the source's keys, before any file is read.

    Attributes:
        listed: The files that the statement's conditions left, from which they were chosen.
        keys: The values that the source has for the equalities of the ON condition.
    """

    files: FileList
    listed: FileList
    keys: SourceKeys


def find_candidates(run: MergeRun) -> Candidates:
    """Collect the source's keys, and prune files by them."""
    files = files_by_conditions(run.transaction)
    keys = source_keys(run.statement, run.source, files)
    candidates = candidate_files(run, keys, files)
    return Candidates(candidates, files, keys)


def candidate_files(run: MergeRun, keys: SourceKeys, files: FileList) -> FileList:
    """Return the candidates among the files that the statement's conditions leave."""
    import numpy as np

    merge = run.statement
    by_source = bool(merge.of_kind("not_matched_by_source"))
    predicate = by_source_predicate(merge) if by_source else None
    if by_source and predicate is None:
        return files
    can_match = _can_match(run, keys, files)
    if predicate is None or can_match.all():
        return files.where(can_match)
    open_to_a_clause = run.transaction.files_in_partitions(files, [predicate])
    if open_to_a_clause is None:
        open_to_a_clause = set(run.transaction.candidate_files([predicate]).paths)
    taken = [path in open_to_a_clause for path in files.paths]
    return files.where(can_match | np.array(taken, dtype=bool))


def files_by_conditions(transaction: Transaction) -> FileList:
    """Return the files that the statement's conditions over the target alone leave.

    All of them are registered with the transaction as read, also those that the source's keys then
    prune, since a commit of another writer may add matching rows.
    """
    merge = transaction.merge
    by_source = bool(merge.of_kind("not_matched_by_source"))
    return transaction.candidate_files([] if by_source else skipping_predicates(merge))


def _can_match(run: MergeRun, keys: SourceKeys, files: FileList) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    if len(files) < 2 and not (run.source.gives_same_rows and run.source.num_rows == 0):
        return np.ones(len(files), dtype=bool)  # its statistics would not spare its scan
    return may_hold_match(run, keys, files)


def may_hold_match(run: MergeRun, keys: SourceKeys, files: FileList) -> numpy.ndarray:
    """Return for each file whether it can hold a match of a source row, by keys and index."""
    import numpy as np

    if not len(files) or (run.source.gives_same_rows and run.source.num_rows == 0):
        return np.zeros(len(files), dtype=bool)
    if not keys.columns:
        return np.ones(len(files), dtype=bool)
    table = run.statement.table
    mask = attempted(table, "no file is pruned", partial(may_match, run.transaction, files, keys))
    if mask is None:
        return np.ones(len(files), dtype=bool)
    index = stored_index(run.transaction.table)
    if index is not None and mask.sum() > 1:
        left = files.where(mask)
        held = attempted(table, "the key index prunes no file", partial(index.may_hold, left, keys))
        mask[mask] = True if held is None else held
    return mask


def may_match(transaction: Transaction, candidates: FileList, keys: SourceKeys) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    columns = [(key.equality.path, key.equality.data_type) for key in keys.columns]
    mask = np.ones(len(candidates), dtype=bool)
    known = bounds(transaction.table, candidates, columns)
    for key, of_key in zip(keys.columns, known, strict=True):
        files = zip(of_key.lows, of_key.highs, of_key.may_be_null, strict=True)
        for i, (low, high, may_be_null) in enumerate(files):
            mask[i] = mask[i] and _may_hold(key, low, high, may_be_null)
    return mask


def _may_hold(key: KeyValues, low: Any, high: Any, may_be_null: bool) -> bool:
    """Return whether a file with these bounds can hold one of the values."""
    if key.equality.null_safe and key.has_null and may_be_null:
        return True
    if low is None or high is None:
        return True
    if isinstance(key.equality.compared_as, DoubleType):
        # Spark compares such whole numbers as doubles, and two of them may be the same double.
        low, high = float(low), float(high)
    return key.may_lie_within(low, high)


# Beside the data: VACUUM skips directories whose names begin with "_".
KEY_INDEX_DIRECTORY = "_deltaweave_keys"

_FILE = ["size", "modificationTime", "path"]  # which identify a file, as AddFile has them

_HASHED_AS = {
    ByteType: "bigint",
    ShortType: "bigint",
    IntegerType: "bigint",
    LongType: "bigint",
    StringType: "string",
    DateType: "date",
}
_IN_ARROW = {"bigint": "int64", "string": "string", "date": "date32"}


@dataclass(frozen=True)
class KeyIndex:
    """The index that a table asks for.

    Attributes:
        table: The table, at the version to be read.
        hashed_as: The type in which its values are hashed, as SQL writes it.
    """

    table: TableSnapshot
    column: str
    hashed_as: str

    def may_hold(self, files: FileList, keys: SourceKeys) -> numpy.ndarray:
        """Return for each of the files whether it can hold one of the source's values."""
        import numpy as np

        key = next((each for each in keys.columns if self.answers(each)), None)
        stored = self.stored_filters() if key is not None and len(files) > 1 else None
        if key is None or stored is None or lacks_pyarrow(self.table.spark):
            return np.ones(len(files), dtype=bool)
        ask = holders_of(self._hashes(key.values))
        try:
            filters = self._filters(stored)
            names = F.concat_ws("/", *[F.col(name).cast("string") for name in _FILE])
            named = filters.select(names.alias("path"), "filter")
            answers = collected(named.mapInArrow(ask, HOLDERS_SCHEMA))
        except Exception as error:  # Spark's own, of a task
            if found_without_pyarrow(self.table.spark, error):
                return np.ones(len(files), dtype=bool)
            raise
        known = set(answers["path"].to_pylist())
        may = set(answers.filter(answers["may_hold"])["path"].to_pylist())
        asked = ["/".join(map(str, row.values())) for row in files.rows.select(_FILE).to_pylist()]
        return np.array([name in may or name not in known for name in asked], dtype=bool)

    def answers(self, key: KeyValues) -> bool:
        """Return whether the index can tell which files may hold the values of this equality."""
        return (
            key.equality.path == (self.column,)
            and _hashed_as(key.equality.compared_as) == self.hashed_as
            and not key.are_ranges
            and len(key.values) <= limits.MAX_INDEXED_KEYS
            and not (key.equality.null_safe and key.has_null)
            and not key.has_old_days
        )

    def catch_up(self) -> int:
        """Index the files that have no filter, and return how many there were."""
        stored = self.stored_filters()
        return self._index(stored, self._missing(stored))

    def catch_up_with(self, written: FileList) -> int:
        """Index files that were just written and, at intervals, all others without a filter."""
        stored = self.stored_filters()
        if stored is None or _is_due(stored, limits.INDEX_CATCH_UP_INTERVAL):
            return self._index(stored, self._missing(stored))
        return self._index(stored, written)

    def _missing(self, stored: TableSnapshot | None) -> FileList:
        known = None if stored is None else self._filters(stored).select(_FILE)
        return self.table.files_without(known)

    def _index(self, stored: TableSnapshot | None, missing: FileList) -> int:
        if not len(missing):
            return 0
        filters, mode = self._built(missing), "append"
        if stored is not None and _is_due(stored, limits.INDEX_REWRITE_INTERVAL):
            # Filters of files that have left the table are dropped, and the index is compacted.
            live = self.table.files.select(_FILE)
            kept = self._filters(stored).join(live, _FILE, "left_semi")
            filters, mode = kept.unionByName(filters).coalesce(limits.INDEX_FILES), "overwrite"
        rows = filters.select(*[F.lit(value).alias(name) for name, value in self._of.items()], "*")
        if stored is None and self._is_created_from(rows):
            return len(missing)
        # An index of an earlier release has fewer columns.
        write = Write(table=self._path, overwrite=mode == "overwrite", with_schema_evolution=True)
        with without_session_transaction_id():
            write_rows(self._log.log, rows, write)
        return len(missing)

    @retried_after_creation
    def _is_created_from(self, rows: DataFrame) -> bool:
        """Create the table of filters; return False if another builder has just created it."""
        with translated(self._path, operation="creation", commits=True):
            return create_from(rows, self._path)

    @property
    def _of(self) -> dict[str, str]:
        """The table, column and hash that a filter belongs to.

        A column may have been dropped and added again, with another type.
        """
        return {
            "table_id": self.table.id,
            "column": self.table.physical_names[self.column],
            "hashed_as": self.hashed_as,
        }

    @property
    def _path(self) -> str:
        return f"{self.table.data_path}/{KEY_INDEX_DIRECTORY}"

    @property
    def _log(self) -> TableLog:
        return TableLog.of(self.table.spark, ["delta", self._path])

    def stored_filters(self) -> TableSnapshot | None:
        """Open the table of filters; None if nothing was indexed yet."""
        log = self._log
        return log.latest() if log.exists else None

    def _filters(self, stored: TableSnapshot) -> DataFrame:
        """Read `_FILE` and `filter` (binary): one or more filters of each file."""
        rows = stored.read_whole()
        if "table_id" not in rows.columns:  # of an earlier release, which knew paths alone
            rows = rows.select("*", *(F.lit(None).alias(name) for name in ["table_id", *_FILE[:2]]))
        for name, value in self._of.items():
            rows = rows.where(F.col(name) == value)
        return rows.select(*_FILE, "filter")

    def _built(self, files: FileList) -> DataFrame:
        # Rows that are marked as deleted count: the table may be restored to an earlier version.
        rows = self.table.read_files(files.without_vectors() if files.num_vectors else files)
        hashed = rows.select(
            decoded(file_metadata(rows, "file_path")).alias("location"),
            self._hash(column(self.column)).alias("hash"),
        )
        filters = hashed.mapInArrow(filters_of, FILTERS_SCHEMA)
        names = self.table.spark.createDataFrame(files.rows.select([*_FILE, "location"]))
        return filters.join(F.broadcast(names), "location").select(*_FILE, "filter")

    def _hashes(self, values: Sequence[object]) -> numpy.ndarray:
        """Hash the values as those of the files are hashed."""
        import numpy as np
        import pyarrow as pa

        # Rows from Arrow are local to the driver, so that hashing them takes no job.
        keys = pa.table({"key": pa.array(values, _IN_ARROW[self.hashed_as])})
        rows = self.table.spark.createDataFrame(keys)
        hashed = rows.select(self._hash(F.col("key"))).collect()
        return np.array([row[0] for row in hashed], dtype=np.int64)

    def _hash(self, key: Column) -> Column:
        return F.when(key.isNotNull(), F.xxhash64(key.cast(self.hashed_as)))


def stored_index(table: TableSnapshot) -> KeyIndex | None:
    """Return the key index that the table's property asks for, or None.

    None also if the column was dropped or renamed after the property was set, or the table's
    properties encrypt its files: those of the index would not be encrypted.
    """
    column = table.metadata.indexed_column
    if column is None or encryption_properties(table.metadata.properties):
        return None
    return index_of(table, column)


def index_of(table: TableSnapshot, column: str) -> KeyIndex | None:
    """Return the index of this column, or None if it does not exist or cannot be indexed."""
    [column] = spelled_as(table.schema.names, [column])
    if column not in table.schema.names:
        return None
    field = table.schema[column]
    may_index = capability(field, Use.KEY, Reading()).ok
    hashed_as = _hashed_as(field.dataType) if may_index else None
    return None if hashed_as is None else KeyIndex(table, column, hashed_as)


def wanted_index(table: TableSnapshot, column: str, name: str) -> KeyIndex:
    """Return the index of a column that the caller asks for.

    Raises:
        StatementError: There is no such column, its type cannot be indexed, or the table's
            properties encrypt its files.
    """
    encryption = encryption_properties(table.metadata.properties)
    if encryption:
        raise StatementError(
            f"its property {min(encryption)} encrypts its files, and an index would hold hashes of "
            "its keys that are not encrypted.",
            table=name,
            operation="indexing keys",
        )
    index = index_of(table, column)
    if index is None:
        raise StatementError(
            f"it has no column {column!r} of whole numbers, strings or dates.",
            table=name,
            operation="indexing keys",
        )
    return index


def index_new_files(table: TableSnapshot, written: FileList, name: str) -> None:
    """Update the index after a commit, if the table asks for one."""
    index = stored_index(table)
    if index is None or lacks_pyarrow(table.spark):
        return  # files without a filter are never ruled out
    try:
        indexed = index.catch_up_with(written)
    except Exception as error:  # Spark's own, of a task
        if not found_without_pyarrow(table.spark, error):
            raise
        return
    logger.info("%s: indexed the keys of %d files", name, indexed)


def _is_due(stored: TableSnapshot, every: int) -> bool:
    """Return whether the version of the index ends an interval of this many versions."""
    return stored.version % every == every - 1


def _hashed_as(data_type: DataType) -> str | None:
    return None if is_collated(data_type) else _HASHED_AS.get(type(data_type))
