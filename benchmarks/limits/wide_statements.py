"""Limits of planning: a statement of many clauses, and a table of many columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import table_actions, write_commit, write_file
from benchmarks.limits.limit import LimitMerge

if TYPE_CHECKING:
    import pyarrow

_ROWS = 10_000  # rows of each target; half as many source rows match, and half as many are new
_VALUES = 10  # value columns of the table for many clauses


def many_clauses(directory: Path, size: int) -> LimitMerge:
    """Half of the clauses are WHEN MATCHED, three tenths NOT MATCHED, the rest BY SOURCE."""
    import pyarrow as pa

    not_matched, by_source = size * 3 // 10, size * 2 // 10
    matched = size - not_matched - by_source
    target, source = directory / "target", directory / "source"
    names = [f"v{i}" for i in range(_VALUES)]
    _write(target, _numbered(range(_ROWS), names), deletion_vectors=True)
    rows = _numbered(range(_ROWS // 2, _ROWS * 3 // 2), names)
    # `op` chooses the clause among those of its kind.
    rows = rows.append_column("op", pa.array(range(_ROWS), pa.int32()))
    _write(source, rows)
    clauses = [
        *_matched(matched, names),
        *_not_matched(not_matched, names),
        *_by_source(by_source),
    ]
    statement = (
        f"MERGE INTO {sql_name(target)} t USING {sql_name(source)} s ON t.id = s.id "
        + " ".join(clauses)
    )
    deleted = len(range(matched - 1, _ROWS // 2, matched))
    return LimitMerge(
        target,
        statement,
        {
            "numTargetRowsDeleted": deleted,
            "numTargetRowsUpdated": _ROWS - deleted,
            "numTargetRowsInserted": _ROWS // 2,
        },
    )


def _matched(number: int, names: list[str]) -> Iterator[str]:
    for i in range(number - 1):
        name = names[i % len(names)]
        yield (
            f"WHEN MATCHED AND s.op % {number} = {i} THEN "
            f"UPDATE SET {name} = s.{name} + {i}, state = concat(s.state, '{i}')"
        )
    yield "WHEN MATCHED THEN DELETE"


def _not_matched(number: int, names: list[str]) -> Iterator[str]:
    for i in range(number):
        name = names[i % len(names)]
        yield (
            f"WHEN NOT MATCHED AND s.op % {number} = {i} THEN "
            f"INSERT (id, state, {name}) VALUES (s.id, concat(s.state, '{i}'), s.{name} + {i})"
        )


def _by_source(number: int) -> Iterator[str]:
    for i in range(number):
        yield (
            f"WHEN NOT MATCHED BY SOURCE AND t.id % {number} = {i} THEN "
            f"UPDATE SET state = concat(t.state, '{i}')"
        )


def many_columns(directory: Path, size: int) -> LimitMerge:
    """An upsert of all columns."""
    target, source = directory / "target", directory / "source"
    names = [f"v{i}" for i in range(size - 2)]
    _write(target, _numbered(range(_ROWS), names), deletion_vectors=True)
    _write(source, _numbered(range(_ROWS // 2, _ROWS * 3 // 2), names))
    statement = (
        f"MERGE INTO {sql_name(target)} t USING {sql_name(source)} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    counts = {"numTargetRowsUpdated": _ROWS // 2, "numTargetRowsInserted": _ROWS // 2}
    return LimitMerge(target, statement, counts)


def _numbered(ids: range, names: list[str]) -> pyarrow.Table:
    """Rows with an id, a state, and value columns of these names."""
    import pyarrow as pa

    values = pa.array(ids, pa.int32())
    columns = {"id": pa.array(ids, pa.int64()), "state": pa.repeat("open", len(ids))}
    return pa.table({**columns, **dict.fromkeys(names, values)})


def _write(path: Path, rows: pyarrow.Table, *, deletion_vectors: bool = False) -> None:
    add = write_file(path, "part-0.parquet", rows, ["id"])
    actions = table_actions(rows.schema, deletion_vectors=deletion_vectors)
    write_commit(path, 0, [*actions, add])
