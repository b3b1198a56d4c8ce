"""The functions that tasks call, batch by batch.

- `rewriter`: rewrites a file in place, from its changed rows.
- `bounded_files`: finds files of earlier releases, whose footers hold bounds of floating values.
  Spark may skip a row group that holds a NaN by such bounds (see `reader_contract`).
- `filters_of`, `holders_of`: build Bloom filters of the hashed keys of files, and test them with a
  merge's keys.

They need only numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.batches import FirstRow
from deltaweave.engine.tasks.parquet_rewrite import Rewritten, rewrite_file
from deltaweave.engine.tasks.storage import Storage, location_of
from deltaweave.engine.tasks.table_format import SPARK_VERSION, NotRewritableError, TableFormat

if TYPE_CHECKING:
    import numpy
    import pyarrow
    import pyarrow.parquet


REWRITTEN_SCHEMA = (
    "file string, name string, size bigint, stats string, "
    "change_file string, change_file_size bigint, refused string, failed string"
)
"""What a task returns for each file; if it was refused, or rewriting it failed, Spark must."""


# Maximum bytes in memory of a file's changed rows; a task holds a copy of them, too. Spark
# rewrites files in which more change.
MAX_CHANGED_BYTES = 96 << 20


def rewriter(
    table: TableFormat,
    files: Sequence[str],
    with_vectors: frozenset[str],
    first_rows: Mapping[str, FirstRow],
) -> Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table]:
    """Return a function that takes the changed rows of one file, and returns one row about it.

    In the changed rows, the file's number comes first, then what `rewrite_file` takes.

    Args:
        files: The files, in the order of their numbers (see `location_of`). A name in each row
            would be most of what tasks get.
        with_vectors: Locations of files in which rows are marked as deleted, which Spark rewrites.
        first_rows: The first rows of the files by their locations, if the table tracks rows.
    """

    def rewrite(key: tuple[Any, ...], batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
        import pyarrow as pa

        file = files[key[0].as_py()]
        done, refused, failed = Rewritten(None), None, None
        try:
            location = location_of(file)
            if location in with_vectors:
                raise NotRewritableError("rows in it are marked deleted")
            if table.tracking is not None and location not in first_rows:
                raise NotRewritableError("its rows have no ids yet")
            first_row = first_rows.get(location)
            changes = _bounded(batches).remove_column(0)
            done = rewrite_file(location, changes, table, first_row)
        except NotRewritableError as error:
            refused = str(error)
        except Exception as error:  # of pyarrow, the file system, a store; nothing is left of it
            failed = f"{type(error).__name__}: {error}"
        of_files = [*(done.file or [None] * 3), *(done.change_file or [None] * 2)]
        values = [file, *of_files, refused, failed]
        text, number = pa.string(), pa.int64()
        types = [text, text, number, text, text, number, text, text]
        return pa.table(
            [pa.array([value], kind) for value, kind in zip(values, types, strict=True)],
            names=[each.split()[0] for each in REWRITTEN_SCHEMA.split(", ")],
        )

    return rewrite


def in_batches(
    rewrite: Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table],
) -> Callable[[tuple[Any, ...], Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return what `applyInArrow` calls with the batches of a group, since Spark 4.1."""
    import pyarrow as pa

    def task(
        key: tuple[Any, ...], batches: Iterator[pyarrow.RecordBatch]
    ) -> Iterator[pyarrow.RecordBatch]:
        yield from rewrite(key, batches).to_batches()
        for _ in batches:  # of a refused file
            pass

    # Spark learns by the types that the function takes batches.
    of_batches = Iterator[pa.RecordBatch]
    task.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": of_batches,
        "return": of_batches,
    }
    return task


def in_whole(
    rewrite: Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table],
) -> Callable[[tuple[Any, ...], pyarrow.Table], pyarrow.Table]:
    """Return what `applyInArrow` calls with all rows of a group, before Spark 4.1."""
    return lambda key, changes: rewrite(key, changes.to_batches())


