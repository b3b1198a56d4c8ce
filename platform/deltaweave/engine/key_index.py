"""An optional index of a table's key: for each data file, a filter that says which keys it lacks.

Statistics rule no file out where every file holds keys from one end of the range to the other, as
with UUIDs. A table whose property `deltaweave.keyIndex` names a column has, beside its data, a
small Delta table of filters (key_filters), keyed by the files' paths. A file never changes, so
a filter is right for as long as the file is in the table, in whatever version; a file without a
filter is read. So the index may be stale or missing: that costs time and nothing else.

Merges keep it up: each one, after its commit, indexes the files that it wrote, and now and then
those that other writers left without a filter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from deltaweave.delta.file_list import FileList, decoded
from deltaweave.delta.file_metadata import file_metadata
from deltaweave.delta.snapshot import TableSnapshot, delta_log, latest
from deltaweave.engine import key_filters
from deltaweave.engine.source_keys import KeyValues, SourceKeys
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

if TYPE_CHECKING:
    import numpy

logger = logging.getLogger(__name__)

register_pickle_by_value(key_filters)  # type: ignore[no-untyped-call]

PROPERTY = "deltaweave.keyIndex"
"""The table property that names the indexed column."""

# Beside the data, where VACUUM passes by: it leaves directories that begin with "_" alone.
DIRECTORY = "_deltaweave_keys"

# Of so many random keys, some lie in every file.
MAX_KEYS = 10_000

# In versions of the index: how often merges look for files that other writers added ...
_LOOK_FOR_OTHERS_EVERY = 10
# ... and how often filters of files that have left the table, and the index's small files, go.
_REWRITE_EVERY = 50

_HASHED_AS = {
    ByteType: "bigint",
    ShortType: "bigint",
    IntegerType: "bigint",
    LongType: "bigint",
    StringType: "string",
    DateType: "date",
}
_IN_ARROW = {"bigint": "int64", "string": "string", "date": "date32"}
_OF_LIMITED_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"  # padded on one side of a comparison, or not


@dataclass(frozen=True)
class KeyIndex:
    """The index that a table asks for.

    Attributes:
        table: The table, at the version that is looked at.
        column: The indexed column.
        hashed_as: The type in which its values are hashed, as SQL writes it.
    """

    table: TableSnapshot
    column: str
    hashed_as: str

    def may_hold(self, files: FileList, keys: SourceKeys) -> numpy.ndarray:
        """For each of the files, whether it can hold one of the source's values."""
        import numpy as np

        key = next((each for each in keys.columns if self.answers(each)), None)
        stored = self._stored() if key is not None and len(files) > 1 else None
        if key is None or stored is None:
            return np.ones(len(files), dtype=bool)
        ask = key_filters.holders_of(self._hashes(key.values))
        answers = self._filters(stored).mapInArrow(ask, key_filters.HOLDERS_SCHEMA).toArrow()
        known = set(answers["path"].to_pylist())
        may = set(answers.filter(answers["may_hold"])["path"].to_pylist())
        return np.array([path in may or path not in known for path in files.paths], dtype=bool)

    def answers(self, key: KeyValues) -> bool:
        """Whether the index can say where the values of this equality are."""
        return (
            key.equality.path == (self.column,)
            and _hashed_as(key.equality.compared_as) == self.hashed_as
            and not key.are_ranges
            and len(key.values) <= MAX_KEYS
            and not (key.equality.null_safe and key.has_null)
        )

    def catch_up(self) -> int:
        """Index the files that have no filter; return how many they are."""
        stored = self._stored()
        return self._index(stored, self._missing(stored))

    def catch_up_with(self, written: FileList) -> int:
        """Index files that were just written, and others where it is time to look for them."""
        stored = self._stored()
        if stored is None or _is_due(stored, _LOOK_FOR_OTHERS_EVERY):
            return self._index(stored, self._missing(stored))
        return self._index(stored, written)

    def _missing(self, stored: TableSnapshot | None) -> FileList:
        return self.table.files_without(None if stored is None else self._filters(stored))

    def _index(self, stored: TableSnapshot | None, missing: FileList) -> int:
        if not len(missing):
            return 0
        filters, mode = self._built(missing), "append"
        if stored is not None and _is_due(stored, _REWRITE_EVERY):
            # Those of files that have left the table go, and the index is in few files again.
            live = self.table.files.select("path")
            kept = self._filters(stored).join(live, "path", "left_semi")
            filters, mode = kept.unionByName(filters).coalesce(8), "overwrite"
        filters.select(
            "path",
            F.lit(self._physical).alias("column"),
            F.lit(self.hashed_as).alias("hashed_as"),
            "filter",
        ).write.format("delta").mode(mode).save(self._path)
        return len(missing)

    @property
    def _path(self) -> str:
        return f"{self.table.data_path}/{DIRECTORY}"

    @property
    def _physical(self) -> str:
        return self.table.physical_names[self.column]

    def _stored(self) -> TableSnapshot | None:
        """The table of filters, or None where nothing was indexed yet."""
        log = delta_log(self.table.spark, ["delta", self._path])
        return latest(self.table.spark, log) if log.tableExists() else None

    def _filters(self, stored: TableSnapshot) -> DataFrame:
        """Columns `path` (string) and `filter` (binary): one or more filters of each file."""
        # A column that was dropped, or had another type, may come back under its name.
        same = (F.col("column") == self._physical) & (F.col("hashed_as") == self.hashed_as)
        return stored.read_whole().filter(same).select("path", "filter")

    def _built(self, files: FileList) -> DataFrame:
        # With rows that are marked deleted: the table may be restored to a version before that.
        rows = self.table.read_files(files.without_vectors() if files.num_vectors else files)
        hashed = rows.select(
            decoded(file_metadata(rows, "file_path")).alias("location"),
            self._hash(column(self.column)).alias("hash"),
        )
        filters = hashed.mapInArrow(key_filters.filters_of, key_filters.FILTERS_SCHEMA)
        names = self.table.spark.createDataFrame(files.rows.select(["path", "location"]))
        return filters.join(F.broadcast(names), "location").select("path", "filter")

    def _hashes(self, values: Sequence[object]) -> numpy.ndarray:
        """The values, hashed as those of the files are."""
        import numpy as np
        import pyarrow as pa

        # From Arrow they are local rows, and so are the hashes: no job computes them.
        keys = pa.table({"key": pa.array(values, _IN_ARROW[self.hashed_as])})
        rows = self.table.spark.createDataFrame(keys)
        hashed = rows.select(self._hash(F.col("key"))).collect()
        return np.array([row[0] for row in hashed], dtype=np.int64)

    def _hash(self, key: Column) -> Column:
        return F.when(key.isNotNull(), F.xxhash64(key.cast(self.hashed_as)))


