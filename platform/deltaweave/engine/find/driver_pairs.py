"""Pairs found on the driver: pyarrow reads the candidates' key columns and joins the source's keys.

No Spark job is needed. It serves conditions that are equalities alone, of types that Arrow compares
as Spark does. Files of which that is not certain are refused, and Spark scans them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
from deltaweave.engine.find.pairs import Pairs
from deltaweave.engine.source import CollectedSource
from deltaweave.engine.tasks import NotRewritableError, check_copyable, opened

if TYPE_CHECKING:
    import numpy
    import pyarrow
    import pyarrow.parquet

_FILE_NUMBER = "file"
_ROW_INDEX = "row"


@dataclass(frozen=True)
class DriverPairs:
    """What the driver found.

    Attributes:
        pairs: The pairs, in the order of files and rows. `SOURCE_ROW` is the number of the row in
            the `CollectedSource`, and so is `NEW_ROW`; `TARGET_ROW_ID` is the row's place in its
            file.
        is_matched: For each source row, whether it is in a pair.
        marked: For each file with pairs, as `FILE` names it, the places of the rows that were
            marked as deleted before; files without such rows are missing.
        partitioned_by: The table's partition columns.
        partitions: The partition of each candidate file, as `FILE` names it.
    """

    pairs: Pairs
    is_matched: numpy.ndarray
    marked: Mapping[str, numpy.ndarray]
    partitioned_by: PartitionColumns
    partitions: Mapping[str, PartitionValues]


def pairs_on_driver(
    transaction: Transaction,
    candidates: FileList,
    source: CollectedSource,
    conjuncts: Sequence[Equality],
    *,
    with_insertable: bool,
    new_calendar: bool,
) -> DriverPairs:
    """Find the pairs in the candidate files.

    Args:
        transaction: The merge's transaction.
        candidates: The files.
        source: The source's rows.
        conjuncts: The equalities that the ON condition consists of.
        with_insertable: Whether the pairs have `INSERTABLE`.
        new_calendar: As `assumes_new_calendar` says.

    Raises:
        NotRewritableError: Spark must find the pairs.
        OSError: A file could not be read; so with Arrow's errors.
    """
    import numpy as np
    import pyarrow as pa

    paths = local_paths(candidates)
    columns = key_columns(transaction, conjuncts)
    keys = keys_of_source(source, columns)
    names = [name_of(location) for location in candidates.rows["location"].to_pylist()]
    partitioned_by = PartitionColumns.of(transaction)
    texts = candidates.rows["partition"].to_pylist()
    partitions = [partitioned_by.of_file(text) for text in texts]
    # The first one says which rows are possible, and a partition's value is that of all its rows.
    columns = sorted(columns, key=lambda column: column.is_of_partition)
    found = _joined(paths, partitions, columns, keys, new_calendar=new_calendar)
    numbers = found[_FILE_NUMBER].to_numpy()
    rows, source_rows = found[_ROW_INDEX].to_numpy(), found[SOURCE_NUMBER].to_numpy()
    marked = _marked(transaction, candidates, np.unique(numbers).tolist())
    is_there = np.ones(len(rows), dtype=bool)
    for number, places in marked.items():
        is_there[(numbers == number) & np.isin(rows, places)] = False
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
    pairs = Pairs(None, pa.table(of_pairs), transaction.merge.spark)
    of_files = {names[i]: places for i, places in marked.items()}
    of_names = dict(zip(names, partitions, strict=True))
    return DriverPairs(pairs, is_matched, of_files, partitioned_by, of_names)


def local_paths(files: FileList) -> list[str]:
    """The files' paths in the driver's file system, in their order.

    Raises:
        NotRewritableError: A file is not below the table's directory (as in shallow clones).
    """
    if not are_own(files).all():
        raise NotRewritableError("a file is not in the table's directory")
    return [location.removeprefix("file:") for location in files.rows["location"].to_pylist()]


def name_of(location: str) -> str:
    """A file as `FILE` names it, by its decoded location."""
    return quote(location, safe="/:")


def _joined(
    paths: Sequence[str],
    partitions: Sequence[PartitionValues],
    columns: Sequence[KeyColumn],
    keys: pyarrow.Table,
    *,
    new_calendar: bool,
) -> pyarrow.Table:
    """File number, row index and source row's number of each match, in the files' order."""
    import pyarrow as pa

    joined = {name: kind for column in columns for name, kind in column.joined.items()}
    names = list(joined)
    firsts = keys[names[0]].unique()
    fields = [column.field for column in columns if not column.is_of_partition]
    count = partial(_rows_of, fields=fields, new_calendar=new_calendar)
    with ThreadPoolExecutor(max_workers=limits.MAX_THREADS_ON_DRIVER) as threads:
        num_rows = sum(threads.map(count, paths))
        if num_rows > limits.MAX_TARGET_ROWS_ON_DRIVER:
            raise NotRewritableError(f"the candidate files have {num_rows} rows")
        possible = partial(_possible, columns=columns, firsts=firsts)
        parts = list(threads.map(possible, paths, partitions))
    numbered = [
        part.append_column(_FILE_NUMBER, pa.repeat(pa.scalar(i, pa.int64()), part.num_rows))
        for i, part in enumerate(parts)
    ]
    schema = pa.schema({_ROW_INDEX: pa.int64(), **joined, _FILE_NUMBER: pa.int64()})
    rows = pa.concat_tables([schema.empty_table(), *numbered])
    _check_number_of_pairs(rows, keys, names)
    found = rows.join(keys, names, join_type="inner", use_threads=False)
    order = [(name, "ascending") for name in (_FILE_NUMBER, _ROW_INDEX, SOURCE_NUMBER)]
    return found.select([_FILE_NUMBER, _ROW_INDEX, SOURCE_NUMBER]).sort_by(order).combine_chunks()


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


def _rows_of(path: str, fields: Sequence[pyarrow.Field], *, new_calendar: bool) -> int:
    """How many rows a file has; raises NotRewritableError if Arrow may read its keys wrongly."""
    import pyarrow as pa

    with opened(path) as file:
        check_copyable(file, pa.schema(fields), new_calendar=new_calendar)
        check_zones(file, fields)
        return int(file.metadata.num_rows)


def check_zones(file: pyarrow.parquet.ParquetFile, fields: Sequence[pyarrow.Field]) -> None:
    """Raise NotRewritableError for a time that is stored without a zone, unless it is an INT96."""
    import pyarrow.types as types

    physical = {
        file.schema.column(i).path: file.schema.column(i).physical_type
        for i in range(len(file.schema))
    }
    for field in fields:
        if types.is_timestamp(field.type) and field.type.tz and field.name in physical:
            stored = file.schema_arrow.field(field.name).type
            if stored.tz is None and physical[field.name] != "INT96":
                raise NotRewritableError(f"column {field.name!r} is stored without a time zone")


def _possible(
    path: str, partition: PartitionValues, columns: Sequence[KeyColumn], firsts: pyarrow.Array
) -> pyarrow.Table:
    """The keys and places of the rows whose first key is one of the source's."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    stored_keys = [column for column in columns if not column.is_of_partition]
    of_partition = [column for column in columns if column.is_of_partition]
    parts, start = [], 0
    with opened(path) as file:
        stored = set(file.schema_arrow.names) & {column.field.name for column in stored_keys}
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=sorted(stored), use_threads=False)
            num_rows = file.metadata.row_group(group).num_rows
            found = pa.table({_ROW_INDEX: np.arange(start, start + num_rows, dtype=np.int64)})
            for column in stored_keys:
                # A column that is not stored was added later, and is null.
                nothing = pa.chunked_array([pa.nulls(num_rows, column.field.type)])
                name = column.field.name
                for key, values in column.of(rows[name] if name in stored else nothing).items():
                    found = found.append_column(key, values)
            if stored_keys:
                found = found.filter(pc.is_in(found[columns[0].name], value_set=firsts))
            for column in of_partition:
                of_all = pa.chunked_array([pa.repeat(partition[column.field.name], len(found))])
                for key, values in column.of(of_all).items():
                    found = found.append_column(key, values)
            parts.append(found.drop_null())
            start += num_rows
    kinds = {name: kind for column in columns for name, kind in column.joined.items()}
    schema = pa.schema({_ROW_INDEX: pa.int64(), **kinds})
    return pa.concat_tables([schema.empty_table(), *parts])


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
