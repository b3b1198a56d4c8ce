"""Limits of rows: a source larger than an executor's memory, pairs, and a target of many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import table_actions, write_commit, write_file
from benchmarks.limits.limit import LimitMerge

if TYPE_CHECKING:
    import pyarrow

_ROWS_OF_A_FILE = 1_000_000
_EXECUTOR_MIB = 1024
_PAYLOAD_BYTES = 1024
_UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def large_source(directory: Path, size: int) -> LimitMerge:
    """An upsert of `size` MiB of rows, with an executor that has half as much memory.

    The engine materializes a source of Parquet files, because they could change. The payload of the
    rows cannot be compressed. One executor with two cores runs in a separate process.
    """
    target, source = directory / "target", directory / "source"
    rows = size * 1024 * 1024 // _PAYLOAD_BYTES
    there = rows // 10
    _write(target, there, lambda ids: _with_payload(ids, seed=0), rows_of_a_file=100_000)
    for number, ids in enumerate(_ranges(range(there // 2, there // 2 + rows), 100_000)):
        write_file(source, f"part-{number}.parquet", _with_payload(ids, seed=number + 1), [])
    statement = (
        f"MERGE INTO {sql_name(target)} t USING parquet.`{source}` s ON t.id = s.id {_UPSERT}"
    )
    matched = there - there // 2
    counts = {"numTargetRowsUpdated": matched, "numTargetRowsInserted": rows - matched}
    cluster = {"spark.master": f"local-cluster[1,2,{_EXECUTOR_MIB}]"}
    cluster["spark.executor.memory"] = f"{_EXECUTOR_MIB}m"
    return LimitMerge(target, statement, counts, cluster)


def _with_payload(ids: range, seed: int) -> pyarrow.Table:
    import numpy as np
    import pyarrow as pa

    drawn = np.random.default_rng(seed).bytes(len(ids) * _PAYLOAD_BYTES)
    buffers = [None, pa.py_buffer(drawn)]
    payload = pa.Array.from_buffers(pa.binary(_PAYLOAD_BYTES), len(ids), buffers)
    return pa.table({"id": pa.array(ids, pa.int64()), "payload": payload.cast(pa.binary())})


def many_pairs(directory: Path, size: int) -> LimitMerge:
    """A delete of three of four rows in each file, where two source rows match each deleted row.

    So half as many rows are deleted as there are pairs.
    """
    import pyarrow as pa

    target, source = directory / "target", directory / "source"
    deleted = size // 2
    keys = max(4, deleted // 4_000 * 4)  # rows take the keys in turn

    def rows(ids: range) -> pyarrow.Table:
        import numpy as np

        return pa.table(
            {"id": pa.array(ids, pa.int64()), "k": np.arange(ids.start, ids.stop) % keys}
        )

    number = deleted * 4 // 3 // keys * keys
    _write(target, number, rows)
    # The source has three of every four keys.
    matching = [key for key in range(keys) if key % 4]
    twice = pa.table({"k": pa.array(matching * 2, pa.int64())})
    add = write_file(source, "part-0.parquet", twice, ["k"])
    write_commit(source, 0, [*table_actions(twice.schema, deletion_vectors=False), add])
    statement = (
        f"MERGE INTO {sql_name(target)} t USING {sql_name(source)} s ON t.k = s.k "
        "WHEN MATCHED THEN DELETE"
    )
    return LimitMerge(target, statement, {"numTargetRowsDeleted": number // 4 * 3})


def many_rows(directory: Path, size: int) -> LimitMerge:
    """An upsert that updates a tenth of the rows and inserts a hundredth as many new ones."""
    target, source = directory / "target", directory / "source"
    new = size // 100

    def rows(ids: range) -> pyarrow.Table:
        import numpy as np
        import pyarrow as pa

        of = np.arange(ids.start, ids.stop, ids.step)
        columns = {"id": of, "customer": (of * 7919 % 1_000_003).astype("int32"), "price": of / 7}
        return pa.table({**columns, "state": pa.repeat("open", len(of))})

    _write(target, size, rows)
    _write(source, size // 10 + new, lambda ids: rows(range(ids.start * 10, ids.stop * 10, 10)))
    statement = (
        f"MERGE INTO {sql_name(target)} t USING {sql_name(source)} s ON t.id = s.id {_UPSERT}"
    )
    counts = {"numTargetRowsUpdated": size // 10, "numTargetRowsInserted": new}
    return LimitMerge(target, statement, counts)


def _write(
    path: Path,
    number: int,
    rows: Callable[[range], pyarrow.Table],
    rows_of_a_file: int = _ROWS_OF_A_FILE,
) -> None:
    """Write a table of this many rows; the first column is its key."""
    adds = []
    for place, ids in enumerate(_ranges(range(number), rows_of_a_file)):
        written = rows(ids)
        adds.append(write_file(path, f"part-{place}.parquet", written, written.column_names[:1]))
    write_commit(path, 0, [*table_actions(rows(range(0)).schema, deletion_vectors=True), *adds])


def _ranges(ids: range, length: int) -> Iterator[range]:
    """Split the range into pieces of this length."""
    for begin in range(0, len(ids), length):
        yield ids[begin : begin + length]