def _bounded(batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
    """Return the rows of the batches; raise NotRewritableError before they become too many."""
    import pyarrow as pa

    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_CHANGED_BYTES:
            raise NotRewritableError(
                f"the changed rows of a file have more than {MAX_CHANGED_BYTES:,} bytes"
            )
        held.append(batch)
    return pa.Table.from_batches(held)


BOUNDED_SCHEMA = "path string"
# What `TableFormat.new_name` makes, behind the prefix of `OwnFiles`.
OWN_NAME = r"(^|/)[0-9a-f]{12}-(?:[0-9a-f]{8}-)?part-00000-[0-9a-f-]{36}\.c000\."


def bounded_files(
    storage: Storage,
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return the function for `mapInArrow` that finds such files by their footers.

    It takes columns `path` and `location` (string), and gives a row of `BOUNDED_SCHEMA` for each
    file of the engine that holds bounds of floating values.
    """

    def found(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            paths, locations = (batch.column(name).to_pylist() for name in ("path", "location"))
            bounded = [
                path
                for path, location in zip(paths, locations, strict=True)
                if is_bounded(storage, location)
            ]
            yield pa.record_batch([pa.array(bounded, pa.string())], ["path"])

    return found


def is_bounded(storage: Storage, location: str) -> bool:
    """Return whether the engine wrote the file, with bounds of floating values in its footer."""
    with storage.opened(location) as file:
        footer = file.metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = (group.column(n) for group in groups for n in range(group.num_columns))
        return (
            footer.created_by.startswith("parquet-cpp")
            and SPARK_VERSION in (footer.metadata or {})
            and any(
                column.physical_type in ("FLOAT", "DOUBLE")
                and (column.is_stats_set or column.has_column_index)
                for column in columns
            )
        )


FILTERS_SCHEMA = "location string, filter binary"
HOLDERS_SCHEMA = "path string, may_hold boolean"

# The false positive rate is one key in 15,000. It must be low: a merge tests thousands of keys
# against each file, and one false positive keeps the file.
BITS_PER_KEY = 20
_POSITIONS = 14
# With too few bits, positions of different keys would collide too often.
_LEAST_BYTES = 128

# The most keys of a filter; a file of more rows has several filters.
_KEYS_OF_A_FILTER = 1_000_000


def filters_of(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Build filters from rows of files.

    Args:
        batches: Columns `location` (string), in which the rows of a file come one after the other,
            and `hash` (int64; null where the key is null, which no filter holds).

    Yields:
        A row of `FILTERS_SCHEMA` for each part of a file, also for one without keys.
    """
    import numpy as np

    location, parts, pending = None, [np.empty(0, np.int64)], 0
    for batch in batches:
        for name, hashes in _files(batch):
            if location is not None and (name != location or pending >= _KEYS_OF_A_FILTER):
                yield _filter(location, np.concatenate(parts))
                parts, pending = [], 0
            location = name
            parts.append(hashes)
            pending += len(hashes)
    if location is not None:
        yield _filter(location, np.concatenate(parts))


def holders_of(
    hashes: numpy.ndarray,
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Build the function for `mapInArrow` that tests filters with these hashes (int64).

    It takes columns `path` (string) and `filter` (binary), and gives a row of `HOLDERS_SCHEMA` for
    each: whether one of the keys may be among those of the filter.
    """

    def holders(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            found = [filter_may_hold(value.as_buffer(), hashes) for value in batch.column("filter")]
            yield pa.record_batch([batch.column("path"), pa.array(found)], ["path", "may_hold"])

    return holders


def _files(batch: pyarrow.RecordBatch) -> Iterator[tuple[str, numpy.ndarray]]:
    """Yield the hashes of a batch, file by file."""
    import pyarrow.compute as pc

    runs = pc.run_end_encode(batch.column("location"))
    begin = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, batch.column("hash").slice(begin, end - begin).drop_null().to_numpy()
        begin = end


def _filter(location: str, hashes: numpy.ndarray) -> pyarrow.RecordBatch:
    import numpy as np
    import pyarrow as pa

    ordered = np.sort(hashes)  # many times as fast as np.unique
    distinct = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    num_bytes = max(_LEAST_BYTES, -(-len(distinct) * BITS_PER_KEY // 8))
    bits = np.zeros(num_bytes * 8, dtype=bool)
    for positions in _positions(distinct, len(bits)):
        bits[positions] = True
    columns = [pa.array([location]), pa.array([np.packbits(bits).tobytes()], pa.binary())]
    return pa.record_batch(columns, ["location", "filter"])


def filter_may_hold(filter_: pyarrow.Buffer, hashes: numpy.ndarray) -> bool:
    """Return whether a filter may hold one of some hashes."""
    import numpy as np

    packed = np.frombuffer(filter_, dtype=np.uint8)
    maybe = hashes
    for number in range(_POSITIONS):
        byte, bit = np.divmod(_position(maybe, number, len(packed) * 8), np.uint64(8))
        # np.packbits puts the first of eight bits into the highest.
        maybe = maybe[(packed[byte] & (np.uint8(0x80) >> bit.astype(np.uint8))).astype(bool)]
        if not len(maybe):
            return False
    return True


def _positions(hashes: numpy.ndarray, num_bits: int) -> Iterator[numpy.ndarray]:
    """Yield the positions of the bits of each hash."""
    return (_position(hashes, number, num_bits) for number in range(_POSITIONS))


def _position(hashes: numpy.ndarray, number: int, num_bits: int) -> numpy.ndarray:
    """Return one of these positions, from a hash's halves (Kirsch and Mitzenmacher, 2006)."""
    import numpy as np

    unsigned = hashes.view(np.uint64)
    low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
    return (low + np.uint64(number) * (high | np.uint64(1))) % np.uint64(num_bits)
