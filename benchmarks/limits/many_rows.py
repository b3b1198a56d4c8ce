"""Limits of rows: a source larger than an executor's memory, pairs, and a target of many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import write_file, write_table
from benchmarks.limits.limit import LimitMerge
from benchmarks.merge.case import UPSERT, Statement

_ROWS_OF_A_FILE = 1_000_000
_EXECUTOR_MIB = 1024
_PAYLOAD_BYTES = 1024


def large_source(directory: Path, size: int) -> LimitMerge:
    """Write an upsert of `size` MiB of rows, for an executor that has half as much memory.

    The engine materializes a source of Parquet files, because they could change. The payload of the
    rows cannot be compressed. One executor with two cores runs in a separate process.
    """
    target, source = directory / "target", directory / "source"
    rows = size * 1024 * 1024 // _PAYLOAD_BYTES
    there = rows // 10
    _write(target, there, lambda ids: _with_payload(ids, seed=0), rows_of_a_file=100_000)
    for number, ids in enumerate(_ranges(range(there // 2, there // 2 + rows), 100_000)):
        write_file(source, f"part-{number}.parquet", _with_payload(ids, seed=number + 1), [])
    statement = Statement(f"parquet.`{source}`", "t.id = s.id", UPSERT).into(target)
    matched = there - there // 2
    counts = {"numTargetRowsUpdated": matched, "numTargetRowsInserted": rows - matched}
    cluster = {"spark.master": f"local-cluster[1,2,{_EXECUTOR_MIB}]"}
    cluster["spark.executor.memory"] = f"{_EXECUTOR_MIB}m"
    return LimitMerge(target, statement, counts, cluster)


def _with_payload(ids: range, seed: int) -> pa.Table:
    drawn = np.random.default_rng(seed).bytes(len(ids) * _PAYLOAD_BYTES)
    buffers = [None, pa.py_buffer(drawn)]
    payload = pa.Array.from_buffers(pa.binary(_PAYLOAD_BYTES), len(ids), buffers)
    return pa.table({"id": pa.array(ids, pa.int64()), "payload": payload.cast(pa.binary())})


def many_pairs(directory: Path, size: int) -> LimitMerge:
    """Write a delete of three of four rows in each file; two source rows match each of these.

    So half as many rows are deleted as there are pairs.
    """
    target, source = directory / "target", directory / "source"
    deleted = size // 2
    keys = max(4, deleted // 4_000 * 4)  # rows take the keys in turn

    def rows(ids: range) -> pa.Table:
        return pa.table(
            {"id": pa.array(ids, pa.int64()), "k": np.arange(ids.start, ids.stop) % keys}
        )

    number = deleted * 4 // 3 // keys * keys
    _write(target, number, rows)
    # The source has three of every four keys.
    matching = [key for key in range(keys) if key % 4]
    twice = pa.table({"k": pa.array(matching * 2, pa.int64())})
    write_table(source, [twice], measured=["k"])
    delete = ("WHEN MATCHED THEN DELETE",)
    statement = Statement(sql_name(source), "t.k = s.k", delete).into(target)
    return LimitMerge(target, statement, {"numTargetRowsDeleted": number // 4 * 3})


def many_rows(directory: Path, size: int) -> LimitMerge:
    """Write an upsert that updates a tenth of the rows and inserts a hundredth as many."""
    target, source = directory / "target", directory / "source"
    new = size // 100

    def rows(ids: range) -> pa.Table:
        of = np.arange(ids.start, ids.stop, ids.step)
        columns = {"id": of, "customer": (of * 7919 % 1_000_003).astype("int32"), "price": of / 7}
        return pa.table({**columns, "state": pa.repeat("open", len(of))})

    _write(target, size, rows)
    _write(source, size // 10 + new, lambda ids: rows(range(ids.start * 10, ids.stop * 10, 10)))
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT).into(target)
    counts = {"numTargetRowsUpdated": size // 10, "numTargetRowsInserted": new}
    return LimitMerge(target, statement, counts)


def _write(
    path: Path,
    number: int,
    rows: Callable[[range], pa.Table],
    rows_of_a_file: int = _ROWS_OF_A_FILE,
) -> None:
    """Write a table of this many rows; the first column is its key."""
    files = (rows(ids) for ids in _ranges(range(number), rows_of_a_file))
    key = rows(range(0)).column_names[:1]
    write_table(path, files, measured=key, deletion_vectors=True)


def _ranges(ids: range, length: int) -> Iterator[range]:
    """Split the range into pieces of this length."""
    for begin in range(0, len(ids), length):
        yield ids[begin : begin + length]
