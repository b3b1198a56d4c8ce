"""Limits of the log: a million files, few of them touched, and many touched partitions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import (
    add_type,
    table_actions,
    write_checkpoint,
    write_commit,
    write_file,
    write_table,
)
from benchmarks.limits.limit import LimitMerge
from benchmarks.merge.case import UPSERT, Statement

_ROWS_OF_A_FILE = 1_000
_REAL_FILES = 5


def many_add_files(directory: Path, size: int) -> LimitMerge:
    """Write an upsert that must find the few files that exist by the source's keys alone."""
    target = directory / "target"
    adds = [
        write_file(
            target,
            f"real-{number}.parquet",
            _rows(range(number * _ROWS_OF_A_FILE, (number + 1) * _ROWS_OF_A_FILE), "open"),
            ["id"],
        )
        for number in range(_REAL_FILES)
    ]
    table = table_actions(_rows(range(0), "").schema, deletion_vectors=True)
    write_commit(target, 0, [*table, *adds])
    # Readers use the checkpoint instead of the commits up to it.
    write_commit(target, 1, [])
    write_checkpoint(target, 1, [*table, *adds], _named_alone(range(_REAL_FILES, size)))
    there, begin = _REAL_FILES * _ROWS_OF_A_FILE, size * _ROWS_OF_A_FILE
    ids = [*range(0, there, 100), *range(begin, begin + 50)]
    source = write_table(directory / "source", [_rows(ids, "sent")], measured=["id"])
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT).into(target)
    counts = {"numTargetRowsUpdated": there // 100, "numTargetRowsInserted": 50}
    return LimitMerge(target, statement, counts)


def _named_alone(numbers: range) -> pa.Array:
    """Return AddFiles of files that do not exist; the number of each gives its range of ids."""
    n = _ROWS_OF_A_FILE
    statistics = [
        f'{{"numRecords":{n},"minValues":{{"id":{i * n}}},"maxValues":{{"id":{(i + 1) * n - 1}}},'
        '"nullCount":{"id":0}}'
        for i in numbers
    ]
    length = len(numbers)
    values = {
        "path": pa.array([f"part-{i:08}.snappy.parquet" for i in numbers]),
        "partitionValues": pa.array([[]] * length, add_type().field("partitionValues").type),
        "size": pa.repeat(pa.scalar(10_000, pa.int64()), length),
        "modificationTime": pa.repeat(pa.scalar(0, pa.int64()), length),
        "dataChange": pa.repeat(True, length),
        "stats": pa.array(statistics),
    }
    return pa.StructArray.from_arrays(list(values.values()), fields=list(add_type()))


def many_partitions(directory: Path, size: int) -> LimitMerge:
    """Write an update of one row in each partition."""
    target, of_partition = directory / "target", 10
    adds = []
    for number in range(size):
        ids = range(number * of_partition, (number + 1) * of_partition)
        name = f"p={number}/part-0.parquet"
        adds.append(write_file(target, name, _rows(ids, "open"), ["id"], {"p": str(number)}))
    schema = _rows(range(0), "").schema.append(pa.field("p", pa.int32()))
    table = table_actions(schema, deletion_vectors=True, partitioned_by=["p"])
    write_commit(target, 0, [*table, *adds])
    rows = _rows(range(0, size * of_partition, of_partition), "sent")
    rows = rows.append_column("p", pa.array(range(size), pa.int32()))
    source = write_table(directory / "source", [rows], measured=["id"])
    statement = Statement(sql_name(source), "t.p = s.p AND t.id = s.id", UPSERT).into(target)
    return LimitMerge(target, statement, {"numTargetRowsUpdated": size})


def _rows(ids: range | list[int], state: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "state": pa.repeat(state, len(ids))})