def key_index(table: TableSnapshot) -> KeyIndex | None:
    """The index that the table's property asks for; None where it asks for none that there can be.

    The column may have been dropped or renamed since.
    """
    column = table.setting(PROPERTY)
    return None if column is None else index_of(table, column)


def index_of(table: TableSnapshot, column: str) -> KeyIndex | None:
    """The index of this column, or None where there is no such column that can be indexed."""
    if column not in table.schema.names:
        return None
    field = table.schema[column]
    limited = _OF_LIMITED_LENGTH in (field.metadata or {})
    hashed_as = None if limited else _hashed_as(field.dataType)
    return None if hashed_as is None else KeyIndex(table, column, hashed_as)


def wanted_index(table: TableSnapshot, column: str, name: str) -> KeyIndex:
    """The index of a column that the caller asks for.

    Raises:
        StatementError: There is no such column, or its type cannot be indexed.
    """
    index = index_of(table, column)
    if index is None:
        raise StatementError(
            f"it has no column {column!r} of whole numbers, strings or dates.",
            table=name,
            operation="indexing keys",
        )
    return index


def index_new_files(table: TableSnapshot, written: FileList, name: str) -> None:
    """Keep the index up after a commit.

    Args:
        table: The version that the commit made.
        written: The new files.
        name: The table, for the log's words.
    """
    index = key_index(table)
    if index is not None:
        logger.info("%s: indexed the keys of %d files", name, index.catch_up_with(written))


def _is_due(stored: TableSnapshot, every: int) -> bool:
    """Whether this many versions of the index have gone by, once more."""
    return stored.version % every == every - 1


def _hashed_as(data_type: DataType) -> str | None:
    if isinstance(data_type, StringType) and data_type.simpleString() != "string":
        return None  # of another collation, in which different bytes are equal
    return _HASHED_AS.get(type(data_type))
