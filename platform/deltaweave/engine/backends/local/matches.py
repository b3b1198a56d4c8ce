"""Find matches on the driver: read key columns of files and look for the source's keys.

No Spark job is needed. It serves conditions that are equalities alone, of types that Arrow compares
as Spark does. Files for which this is uncertain are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import are_own, marked_rows, may_mark_on_driver
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.backends.local.eligibility import ByteBudget, most_local
from deltaweave.engine.backends.local.keys import (
    SOURCE_NUMBER,
    Compared,
    KeyColumn,
    NumberedKeys,
    key_columns,
    keys_of_source,
)
from deltaweave.engine.backends.local.partitions import PartitionColumns, PartitionValues
from deltaweave.engine.source import SourceKeys
from deltaweave.engine.tasks import (
    NotRewritableError,
    Storage,
    check_copyable,
    check_zones,
    read_batches,
)

if TYPE_CHECKING:
    import numpy
    import pyarrow
    import pyarrow.parquet


FILE_NUMBER = "file"
"""Which file a row is in, by its index among those that are read."""

ROW_INDEX = "row"
"""The index of a row in its file."""


@dataclass(frozen=True)
class Matches:
    """Target rows and the source rows that match them, in the order of files and rows.

    Attributes:
        locations: The candidate files, not encoded.
        partitions: The partition of each.
        row_counts: The number of rows of each, as the file itself says.
        files: For each match, the file by its index among these.
        rows: For each match, the index of its target row in the file.
        source_rows: For each match, the source row by its index among the keys.
        marked: By the index of a file with matches, the indexes of its rows that were marked as
            deleted before; files without such rows are missing.
    """

    locations: Sequence[str]
    partitions: Sequence[PartitionValues]
    row_counts: Sequence[int]
    files: numpy.ndarray
    rows: numpy.ndarray
    source_rows: numpy.ndarray
    marked: Mapping[int, numpy.ndarray]


@dataclass(frozen=True)
class KeySearch:
    """A search of files for the source's keys.

    Attributes:
        candidates: The files to read.
        keys: The source's keys, which are collected.
        partitioned_by: The partition columns whose values are asked for, keys among them.
        new_calendar: As `assumes_new_calendar` says.
        at_most: Maximum matches; with more, Spark must find them.
        numbered: Whether the keys are looked up as numbers: they must be unique and whole numbers.
    """

    transaction: Transaction
    candidates: FileList
    keys: SourceKeys
    conjuncts: Sequence[Compared]
    partitioned_by: PartitionColumns
    storage: Storage
    new_calendar: bool
    at_most: int
    numbered: bool = False

    def matches(self) -> Matches:
        """Find the matches.

        Raises:
            NotRewritableError: Spark must find the matches.
            OSError, pyarrow.ArrowException: A file could not be read.
        """
        import numpy as np

        locations = own_locations(self.candidates)
        master = str(self.transaction.merge.spark.sparkContext.master)
        _check_number_of_rows(self.candidates.num_records or 0, master)
        columns = key_columns(self.transaction, self.conjuncts)
        keys = keys_of_source(self.keys, columns)
        texts = self.candidates.rows["partition"].to_pylist()
        partitions = [self.partitioned_by.of_file(text) for text in texts]
        of_log = _keys_of_log(columns, partitions)
        stored = [column for column in columns if not column.is_of_partition]
        if self.numbered:
            narrow = _lookup(keys, of_log)
        else:
            keys, narrow = _coded(keys, columns, of_log)
        scan = KeyScan(
            self.storage,
            locations,
            self.new_calendar,
            stored,
            narrow,
            ByteBudget(limits.MAX_LOCAL_POSSIBLE_BYTES, "the rows that have keys of the source"),
        )
        found, row_counts = read_keys_of_files(scan, master)
        if not self.numbered:
            found = matching_rows(found, keys, self.at_most)
        files = found[FILE_NUMBER].to_numpy()
        rows, source_rows = found[ROW_INDEX].to_numpy(), found[SOURCE_NUMBER].to_numpy()
        marked = _marked(self.transaction, self.candidates, np.unique(files).tolist())
        is_there = np.ones(len(rows), dtype=bool)
        for number, indexes in marked.items():
            of_file = slice(*np.searchsorted(files, (number, number + 1)))
            is_there[of_file] = ~np.isin(rows[of_file], indexes)
        files, rows, source_rows = files[is_there], rows[is_there], source_rows[is_there]
        if len(rows) > self.at_most:
            raise NotRewritableError("the pairs are too many")
        return Matches(locations, partitions, row_counts, files, rows, source_rows, marked)


def own_locations(files: FileList) -> list[str]:
    """Return the files' locations, not encoded, in their order.

    Raises:
        NotRewritableError: A file is not below the table's directory (as in shallow clones).
    """
    if not are_own(files).all():
        raise NotRewritableError("a file is not in the table's directory")
    locations: list[str] = files.rows["location"].to_pylist()
    return locations


def name_of(location: str) -> str:
    """Return a file's name as in `FILE`, from its decoded location."""
    return quote(location, safe="/:")


