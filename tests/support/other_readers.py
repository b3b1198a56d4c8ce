"""Readers other than Spark: what each finds through a filter, and by a scan of all rows.

Each of them compares with itself alone, because they disagree about NaN: it equals nothing to
Arrow, and is the highest value to DuckDB, Polars and delta-rs.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

Path = tuple[str, ...]
"""The name of a column, and of a field within it."""

_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_COLUMNS, _FILTERS = 8, 50


class Reader(ABC):
    """Something that reads rows, which a whole number in their first column names."""

    @abstractmethod
    def filters(self, path: Path) -> Sequence[Any]:
        """Each operator with each value of a column, as the reader's own conditions."""

    @abstractmethod
    def through(self, filters: Sequence[Any]) -> list[list[int]]:
        """The rows that scans find to which filters are passed: they may skip row groups."""

    @abstractmethod
    def where(self, filters: Sequence[Any]) -> list[list[int]]:
        """The rows of a scan of all rows for which filters hold."""


def filters_that_lose_rows(reader: Reader, paths: Sequence[Path], seed: object) -> list[str]:
    """Filters, of some drawn ones, by which a reader finds other rows than they hold for."""
    draw = Random(repr(seed))
    drawn = draw.sample(list(paths), min(len(paths), _COLUMNS))
    filters = [each for path in drawn for each in reader.filters(path)]
    filters = draw.sample(filters, min(len(filters), _FILTERS))
    rows = zip(filters, reader.through(filters), reader.where(filters), strict=True)
    return [
        f"{type(reader).__name__} by {each}: {sorted(found)}, not {sorted(right)}"
        for each, found, right in rows
        if sorted(found) != sorted(right)
    ]


def of_files(files: Sequence[str]) -> Iterator[Reader]:
    """Yield the readers of Parquet files."""
    yield _duckdb(files)
    yield _Polars(polars.scan_parquet(list(files), glob=False))
    yield _Arrow(files)


def of_table(path: str) -> Iterator[Reader]:
    """Yield the readers of Delta tables, which may skip files by statistics in the log."""
    yield _delta_rs(path)
    yield _Polars(polars.scan_delta(path))


@dataclass(frozen=True)
class _Sql(Reader):
    """An engine that reads the relation `t`.

    Attributes:
        query: Run a query.
        row: The column that names a row.
        field: A field of a column, given `{0}` and `{1}`.
        kind: The type of `{0}`.
        literal: The value of a text `{0}` and a type `{1}`; a constant, so that it is pushed down.
        of_bytes: The value of hexadecimal digits `{0}`.
    """

    query: Callable[[str], pa.Table]
    row: str
    field: str
    kind: str
    literal: str
    of_bytes: str

    def filters(self, path: Path) -> Sequence[str]:
        column = f'"{path[0]}"' if len(path) == 1 else self.field.format(*path)
        values = self._values(column)
        return [
            *[f"{column} {name} {value}" for name in _OPERATORS for value in values],
            *[f"{column} IN ({a}, {b})" for a, b in pairwise(values)],
            f"{column} IS NULL",
            f"{column} IS NOT NULL",
        ]

    def through(self, filters: Sequence[Any]) -> list[list[int]]:
        scans = [
            f'SELECT {n} AS n, "{self.row}" AS i FROM t WHERE {each}'
            for n, each in enumerate(filters)
        ]
        found: list[list[int]] = [[] for _ in filters]
        for row in self.query(" UNION ALL ".join(scans)).to_pylist():
            found[row["n"]].append(row["i"])
        return found

    def where(self, filters: Sequence[Any]) -> list[list[int]]:
        holds = ", ".join(f'{each} AS "{n}"' for n, each in enumerate(filters))
        rows = self.query(f'SELECT "{self.row}" AS i, {holds} FROM t')
        return [rows.filter(rows[str(n)])["i"].to_pylist() for n in range(len(filters))]

    def _values(self, column: str) -> list[str]:
        columns = f"{column} AS value, TRY_CAST({column} AS VARCHAR) AS text"
        of_column = f"SELECT DISTINCT {columns}, {self.kind.format(column)} AS kind FROM t"
        return sorted(
            self.of_bytes.format(row["value"].hex())
            if isinstance(row["value"], bytes)
            else self.literal.format(row["text"], row["kind"])
            for row in self.query(f"{of_column} WHERE {column} IS NOT NULL").to_pylist()
        )


def _duckdb(files: Sequence[str]) -> Reader:
    # What it brings with it reads Parquet; extensions would be downloaded.
    settings = {"threads": 1, "autoinstall_known_extensions": False}
    connection = duckdb.connect(config=settings)
    connection.read_parquet(list(files)).create_view("t")
    return _Sql(
        lambda query: connection.sql(query).to_arrow_table(),
        row=pq.read_schema(files[0]).names[0],
        field='"{0}"."{1}"',
        kind="typeof({0})",
        literal="CAST('{0}' AS {1})",
        of_bytes="unhex('{0}')",
    )


def _delta_rs(path: str) -> Reader:
    table = deltalake.DeltaTable(path)
    engine = deltalake.QueryBuilder().register("t", table)
    return _Sql(
        lambda query: pa.table(engine.execute(query)),
        row=table.schema().fields[0].name,
        field="\"{0}\"['{1}']",
        kind="arrow_typeof({0})",
        literal="arrow_cast('{0}', '{1}')",
        of_bytes="decode('{0}', 'hex')",
    )


class _Polars(Reader):
    def __init__(self, rows: polars.LazyFrame) -> None:
        self._lazy = rows
        self._all = rows.collect()
        self._row = self._all.columns[0]

    def filters(self, path: Path) -> Sequence[polars.Expr]:
        column = polars.col(path[0])
        for name in path[1:]:
            column = column.struct.field(name)
        stored = self._all.select(value=column)["value"]
        values = [polars.lit(value, stored.dtype) for value in stored.drop_nulls().unique().sort()]
        return [
            *[compare(column, value) for compare in _OPERATORS.values() for value in values],
            *[(column == a) | (column == b) for a, b in pairwise(values)],
            column.is_null(),
            column.is_not_null(),
        ]

    def through(self, filters: Sequence[Any]) -> list[list[int]]:
        scans = (self._lazy.filter(each).select(self._row) for each in filters)
        return [scan.collect()[self._row].to_list() for scan in scans]

    def where(self, filters: Sequence[Any]) -> list[list[int]]:
        return [self._all.filter(each)[self._row].to_list() for each in filters]


class _Arrow(Reader):
    def __init__(self, files: Sequence[str]) -> None:
        self._dataset = ds.dataset(list(files), format="parquet")
        self._all = self._dataset.to_table()
        self._row = self._all.schema.names[0]

    def filters(self, path: Path) -> Sequence[ds.Expression]:
        column = ds.field(*path)
        stored = self._dataset.to_table({"value": column})["value"].drop_null().unique()
        return [
            *[compare(column, value) for compare in _OPERATORS.values() for value in stored],
            *[column.isin([a, b]) for a, b in pairwise(stored)],
            column.is_null(),
            column.is_valid(),
        ]

    def through(self, filters: Sequence[Any]) -> list[list[int]]:
        return [
            self._dataset.to_table([self._row], filter=each)[self._row].to_pylist()
            for each in filters
        ]

    def where(self, filters: Sequence[Any]) -> list[list[int]]:
        return [self._all.filter(each)[self._row].to_pylist() for each in filters]
