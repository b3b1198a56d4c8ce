"""Clauses that read the target, in a merge on the driver: what they make of each pair.

pyarrow reads the columns that they read, at the places of the pairs. Spark evaluates conditions and
values over the pairs, by one query that reads no file. Columns that an update leaves as they are go
from the old file to the new one as Arrow has them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from deltaweave.delta.statement import ResolvedMerge, TargetReads
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
    import numpy
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
    source_rows = found[SOURCE_ROW]
    check_size(source.rows.nbytes, source_rows.to_numpy())
    physical = transaction.table.physical_names
    through_spark = [physical[attribute.name] for attribute in reads.target]
    names = transaction.merge.evolved_schema.names
    kept_by = {
        i: {physical[name] for name in reads.kept(i, names)}
        for i in _update_clauses(transaction.merge)
    }
    kept = [name for names_of_clause in kept_by.values() for name in names_of_clause]
    old_rows = _old_rows(found, through_spark, kept, table)
    if reads.target:
        of_source = source.rows.select([f"{READ}{i}" for i in range(len(reads.source))])
        read = [*old_rows.select(through_spark).columns, *of_source.take(source_rows).columns]
        values = _evaluated(transaction, read, reads, conditions)
        clauses = values[CLAUSE].to_numpy()
    else:
        values = source.rows.take(source_rows)
        clauses = found[CLAUSE].to_numpy()
    numbers = np.full(len(clauses), -1)
    of_clause, broken = {}, {}
    for i in _update_clauses(transaction.merge):
        here = np.flatnonzero(clauses == i)
        numbers[here] = np.arange(len(here))
        name = f"{VALUES}{i}" if reads.target else source.values_of[i]
        computed = values.take(pa.array(here))
        of_clause[i] = _new_rows(computed[name], old_rows, here, kept_by[i], table)
        if f"{BREAKS_CONSTRAINT}{name}" in values.column_names:
            broken[i] = computed[f"{BREAKS_CONSTRAINT}{name}"].to_numpy()
    changed = {CLAUSE: pa.array(clauses, pa.int32()), NEW_ROW: pa.array(numbers)}
    for name, column in changed.items():
        found = found.set_column(found.column_names.index(name), name, column)
    pairs = replace(pairs, pairs=replace(pairs.pairs, on_driver=found))
    return pairs, NewValues(table.schema, of_clause, broken)


def _update_clauses(merge: ResolvedMerge) -> list[int]:
    """The places of the clauses that update matched rows."""
    updates = enumerate((clause.kind, clause.action) for clause in merge.clauses)
    return [i for i, clause in updates if clause == ("matched", "update")]


def _new_rows(
    computed: pyarrow.ChunkedArray,
    old_rows: pyarrow.Table,
    pairs: numpy.ndarray,
    kept: Collection[str],
    table: TableFormat,
) -> pyarrow.Table:
    """The new rows of some pairs: computed values, and columns of the old rows."""
    import pyarrow as pa

    schema = pa.schema([field for field in table.schema if field.name not in kept])
    new = as_stored(computed, schema)
    old = old_rows.select(list(kept)).take(pa.array(pairs)) if kept else new
    columns = [(old if name in kept else new)[name] for name in table.schema.names]
    return pa.table(columns, schema=table.schema)


def _old_rows(
    pairs: pyarrow.Table, through_spark: Sequence[str], kept: Sequence[str], table: TableFormat
) -> pyarrow.Table:
    """The target's row of each pair.

    Args:
        pairs: The pairs, with those of a file one after the other, in the order of its rows.
        through_spark: The columns that Spark evaluates, by the names in files.
        kept: The columns that stay as they are.
        table: What files look like.
    """
    import numpy as np
    import pyarrow as pa

    wanted = dict.fromkeys([*through_spark, *kept])
    schema = pa.schema([table.schema.field(name) for name in wanted])
    checked = [table.schema.field(name) for name in through_spark]
    parts, left = [schema.empty_table()], limits.MAX_NEW_BYTES_ON_DRIVER
    files = pairs[FILE].combine_chunks().dictionary_encode()
    bounds = np.searchsorted(files.indices.to_numpy(), np.arange(len(files.dictionary) + 1))
    rows_of_pairs = pairs[TARGET_ROW_ID].to_numpy()
    for i, name in enumerate(files.dictionary.to_pylist()):
        path = path_of(name)
        with opened(path) as file:
            check_zones(file, checked)
        places, of_pair = np.unique(rows_of_pairs[bounds[i] : bounds[i + 1]], return_inverse=True)
        rows = rows_at(path, places, replace(table, schema=schema), left)
        left -= rows.nbytes * int(np.bincount(of_pair).max())
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
    values_of = {i: f"{VALUES}{i}" for i in _update_clauses(merge)}

    def query() -> DataFrame:
        # Spark would evaluate local rows as it plans, whatever the size of the result.
        rows = merge.spark.createDataFrame(pairs, schema).coalesce(1)
        rows = with_ids_of(merge, rows, [attribute.node for attribute in attributes])
        rows = rows.withColumn(CLAUSE, first_match(merge))
        values = values_where_taken(merge, values_of, reads, (CLAUSE,))
        rows = rows.select(NEW_ROW, CLAUSE, *values)
        return with_broken_values(rows, merge, values_of, conditions) if conditions else rows

    evaluated = unless_it_fails(merge, query)
    if evaluated is None:
        raise NotRewritableError("clauses could not be evaluated")
    return evaluated.sort_by(NEW_ROW).combine_chunks()
