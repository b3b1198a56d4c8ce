"""Reads tables through filters, as readers do that skip row groups and files, and without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from deltaweave.identifiers import quoted
from tests.support.settings import configured

VECTORIZED: Mapping[str, str] = {}  # as Spark does by default
ROW_READER = {"spark.sql.parquet.enableVectorizedReader": "false"}
_OPERATORS = (
    "{c} = {v}",
    "{c} <> {v}",
    "{c} < {v}",
    "{c} <= {v}",
    "{c} > {v}",
    "{c} >= {v}",
    "{c} <=> {v}",
    "{c} IN ({v}, {w})",
    "{c} NOT IN ({v}, {w})",
    "{c} BETWEEN {v} AND {w}",
    "{c} IS NULL",
    "{c} IS NOT NULL",
)
_OF_TEXTS = ("startswith({c}, left({v}, 1))", "startswith({c}, {v})")  # what LIKE 'x%' becomes
_SCANS_AT_ONCE = 40


def assert_reads_alike_through_filters(
    spark: SparkSession,
    path: str,
    expected: str,
    filters: Sequence[str],
    readers: Sequence[Mapping[str, str]] = (VECTORIZED,),
) -> None:
    """Assert that filters find the rows that they hold for, and that both tables hold the same.

    Args:
        spark: A Delta-enabled session.
        path: The table that is read through filters.
        expected: The table with the rows that there must be.
        filters: Conditions over the columns.
        readers: Configurations of Spark's reader.
    """
    right = rows_where(_table(spark, expected), filters)
    assert rows_where(_table(spark, path), filters) == right
    for reader in readers:
        with configured(spark, reader):
            assert rows_through(_table(spark, path), filters) == right, reader


def rows_where(table: DataFrame, filters: Sequence[str]) -> dict[str, list[str]]:
    """The rows for which each filter holds, by one scan of all rows: nothing is pushed down."""
    holds = [F.expr(f"({each}) IS TRUE").alias(str(n)) for n, each in enumerate(filters)]
    rows = table.select(_as_text(table), *holds).collect()
    return {
        each: sorted(_decoded(row[0]) for row in rows if row[n])
        for n, each in enumerate(filters, start=1)
    }


def rows_through(table: DataFrame, filters: Sequence[str]) -> dict[str, list[str]]:
    """The rows that each filter finds, by a scan for each: it may skip files, groups and pages."""
    found: dict[str, list[str]] = {each: [] for each in filters}
    for start in range(0, len(filters), _SCANS_AT_ONCE):
        scans = [
            table.where(each).select(F.lit(each), _as_text(table))
            for each in filters[start : start + _SCANS_AT_ONCE]
        ]
        for each, row in reduce(DataFrame.union, scans).collect():
            found[each].append(_decoded(row))
    return {each: sorted(rows) for each, rows in found.items()}


def drawn_filters(table: DataFrame, number: int, seed: object) -> list[str]:
    """Draw filters of columns and of fields in structs, with the values that a table holds."""
    draw = Random(repr(seed))
    leaves = [leaf for leaf in _leaves(table.schema, "") if _is_compared(leaf[1])]
    values = _values(table, leaves)
    found = set()
    for _ in range(number):
        place = draw.randrange(len(leaves))
        name, kind = leaves[place]
        texts = _OF_TEXTS if isinstance(kind, StringType) else ()
        of_it = values[place] or ["NULL"]
        operator = draw.choice((*_OPERATORS, *texts))
        found.add(operator.format(c=name, v=draw.choice(of_it), w=draw.choice(of_it)))
    return sorted(found)


def give_floating_bounds(file: Path) -> None:
    """Write a file as releases did that gave all columns statistics."""
    stored = pq.read_table(file)
    metadata = pq.ParquetFile(file).metadata.metadata or {}
    keys = {key: value for key, value in metadata.items() if key.startswith(b"org.apache.spark.v")}
    with pq.ParquetWriter(file, stored.schema, store_schema=False, write_page_index=True) as writer:
        writer.write_table(stored)
        writer.add_key_value_metadata(keys)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _table(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path)


def _leaves(schema: StructType, within: str) -> Iterator[tuple[str, DataType]]:
    for field in schema.fields:
        name = within + quoted(field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, f"{name}.")
        else:
            yield name, field.dataType


def _is_compared(kind: DataType) -> bool:
    return not isinstance(kind, ArrayType | MapType | VariantType)


def _values(table: DataFrame, leaves: Sequence[tuple[str, DataType]]) -> list[list[str]]:
    """The values of each leaf as literals that Spark folds before it pushes a filter down.

    No zero of floating values: Spark finds no -0.0 by `= 0` in files of its own, if they hold it in
    a dictionary.
    """
    are_bytes = [isinstance(kind, StringType | BinaryType) for _, kind in leaves]
    texts = [
        F.expr(f"hex({name})" if is_bytes else f"CAST({name} AS STRING)").alias(str(n))
        for n, ((name, _), is_bytes) in enumerate(zip(leaves, are_bytes, strict=True))
    ]
    rows = table.select(*texts).collect()
    return [
        sorted(
            {
                f"CAST({'X' if are_bytes[n] else ''}'{row[n]}' AS {kind.simpleString()})"
                for row in rows
                if row[n] is not None
                and not (isinstance(kind, FloatType | DoubleType) and float(row[n]) == 0)
            }
        )
        for n, (_, kind) in enumerate(leaves)
    ]


def _as_text(table: DataFrame) -> Column:
    """A row as text; values that differ look different: -0.0 and NaN, too."""
    columns = ", ".join(map(quoted, table.columns))
    return F.expr(f"hex(CAST(struct({columns}) AS STRING))").alias("row")


def _decoded(row: str) -> str:
    return bytes.fromhex(row).decode(errors="backslashreplace")
