"""Bloom filters of the hashed keys of files: built from their rows, and tested with a merge's keys.

Tasks on executors run this batch by batch. It needs only numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    import pyarrow

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
            found = [_may_hold(value.as_buffer(), hashes) for value in batch.column("filter")]
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


def _may_hold(filter_: pyarrow.Buffer, hashes: numpy.ndarray) -> bool:
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