def _lookup(
    keys: pyarrow.Table, of_log: Mapping[str, pyarrow.ChunkedArray]
) -> Callable[[pyarrow.Table], pyarrow.Table]:
    """Return a function that keeps the rows that match, of rows that were read."""
    lookup = NumberedKeys.of(keys)
    if lookup is None:
        raise NotRewritableError("the keys are not whole numbers, or of too wide a range")
    return lambda rows: lookup.found_in(with_keys_of_log(of_log, rows))


class _CodedKeys(NamedTuple):
    """Keys as codes, and a function that keeps the rows that may match, with codes."""

    keys: pyarrow.Table
    narrow: Callable[[pyarrow.Table], pyarrow.Table]


def _coded(
    keys: pyarrow.Table,
    columns: Sequence[KeyColumn],
    of_log: Mapping[str, pyarrow.ChunkedArray],
) -> _CodedKeys:
    """Return the keys as codes, and a function that keeps the rows that may match, with codes."""
    import pyarrow.compute as pc

    values = {column.name: keys[column.name].unique() for column in columns}
    in_files = {c.name: values[c.name] for c in columns if not c.is_of_partition}
    coded = {
        name: pc.index_in(of_files, value_set=values[name]) if name in values else of_files
        for name, of_files in of_log.items()
    }
    return _CodedKeys(
        with_codes(values, keys),
        lambda rows: with_keys_of_log(coded, with_codes(in_files, rows)),
    )


class _ReadRows(NamedTuple):
    """Rows of all files, in their order, and the number of rows in each file."""

    rows: pyarrow.Table
    row_counts: list[int]


def read_keys_of_files(scan: KeyScan, master: str) -> _ReadRows:
    """Return what the scan keeps of all files, in their order, and the number of rows in each."""
    import pyarrow as pa

    with ThreadPoolExecutor(max_workers=limits.MAX_LOCAL_THREADS) as threads:
        row_counts = list(threads.map(scan.num_rows, range(len(scan.locations))))
        _check_number_of_rows(sum(row_counts), master)
        parts = list(threads.map(scan.wanted_rows, _groups(row_counts)))
    return _ReadRows(pa.concat_tables([scan.nothing(), *parts]), row_counts)


def _check_number_of_rows(number: int, master: str) -> None:
    if number > most_local(limits.MAX_LOCAL_TARGET_ROWS, master):
        raise NotRewritableError(f"the candidate files have {number} rows")


def matching_rows(rows: pyarrow.Table, keys: pyarrow.Table, at_most: int) -> pyarrow.Table:
    """Return file number, row index and source row's number of each match, in this order."""
    names = [name for name in keys.column_names if name != SOURCE_NUMBER]
    _check_number_of_pairs(rows, keys, names, at_most)
    found = rows.join(keys, names, join_type="inner", use_threads=False)
    order = [(name, "ascending") for name in (FILE_NUMBER, ROW_INDEX, SOURCE_NUMBER)]
    found = found.select([FILE_NUMBER, ROW_INDEX, SOURCE_NUMBER]).sort_by(order)
    return found.combine_chunks()


