"""Rows of a source that come to the driver before anything has measured them: few and short ones.

Spark's estimates do not bound what a query gives: texts may be made, repeated, or compressed in
files. So the query that hands the rows over cuts them itself, and says whether it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    AnsiIntervalType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.delta.jvm import selected_by_text
from deltaweave.delta.scan import first_of_partitions
from deltaweave.engine import limits
from deltaweave.engine.columns import IS_LONG, PARTITION
from deltaweave.engine.source.prepared import PreparedSource
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    import pyarrow

_OF_FIXED_LENGTH = (
    AnsiIntervalType,
    BooleanType,
    DateType,
    NullType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)


def handed_over(
    source: PreparedSource,
    rows_of: Callable[[DataFrame], DataFrame],
    collect: Callable[[Callable[[], DataFrame | None]], pyarrow.Table | None],
) -> pyarrow.Table | None:
    """All rows that a query gives; None if they are not certain to be few and short.

    Args:
        source: A source that is to be materialized. It is, if all of its rows came.
        rows_of: The query, which gives one row for each.
        collect: Runs a query; None if it fails, or if there is none.
    """
    import pyarrow.compute as pc

    most = limits.MAX_ROWS_HANDED_OVER // max(source.num_partitions, 1)
    if not most:
        return None
    table = collect(lambda: _cut(rows_of(first_of_partitions(source.rows, most + 1))))
    if table is None or pc.any(table[IS_LONG]).as_py():
        return None
    of_partitions = pc.value_counts(table[PARTITION]).field("counts")
    if (pc.max(of_partitions).as_py() or 0) > most:
        return None
    return table.drop_columns([IS_LONG, PARTITION])


def _cut(rows: DataFrame) -> DataFrame | None:
    """The rows, with nulls in place of long ones; whether each is long, and its partition.

    None if the length of a row is not known by its texts and the number of its columns.
    """
    lengths = list(_lengths(rows.schema))
    if None in lengths or len(lengths) > limits.MAX_COLUMNS_HANDED_OVER:
        return None
    length = " + ".join(f"coalesce({each}, 0)" for each in lengths if each) or "0"
    is_long = f"{length} > {limits.MAX_BYTES_OF_ROW_HANDED_OVER}"
    cut = [f"IF({is_long}, NULL, {quoted(name)}) AS {quoted(name)}" for name in rows.columns]
    further = [f"{is_long} AS {IS_LONG}", f"spark_partition_id() AS {PARTITION}"]
    return selected_by_text(rows, [*cut, *further])


def _lengths(schema: StructType, within: str = "") -> Iterator[str | None]:
    """For each column and field, what its length is in SQL: empty if fixed, None if not known."""
    for field in schema:
        path, kind = f"{within}{quoted(field.name)}", field.dataType
        if isinstance(kind, StructType):
            yield from _lengths(kind, f"{path}.")
        else:
            yield _length(path, kind)


def _length(path: str, kind: DataType) -> str | None:
    if isinstance(kind, _OF_FIXED_LENGTH):
        return ""
    return f"octet_length({path})" if isinstance(kind, (StringType, BinaryType)) else None
