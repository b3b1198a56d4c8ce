"""Limits of bytes in memory that neither files nor first rows show: text that repeats, long keys.

Driver and executor have 2 GiB each, in separate processes, so that a merge that holds more than it
should ends one of them.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import write_table
from benchmarks.limits.limit import LimitMerge
from benchmarks.merge.case import UPSERT, Statement

_MIB = 1024 * 1024
_CLUSTER = {"spark.master": "local-cluster[1,2,2048]", "spark.executor.memory": "2048m"}
_TEXT, _SOURCE_TEXT, _LATE_TEXT, _KEY = 250, 9_000, 5_000, 3_000
_FIRST_ROWS = 1_000
_LATE_FILES = 4
_ROWS_OF_A_CHUNK = 10_000


def repeated_text(directory: Path, size: int) -> LimitMerge:
    """Write an upsert of texts into one file; both repeat three values, which files store once.

    The target has `size` MiB of texts, the source a quarter as many; half of its rows match.
    """
    rows = max(2, size * _MIB // _TEXT)
    changed = max(2, size * _MIB // 4 // _SOURCE_TEXT)
    target = write_table(directory / "target", [_repeated(range(rows), _TEXT)])
    start = rows - changed // 2
    ids = range(start, start + changed)
    source = write_table(directory / "source", [_repeated(ids, _SOURCE_TEXT)])
    counts = {"numTargetRowsUpdated": changed // 2}
    counts["numTargetRowsInserted"] = changed - changed // 2
    return _upsert(target, source, counts)


def late_bytes(directory: Path, size: int) -> LimitMerge:
    """Write an update of two rows in each of four files, whose first rows alone are empty.

    So no sample of first rows shows the `size` MiB of texts, which files store once.
    """
    late = max(1, size * _MIB // _LATE_TEXT // _LATE_FILES)
    rows = _FIRST_ROWS + late
    starts = [number * rows for number in range(_LATE_FILES)]
    files = [
        pa.concat_tables(
            [
                _repeated(range(start, start + _FIRST_ROWS), 0),
                _repeated(range(start + _FIRST_ROWS, start + rows), _LATE_TEXT),
            ]
        )
        for start in starts
    ]
    target = write_table(directory / "target", files)
    ids = [start + place for start in starts for place in (0, rows - 1)]
    changed = pa.table({"id": pa.array(ids, pa.int64()), "text": pa.repeat("changed", len(ids))})
    return _upsert(
        target,
        write_table(directory / "source", [changed]),
        {"numTargetRowsUpdated": len(ids), "numTargetRowsInserted": 0},
    )


def wide_keys(directory: Path, size: int) -> LimitMerge:
    """Write an upsert by `size` keys of 3,000 characters into as many; half of them match."""
    half = size // 2
    target = write_table(directory / "target", _keyed(range(size)))
    source = write_table(directory / "source", _keyed(range(half, half + size)))
    counts = {"numTargetRowsUpdated": size - half, "numTargetRowsInserted": half}
    return _upsert(target, source, counts)


def _upsert(target: Path, source: Path, counts: dict[str, int]) -> LimitMerge:
    # Where rows change, files are copied: these tables have no deletion vectors.
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT).into(target)
    return LimitMerge(target, statement, counts, _CLUSTER)


def _repeated(ids: range, length: int) -> pa.Table:
    """Return rows with texts of a length that take three values in turn, and share their memory."""
    texts = pa.array([letter * length for letter in "abc"])
    chunk = texts.take(pa.array([i % 3 for i in range(min(_ROWS_OF_A_CHUNK, len(ids)))]))
    whole, rest = divmod(len(ids), len(chunk))
    chunks = [chunk] * whole + [chunk.slice(0, rest)]
    return pa.table({"id": pa.array(ids, pa.int64()), "text": pa.chunked_array(chunks)})


def _keyed(ids: range) -> list[pa.Table]:
    """Return files of rows whose ids are long texts that differ at their ends."""
    prefix = "k" * (_KEY - 12)
    files = []
    for begin in range(0, len(ids), _ROWS_OF_A_CHUNK):
        part = ids[begin : begin + _ROWS_OF_A_CHUNK]
        keys = pa.array([f"{prefix}{i:012}" for i in part])
        files.append(pa.table({"id": keys, "number": pa.array(part, pa.int64())}))
    return files
