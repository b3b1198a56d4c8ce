"""Clauses that read the target, in a merge on the driver: what they make of each pair.

pyarrow reads the columns that they read, at the places of the pairs. Spark evaluates conditions and
values over the pairs, by one query that reads no file. Columns that an update leaves as they are go
from the old file to the new one as Arrow has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.delta.commit import Transaction
from deltaweave.delta.scan import with_ids_of
from deltaweave.delta.statement import TargetReads
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    BREAKS_CONSTRAINT,
    CLAUSE,
    FILE,
    NEW_ROW,
    READ,
    SOURCE_ROW,
    TARGET_ROW_ID,
    VALUES,
)
from deltaweave.engine.find import DriverPairs, check_zones, path_of
from deltaweave.engine.source import (
    CollectedSource,
    unless_it_fails,
    values_where_taken,
    with_broken_values,
)
from deltaweave.engine.statement import first_match
from deltaweave.engine.tasks import NotRewritableError, TableFormat, as_stored, opened, rows_at
from deltaweave.engine.write.driver_values import NewValues, check_size

if TYPE_CHECKING:
    import pyarrow

# Types whose values survive the way from a file through Arrow to Spark and back.
_SURVIVING = (
    *(BooleanType, IntegralType, FractionalType, DecimalType, BinaryType),
    *(DateType, TimestampType, TimestampNTZType),
)


def survives(data_type: DataType) -> bool:
    """Whether values of a type survive the way from a file through Arrow to Spark and back."""
    is_text = isinstance(data_type, StringType) and data_type.simpleString() == "string"
    return is_text or isinstance(data_type, _SURVIVING)


def values_of_pairs(
    transaction: Transaction,
    source: CollectedSource,
    pairs: DriverPairs,
    reads: TargetReads,
    conditions: Sequence[Column],
    table: TableFormat,
) -> tuple[DriverPairs, NewValues]:
    """The pairs with the clauses that take them, and what these give; `NEW_ROW` is their number.

    Args:
        transaction: The merge's transaction.
        source: The source's rows.
        pairs: The pairs. If clauses read the target for conditions or values, no pair has a clause.
        reads: What the clauses read.
        conditions: What new rows must satisfy; if there are any, `reads` has whole rows.
        table: What files look like.

    Raises:
        NotRewritableError: Spark must do it.
        SourceError: The query was cancelled.
        OSError: A file could not be read; so with Arrow's errors.
    """
    import numpy as np
    import pyarrow as pa

    found = pairs.pairs.on_driver
    assert found is not None, "pairs_on_driver"
    if not len(found):
        return pairs, NewValues(table.schema, {})
    names = transaction.merge.evolved_schema.names
    physical = transaction.table.physical_names
    kept = dict.fromkeys(name for i in reads.computed for name in reads.kept(i, names))
    wanted = [physical[name] for name in dict.fromkeys([*kept, *(a.name for a in reads.target)])]
    old_rows = _old_rows(found, [physical[a.name] for a in reads.target], wanted, table)
    if reads.target:
        read = [old_rows[physical[attribute.name]] for attribute in reads.target]
        of_source = source.rows.select([f"{READ}{i}" for i in range(len(reads.source))])
        read += of_source.take(found[SOURCE_ROW]).columns
        evaluated = _evaluated(transaction, read, reads, conditions)
        found = found.set_column(
            found.column_names.index(CLAUSE), CLAUSE, evaluated[CLAUSE].cast(pa.int32())
        )
    else:
        evaluated = source.rows.take(found[SOURCE_ROW])
    check_size(source.rows.nbytes, found[SOURCE_ROW])
    clauses = found[CLAUSE].to_numpy()
    numbers = np.zeros(len(clauses), dtype=np.int64)
    of_clause, broken = {}, {}
    for i, clause in enumerate(transaction.merge.clauses):
        here = np.flatnonzero(clauses == i)
        if clause.kind == "matched" and clause.action == "update" and len(here):
            numbers[here] = np.arange(len(here))
            values = f"{VALUES}{i}" if reads.target else source.values_of[i]
            rows = evaluated.take(pa.array(here))
            keeps = {physical[name] for name in reads.kept(i, names)}
            computed = pa.schema([field for field in table.schema if field.name not in keeps])
            new = as_stored(rows[values], computed)
            old = old_rows.take(pa.array(here)) if keeps else old_rows
            columns = [(old if name in keeps else new)[name] for name in table.schema.names]
            of_clause[i] = pa.table(columns, schema=table.schema)
            if f"{BREAKS_CONSTRAINT}{values}" in rows.column_names:
                broken[i] = rows[f"{BREAKS_CONSTRAINT}{values}"].to_numpy()
    found = found.set_column(found.column_names.index(NEW_ROW), NEW_ROW, pa.array(numbers))
    new_values = NewValues(table.schema, of_clause, broken)
    return replace(pairs, pairs=replace(pairs.pairs, on_driver=found)), new_values


def _old_rows(
    pairs: pyarrow.Table, through_spark: Sequence[str], wanted: Sequence[str], table: TableFormat
) -> pyarrow.Table:
    """The target's row of each pair.

    Args:
        pairs: The pairs, with those of a file one after the other, in the order of its rows.
        through_spark: The columns that Spark evaluates, by the names in files.
        wanted: All columns that are read.
        table: What files look like.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([table.schema.field(name) for name in wanted])
    checked = [table.schema.field(name) for name in through_spark]
    parts, left = [schema.empty_table()], limits.MAX_NEW_BYTES_ON_DRIVER
    for name in pairs[FILE].unique().to_pylist():
        path = path_of(name)
        with opened(path) as file:
            check_zones(file, checked)
        of_file = pairs.filter(pc.equal(pairs[FILE], name))
        places, of_pair = np.unique(of_file[TARGET_ROW_ID].to_numpy(), return_inverse=True)
        rows = rows_at(path, places, replace(table, schema=schema), left)
        left -= rows.nbytes * -(-len(of_pair) // len(places))
        if left < 0:
            raise NotRewritableError("the rows that clauses read are too big")
        parts.append(rows.take(pa.array(of_pair)))
    return pa.concat_tables(parts).combine_chunks()


def _evaluated(
    transaction: Transaction,
    read: Sequence[pyarrow.ChunkedArray],
    reads: TargetReads,
    conditions: Sequence[Column],
) -> pyarrow.Table:
    """The clause that takes each pair, its values and, with conditions, whether these break any."""
    import numpy as np
    import pyarrow as pa

    merge, attributes = transaction.merge, [*reads.target, *reads.source]
    fields = [StructField(f"{READ}{i}", a.data_type) for i, a in enumerate(attributes)]
    schema = StructType([*fields, StructField(NEW_ROW, LongType())])
    pairs = pa.table([*read, np.arange(len(read[0]))], names=schema.names)
    if pairs.nbytes > limits.MAX_BYTES_ON_DRIVER:
        raise NotRewritableError("the values that clauses read are too big")
    values_of = {
        i: f"{VALUES}{i}"
        for i, clause in enumerate(merge.clauses)
        if clause.kind == "matched" and clause.action == "update"
    }

    def query() -> DataFrame:
        rows = merge.spark.createDataFrame(pairs, schema)
        rows = with_ids_of(merge, rows, [attribute.node for attribute in attributes])
        rows = rows.withColumn(CLAUSE, first_match(merge))
        values = values_where_taken(merge, values_of, reads, (CLAUSE,))
        rows = rows.select(NEW_ROW, CLAUSE, *values)
        return with_broken_values(rows, merge, values_of, conditions) if conditions else rows

    evaluated = unless_it_fails(merge, query)
    if evaluated is None:
        raise NotRewritableError("clauses could not be evaluated")
    return evaluated.sort_by(NEW_ROW).combine_chunks()
