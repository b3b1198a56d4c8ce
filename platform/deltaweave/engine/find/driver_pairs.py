"""Pairs found on the driver: pyarrow reads the candidates' key columns and joins the source's keys.

No Spark job is needed. It serves conditions that are equalities alone, of types that Arrow compares
as Spark does. Files of which that is not certain are refused, and Spark scans them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    are_own,
    marked_rows,
    may_mark_here,
)
from deltaweave.delta.log import FileList
from deltaweave.delta.statement import Equality
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    INSERTABLE,
    NEW_ROW,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.find.driver_keys import (
    SOURCE_NUMBER,
    KeyColumn,
    key_columns,
    keys_of_source,
)
from deltaweave.engine.find.driver_partitions import PartitionColumns, PartitionValues
from deltaweave.engine.find.driver_scan import FILE_NUMBER, ROW_INDEX, KeyScan
from deltaweave.engine.find.driver_size import Held, most_on_driver
from deltaweave.engine.find.pairs import Pairs
from deltaweave.engine.source import CollectedSource
from deltaweave.engine.tasks import NotRewritableError, Storage

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class DriverPairs:
    """What the driver found.

    Attributes:
        pairs: The pairs, in the order of files and rows. `SOURCE_ROW` is the number of the row in
            the `CollectedSource`, and so is `NEW_ROW`; `TARGET_ROW_ID` is the row's place in its
            file.
        is_matched: For each source row, whether it is in a pair.
        row_counts: For each file with pairs, as `FILE` names it, the number of its rows that are
            not marked as deleted, as the file itself says.
        marked: For each file with pairs, as `FILE` names it, the places of the rows that were
            marked as deleted before; files without such rows are missing.
        partitioned_by: The table's partition columns.
        partitions: The partition of each candidate file, as `FILE` names it.
    """

    pairs: Pairs
    is_matched: numpy.ndarray
    row_counts: Mapping[str, int]
    marked: Mapping[str, numpy.ndarray]
    partitioned_by: PartitionColumns
    partitions: Mapping[str, PartitionValues]

    def row_counts_in(self, touched: FileList) -> numpy.ndarray:
        """The number of rows in files with pairs, in their order, as the files themselves say."""
        import numpy as np

        names = [name_of(location) for location in touched.rows["location"].to_pylist()]
        return np.array([self.row_counts[name] for name in names], dtype=np.int64)


def pairs_on_driver(
    transaction: Transaction,
    candidates: FileList,
    source: CollectedSource,
    conjuncts: Sequence[Equality],
    *,
    with_insertable: bool,
    storage: Storage,
    new_calendar: bool,
) -> DriverPairs:
    """Find the pairs in the candidate files.

    Args:
        transaction: The merge's transaction.
        candidates: The files.
        source: The source's rows.
        conjuncts: The equalities that the ON condition consists of.
        with_insertable: Whether the pairs have `INSERTABLE`.
        storage: Where the files lie.
        new_calendar: As `assumes_new_calendar` says.

    Raises:
        NotRewritableError: Spark must find the pairs.
        OSError: A file could not be read; so with Arrow's errors.
    """
    import numpy as np
    import pyarrow as pa

    locations = own_locations(candidates)
    columns = key_columns(transaction, conjuncts)
    keys = keys_of_source(source, columns)
    names = [name_of(location) for location in locations]
    partitioned_by = PartitionColumns.of(transaction)
    texts = candidates.rows["partition"].to_pylist()
    partitions = [partitioned_by.of_file(text) for text in texts]
    spark = transaction.merge.spark
    master = str(spark.sparkContext.master)
    stored = [column for column in columns if not column.is_of_partition]
    scan = KeyScan(
        storage,
        locations,
        new_calendar,
        stored,
        {column.name: keys[column.name].unique() for column in stored},
        _of_log(columns, partitions),
        Held(limits.MAX_POSSIBLE_BYTES_ON_DRIVER, "the rows that have keys of the source"),
    )
    found, num_rows = _joined(master, scan, columns, keys)
    numbers = found[FILE_NUMBER].to_numpy()
    rows, source_rows = found[ROW_INDEX].to_numpy(), found[SOURCE_NUMBER].to_numpy()
    marked = _marked(transaction, candidates, np.unique(numbers).tolist())
    is_there = np.ones(len(rows), dtype=bool)
    for number, places in marked.items():
        here = slice(*np.searchsorted(numbers, (number, number + 1)))
        is_there[here] = ~np.isin(rows[here], places)
    numbers, rows, source_rows = numbers[is_there], rows[is_there], source_rows[is_there]
    if len(rows) > limits.MAX_PAIRS_ON_DRIVER:
        raise NotRewritableError("the pairs are too many")
    of_pairs = {
        FILE: pa.array(names, pa.string()).take(pa.array(numbers)),
        TARGET_ROW_ID: pa.array(rows),
        SOURCE_ROW: pa.array(source_rows),
        NEW_ROW: pa.array(source_rows),
        CLAUSE: pa.array(source.clauses[source_rows], pa.int32()),
    }
    if with_insertable:
        of_pairs[INSERTABLE] = pa.array(source.insert_clauses[source_rows] != NO_CLAUSE)
    is_matched = np.zeros(source.rows.num_rows, dtype=bool)
    is_matched[source_rows] = True
    pairs = Pairs(None, pa.table(of_pairs), spark)
    row_counts = {names[i]: num_rows[i] - len(marked.get(i, ())) for i in np.unique(numbers)}
    of_files = {names[i]: places for i, places in marked.items()}
    of_names = dict(zip(names, partitions, strict=True))
    return DriverPairs(pairs, is_matched, row_counts, of_files, partitioned_by, of_names)


def by_file(changes: pyarrow.Table) -> dict[str, pyarrow.Table]:
    """The pairs of each file, as `FILE` names it; those of a file are one after the other."""
    import numpy as np

    files = changes[FILE].combine_chunks().dictionary_encode()
    assert (np.diff(files.indices.to_numpy()) >= 0).all(), "pairs are in the order of files"
    bounds = np.searchsorted(files.indices.to_numpy(), np.arange(len(files.dictionary) + 1))
    return {
        name: changes.slice(bounds[i], bounds[i + 1] - bounds[i])
        for i, name in enumerate(files.dictionary.to_pylist())
    }


def own_locations(files: FileList) -> list[str]:
    """The files' locations, not encoded, in their order.

    Raises:
        NotRewritableError: A file is not below the table's directory (as in shallow clones).
    """
    if not are_own(files).all():
        raise NotRewritableError("a file is not in the table's directory")
    locations: list[str] = files.rows["location"].to_pylist()
    return locations


def name_of(location: str) -> str:
    """A file as `FILE` names it, by its decoded location."""
    return quote(location, safe="/:")


def _joined(
    master: str, scan: KeyScan, columns: Sequence[KeyColumn], keys: pyarrow.Table
) -> tuple[pyarrow.Table, list[int]]:
    """File number, row index and source row's number of each match, in the files' order.

    Then the number of rows in each file.
    """
    import pyarrow as pa

    names = [name for column in columns for name in column.joined]
    with ThreadPoolExecutor(max_workers=limits.MAX_THREADS_ON_DRIVER) as threads:
        num_rows = list(threads.map(scan.num_rows, range(len(scan.locations))))
        if sum(num_rows) > most_on_driver(limits.MAX_TARGET_ROWS_ON_DRIVER, master):
            raise NotRewritableError(f"the candidate files have {sum(num_rows)} rows")
        parts = list(threads.map(scan.possible_rows, _groups(num_rows)))
    rows = pa.concat_tables([scan.empty(), *parts])
    _check_number_of_pairs(rows, keys, names)
    found = rows.join(keys, names, join_type="inner", use_threads=False)
    order = [(name, "ascending") for name in (FILE_NUMBER, ROW_INDEX, SOURCE_NUMBER)]
    found = found.select([FILE_NUMBER, ROW_INDEX, SOURCE_NUMBER]).sort_by(order)
    return found.combine_chunks(), num_rows


def _of_log(
    columns: Sequence[KeyColumn], partitions: Sequence[PartitionValues]
) -> dict[str, pyarrow.ChunkedArray]:
    """The keys of each file that are values of its partition."""
    import pyarrow as pa

    keys: dict[str, pyarrow.ChunkedArray] = {}
    for column in columns:
        if column.is_of_partition:
            name, kind = column.field.name, column.field.type
            of_files = pa.array([values[name].as_py() for values in partitions], kind)
            keys |= column.of(pa.chunked_array([of_files]))
    return keys


def _groups(num_rows: Sequence[int]) -> list[list[int]]:
    """Which files a thread reads one after the other, by their places, in their order.

    Arrow prepares the source's keys for each batch, which may hold rows of a whole group. Threads
    share evenly what there is.
    """
    most = min(limits.MAX_BATCH_ROWS_ON_DRIVER, sum(num_rows) // limits.MAX_THREADS_ON_DRIVER)
    groups: list[list[int]] = []
    size = most
    for number, of_file in enumerate(num_rows):
        if size >= most:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += of_file
    return groups


def _check_number_of_pairs(rows: pyarrow.Table, keys: pyarrow.Table, names: list[str]) -> None:
    """Raise NotRewritableError if the pairs are too many, before any is made."""
    import pyarrow.compute as pc

    of_keys = keys.group_by(names).aggregate([(SOURCE_NUMBER, "count")])
    if len(of_keys) == len(keys):
        return  # each row is in one pair at most
    counts = rows.join(of_keys, names, join_type="inner", use_threads=False)[
        f"{SOURCE_NUMBER}_count"
    ]
    if (pc.sum(counts).as_py() or 0) > limits.MAX_PAIRS_ON_DRIVER:
        raise NotRewritableError("the pairs are too many")


def _marked(
    transaction: Transaction, candidates: FileList, numbers: Sequence[int]
) -> dict[int, numpy.ndarray]:
    """By file number, the places of rows that are marked as deleted, in these files alone."""
    import numpy as np

    mask = np.zeros(len(candidates), dtype=bool)
    mask[list(numbers)] = True
    has_vector = candidates.rows["has_vector"].to_numpy() & mask
    files = candidates.where(has_vector)
    if not len(files):
        return {}
    if not may_mark_here(files):
        raise NotRewritableError("too many files have deletion vectors")
    places = np.flatnonzero(has_vector).tolist()
    return dict(zip(places, marked_rows(transaction, files), strict=True))
