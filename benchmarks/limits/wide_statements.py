"""Limits of planning: a statement of many clauses, and a table of many columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.data.tables import sql_name
from benchmarks.data.written_tables import write_table
from benchmarks.limits.limit import LimitMerge
from benchmarks.merge.case import UPSERT, Statement

_ROWS = 10_000  # rows of each target; half as many source rows match, and half as many are new
_VALUES = 10  # value columns of the table for many clauses


def many_clauses(directory: Path, size: int) -> LimitMerge:
    """Write a merge with half of the clauses MATCHED and a fifth NOT MATCHED BY SOURCE."""
    not_matched, by_source = size * 3 // 10, size * 2 // 10
    matched = size - not_matched - by_source
    names = [f"v{i}" for i in range(_VALUES)]
    target = _target(directory, names)
    rows = _numbered(range(_ROWS // 2, _ROWS * 3 // 2), names)
    # `op` chooses the clause among those of its kind.
    rows = rows.append_column("op", pa.array(range(_ROWS), pa.int32()))
    source = _source(directory, rows)
    clauses = (
        *_matched(matched, names),
        *_not_matched(not_matched, names),
        *_by_source(by_source),
    )
    statement = Statement(sql_name(source), "t.id = s.id", clauses).into(target)
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
    """Write an upsert of all columns."""
    names = [f"v{i}" for i in range(size - 2)]
    target = _target(directory, names)
    source = _source(directory, _numbered(range(_ROWS // 2, _ROWS * 3 // 2), names))
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT).into(target)
    counts = {"numTargetRowsUpdated": _ROWS // 2, "numTargetRowsInserted": _ROWS // 2}
    return LimitMerge(target, statement, counts)


def _numbered(ids: range, names: list[str]) -> pa.Table:
    """Return rows with an id, a state, and value columns of these names."""
    values = pa.array(ids, pa.int32())
    columns = {"id": pa.array(ids, pa.int64()), "state": pa.repeat("open", len(ids))}
    return pa.table({**columns, **dict.fromkeys(names, values)})


def _target(directory: Path, names: list[str]) -> Path:
    rows = [_numbered(range(_ROWS), names)]
    return write_table(directory / "target", rows, measured=["id"], deletion_vectors=True)


def _source(directory: Path, rows: pa.Table) -> Path:
    return write_table(directory / "source", [rows], measured=["id"])