def _keys_of_log(
    columns: Sequence[KeyColumn], partitions: Sequence[PartitionValues]
) -> dict[str, pyarrow.ChunkedArray]:
    """Return the keys of each file that are values of its partition."""
    import pyarrow as pa

    keys: dict[str, pyarrow.ChunkedArray] = {}
    for column in columns:
        if column.is_of_partition:
            name, kind = column.field.name, column.field.type
            of_files = pa.array([values[name].as_py() for values in partitions], kind)
            keys |= column.of(pa.chunked_array([of_files]))
    return keys


def _groups(num_rows: Sequence[int]) -> list[list[int]]:
    """Group the files, by index and in order, that a thread reads one after the other.

    Arrow prepares the source's keys for each batch, which may hold rows of a whole group. Threads
    share evenly what there is.
    """
    most = min(limits.MAX_LOCAL_BATCH_ROWS, sum(num_rows) // limits.MAX_LOCAL_THREADS)
    groups: list[list[int]] = []
    size = most
    for number, of_file in enumerate(num_rows):
        if size >= most:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += of_file
    return groups


def _check_number_of_pairs(
    rows: pyarrow.Table, keys: pyarrow.Table, names: list[str], at_most: int
) -> None:
    """Raise NotRewritableError if the pairs are too many, before any is made."""
    import pyarrow.compute as pc

    of_keys = keys.group_by(names).aggregate([(SOURCE_NUMBER, "count")])
    if len(of_keys) == len(keys):
        return  # each row is in one pair at most
    counts = rows.join(of_keys, names, join_type="inner", use_threads=False)[
        f"{SOURCE_NUMBER}_count"
    ]
    if (pc.sum(counts).as_py() or 0) > at_most:
        raise NotRewritableError("the pairs are too many")


def _marked(
    transaction: Transaction, candidates: FileList, numbers: Sequence[int]
) -> dict[int, numpy.ndarray]:
    """Return by file number the indexes of rows marked as deleted, in these files alone."""
    import numpy as np

    mask = np.zeros(len(candidates), dtype=bool)
    mask[list(numbers)] = True
    has_vector = candidates.rows["has_vector"].to_numpy() & mask
    files = candidates.where(has_vector)
    if not len(files):
        return {}
    if not may_mark_on_driver(files):
        raise NotRewritableError("too many files have deletion vectors")
    # A vector of some bytes may mark all rows of a file.
    if (num_marked := int(files.rows["num_marked"].to_numpy().sum())) > limits.MAX_MARKED_ROWS:
        raise NotRewritableError(f"the files with matches have {num_marked:,} marked rows")
    indexes = np.flatnonzero(has_vector).tolist()
    return dict(zip(indexes, marked_rows(transaction, files), strict=True))


@dataclass(frozen=True)
class KeyScan:
    """The columns and rows that the driver reads from files.

    Attributes:
        new_calendar: As `assumes_new_calendar` says.
        columns: The compared columns that they store, or would.
        narrow: Selects the wanted rows from a table of these columns and row indexes, in order.
        held: Counts the bytes of what is found.
    """

    storage: Storage
    locations: Sequence[str]
    new_calendar: bool
    columns: Sequence[KeyColumn]
    narrow: Callable[[pyarrow.Table], pyarrow.Table]
    held: ByteBudget

    def nothing(self) -> pyarrow.Table:
        """Return the table of `wanted_rows` without rows."""
        import pyarrow as pa

        kinds = {name: kind for column in self.columns for name, kind in column.joined.items()}
        schema = pa.schema({FILE_NUMBER: pa.int64(), ROW_INDEX: pa.int64(), **kinds})
        return self.narrow(schema.empty_table())

    def num_rows(self, number: int) -> int:
        """Count a file's rows; raise NotRewritableError if Arrow may misread its keys."""
        import pyarrow as pa

        fields = [column.field for column in self.columns]
        with self.storage.opened(self.locations[number]) as file:
            check_copyable(file, pa.schema(fields), new_calendar=self.new_calendar)
            check_zones(file, fields)
            return int(file.metadata.num_rows)

    def wanted_rows(self, numbers: Sequence[int]) -> pyarrow.Table:
        """Read the rows of some files, and keep what `narrow` returns of them.

        Args:
            numbers: The files to read, by their indexes in `locations`.

        Raises:
            NotRewritableError: These rows and those that other threads hold have too many bytes.
        """
        import pyarrow as pa

        parts, batch, num_rows, size = [self.nothing()], list[pa.Table](), 0, 0
        for number in numbers:
            for rows in self._read(number):
                batch.append(rows)
                num_rows, size = num_rows + rows.num_rows, size + rows.nbytes
                most = limits.MAX_LOCAL_BATCH_ROWS, limits.MAX_LOCAL_BATCH_BYTES
                if num_rows >= most[0] or size >= most[1]:
                    parts.append(self._wanted(batch))
                    batch, num_rows, size = [], 0, 0
        if batch:
            parts.append(self._wanted(batch))
        return pa.concat_tables(parts)

    def _read(self, number: int) -> Iterator[pyarrow.Table]:
        import numpy as np
        import pyarrow as pa

        start = 0
        with self.storage.opened(self.locations[number]) as file:
            for num_rows, keys in self._keys(self.locations[number], file):
                indexes = np.arange(start, start + num_rows, dtype=np.int64)
                of_file = {FILE_NUMBER: np.full(num_rows, number), ROW_INDEX: indexes}
                yield pa.table({**of_file, **keys})
                start += num_rows

    def _keys(
        self, location: str, file: pyarrow.parquet.ParquetFile
    ) -> Iterator[tuple[int, dict[str, pyarrow.ChunkedArray]]]:
        """Yield each batch's number of rows, and the values by which its rows are joined."""
        import pyarrow as pa

        stored = sorted(set(file.schema_arrow.names) & {c.field.name for c in self.columns})
        for num_rows, rows in self._batches(location, file, stored):
            keys: dict[str, pyarrow.ChunkedArray] = {}
            for column in self.columns:
                name = column.field.name
                # A column that is not stored was added later, and is null.
                values = rows[name] if name in stored else pa.nulls(num_rows, column.field.type)
                keys |= column.of(pa.chunked_array([values]))
            yield num_rows, keys

    def _batches(
        self, location: str, file: pyarrow.parquet.ParquetFile, columns: Sequence[str]
    ) -> Iterator[tuple[int, Mapping[str, pyarrow.Array]]]:
        if columns:
            for batch in read_batches(self.storage, location, file, columns):
                yield batch.num_rows, dict(zip(columns, map(batch.column, columns), strict=True))
            return
        num_rows, size = file.metadata.num_rows, limits.MAX_LOCAL_BATCH_ROWS
        for start in range(0, num_rows, size):
            yield min(size, num_rows - start), {}

    def _wanted(self, batch: Sequence[pyarrow.Table]) -> pyarrow.Table:
        import pyarrow as pa

        rows = self.narrow(pa.concat_tables(batch))
        self.held.add(rows.nbytes)
        return rows


def with_codes(of_source: Mapping[str, pyarrow.Array], rows: pyarrow.Table) -> pyarrow.Table:
    """Replace values by their indexes among the source's; rows with others are left out.

    Long keys are then neither held nor copied for each pair.
    """
    import pyarrow.compute as pc

    for name, values in of_source.items():  # each leaves fewer rows to look at
        codes = pc.index_in(rows[name], value_set=values)
        rows = rows.set_column(rows.column_names.index(name), name, codes)
        rows = rows.filter(pc.is_valid(codes))
    return rows


def with_keys_of_log(
    of_log: Mapping[str, pyarrow.ChunkedArray], rows: pyarrow.Table
) -> pyarrow.Table:
    """Add the keys that the log has for the rows' files; drop rows with a null key.

    Args:
        of_log: For each file, by the names in joins.
        rows: The rows, with `FILE_NUMBER`.
    """
    for name, of_files in of_log.items():
        rows = rows.append_column(name, of_files.take(rows[FILE_NUMBER]))
    return rows.drop_null()
