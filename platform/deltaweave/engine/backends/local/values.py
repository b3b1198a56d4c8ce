"""Compute the new rows of a merge on the driver: what clauses make of source rows and of pairs.

For clauses that read the target, pyarrow reads the columns that they read, in the rows of pairs.
Spark evaluates conditions and values over the pairs, by one query that reads no file. Columns that
an update leaves as they are go from the old file to the new one as Arrow has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import PassableColumn, row_schema
from deltaweave.delta.scan import with_attribute_ids
from deltaweave.delta.statement import ResolvedMerge, TargetReads
from deltaweave.engine import limits
from deltaweave.engine.backends.local.eligibility import ByteBudget, Eligible, in_threads
from deltaweave.engine.backends.local.pairs import LocalPairs, by_file
from deltaweave.engine.backends.local.partitions import PartitionValues, with_partition
from deltaweave.engine.clauses import (
    BREAKS_CONSTRAINT,
    CLAUSE,
    CLAUSE_VALUES,
    NEW_ROW,
    READ,
    SOURCE_ROW,
    TARGET_ROW_ID,
    first_match,
)
from deltaweave.engine.source import (
    CollectedSource,
    collected_or_none,
    values_where_taken,
    with_broken_values,
)
from deltaweave.engine.tasks import (
    NotRewritableError,
    TableFormat,
    as_stored,
    check_zones,
    location_of,
    rows_at,
)

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class _Evaluated:
    """The clauses and values of the pairs, in their order.

    Attributes:
        clauses: The index of the clause that takes each pair, or -1.
        rows: The values that clauses compute, and whether these break a constraint.
        values_of: By the index of an update clause, the column of `rows` (struct) with its values.
    """

    clauses: numpy.ndarray
    rows: pyarrow.Table
    values_of: Mapping[int, str]


class PairValues(NamedTuple):
    """Pairs with the clauses that take them, and the new rows that these give."""

    pairs: LocalPairs
    values: NewValues


def values_of_pairs(
    transaction: Transaction,
    source: CollectedSource,
    pairs: LocalPairs,
    eligible: Eligible,
    table: TableFormat,
) -> PairValues:
    """Evaluate clauses over the pairs; return the pairs that they take, and the new values.

    `NEW_ROW` is then the number of the pair among those that its clause updates, or -1. If clauses
    can only be evaluated over pairs, none of `pairs` has a clause yet. If new rows must satisfy a
    condition, `eligible.reads` counts whole rows.

    Raises:
        NotRewritableError: Spark must do it.
        SourceError: The query was cancelled.
        OSError, pyarrow.ArrowException: A file could not be read.
    """
    import pyarrow as pa

    reads, found, rows = eligible.reads, pairs.pairs.on_driver, row_schema(transaction)
    assert found is not None, "local_pairs"
    if not len(found):
        return PairValues(pairs, NewValues(rows, {}))
    refuse_above_limit(size_at_most(source.rows.nbytes, found[SOURCE_ROW].to_numpy()))
    names, physical = transaction.merge.evolved_schema.names, transaction.table.physical_names
    kept = {
        i: {physical[name] for name in reads.kept(i, names)}
        for i in _update_clauses(transaction.merge)
    }
    passed = {physical[each.name]: each for each in eligible.passed}
    of_columns = dict.fromkeys([*passed, *set().union(*kept.values())])
    old_rows = _old_rows(found, pairs.partitions, list(of_columns), passed, table)
    if reads.takes_query:
        read = old_rows.select([physical[each.name] for each in eligible.passed]).columns
        evaluated = values_by_query(transaction, source, found, read, reads, eligible.conditions)
    else:
        given = source.rows.take(found[SOURCE_ROW])
        evaluated = _Evaluated(found[CLAUSE].to_numpy(), given, source.values_of)
    numbers, values = _number_new_rows(evaluated, old_rows, kept, rows)
    for name, column in ((CLAUSE, evaluated.clauses.astype("int32")), (NEW_ROW, numbers)):
        found = found.set_column(found.column_names.index(name), name, pa.array(column))
    return PairValues(replace(pairs, pairs=replace(pairs.pairs, on_driver=found)), values)


class _NumberedRows(NamedTuple):
    """Each pair's number among those that its clause updates, or -1, and the new rows."""

    numbers: numpy.ndarray
    values: NewValues


def _number_new_rows(
    evaluated: _Evaluated,
    old_rows: pyarrow.Table,
    kept: Mapping[int, Collection[str]],
    schema: pyarrow.Schema,
) -> _NumberedRows:
    """Return the new rows of each clause, and each pair's number among those of its clause."""
    import numpy as np
    import pyarrow as pa

    numbers = np.full(len(evaluated.clauses), -1)
    of_clause, broken = {}, {}
    for i in kept:
        taken = np.flatnonzero(evaluated.clauses == i)
        numbers[taken] = np.arange(len(taken))
        values, rows = evaluated.values_of[i], evaluated.rows.take(pa.array(taken))
        of_clause[i] = _new_rows(rows[values], old_rows, taken, kept[i], schema)
        if f"{BREAKS_CONSTRAINT}{values}" in rows.column_names:
            broken[i] = rows[f"{BREAKS_CONSTRAINT}{values}"].to_numpy()
    return _NumberedRows(numbers, NewValues(schema, of_clause, broken))


def _update_clauses(merge: ResolvedMerge) -> list[int]:
    """Return the indexes of the clauses that update matched rows."""
    return [
        i
        for i, clause in enumerate(merge.clauses)
        if clause.kind == "matched" and clause.action == "update"
    ]


def _new_rows(
    computed: pyarrow.ChunkedArray,
    old_rows: pyarrow.Table,
    pairs: numpy.ndarray,
    kept: Collection[str],
    schema: pyarrow.Schema,
) -> pyarrow.Table:
    """Build the new rows of some pairs: computed values, and columns of the old rows."""
    import pyarrow as pa

    new = as_stored(computed, pa.schema([field for field in schema if field.name not in kept]))
    old = old_rows.select(list(kept)).take(pa.array(pairs)) if kept else new
    columns = [(old if name in kept else new)[name] for name in schema.names]
    return pa.table(columns, schema=schema)


def _old_rows(
    pairs: pyarrow.Table,
    partitions: Mapping[str, PartitionValues],
    names: Sequence[str],
    passed: Mapping[str, PassableColumn],
    table: TableFormat,
) -> pyarrow.Table:
    """Read the target's row of each pair.

    Args:
        pairs: The pairs, with those of a file one after the other, in the order of its rows.
        names: The columns, by the names in files, one at least.
        passed: The columns that Spark evaluates, by the names in files.
    """
    import numpy as np
    import pyarrow as pa

    in_file = [field for field in table.schema if field.name in names]
    of_file = replace(table, schema=pa.schema(in_file))
    checked = [field for field in in_file if field.name in passed]
    held = ByteBudget(limits.MAX_LOCAL_NEW_BYTES, "the rows that clauses read")
    of_files = by_file(pairs)

    def of_pairs(name: str) -> pyarrow.Table:
        location = location_of(name)
        with table.storage.opened(location) as file:
            check_zones(file, checked)
        indexes, of_pair = np.unique(of_files[name][TARGET_ROW_ID].to_numpy(), return_inverse=True)
        rows = rows_at(location, indexes, of_file, limits.MAX_LOCAL_NEW_BYTES)
        rows = with_partition(rows, len(indexes), partitions[name], names)
        held.add(size_at_most(rows.nbytes, of_pair))
        return rows.take(pa.array(of_pair))

    return pa.concat_tables(list(in_threads(of_pairs, list(of_files)))).combine_chunks()


def values_by_query(
    transaction: Transaction,
    source: CollectedSource,
    pairs: pyarrow.Table,
    of_target: Sequence[pyarrow.ChunkedArray],
    reads: TargetReads,
    conditions: Sequence[Column],
) -> _Evaluated:
    """Evaluate the clauses by a query over the pairs and the target's columns that they read."""
    import numpy as np
    import pyarrow as pa

    merge, attributes = transaction.merge, [*reads.target, *reads.source]
    fields = [StructField(f"{READ}{i}", a.data_type) for i, a in enumerate(attributes)]
    schema = StructType([*fields, StructField(NEW_ROW, LongType())])
    of_source = source.rows.select([f"{READ}{i}" for i in range(len(reads.source))])
    read = [*of_target, *of_source.take(pairs[SOURCE_ROW]).columns]
    rows_read = pa.table([*read, np.arange(len(pairs))], names=schema.names)
    if rows_read.nbytes > limits.MAX_LOCAL_BYTES or len(pairs) > limits.MAX_LOCAL_ROWS:
        raise NotRewritableError("the pairs whose values clauses read are too many or too big")
    of_source_alone = {i: source.values_of[i] for i in reads.of_source_alone}
    values_of = {
        i: f"{CLAUSE_VALUES}{i}" for i in _update_clauses(merge) if i not in reads.of_source_alone
    }

    def query() -> DataFrame:
        # Spark would evaluate local rows as it plans, whatever the size of the result.
        rows = merge.spark.createDataFrame(rows_read, schema).coalesce(1)
        rows = with_attribute_ids(merge, rows, [attribute.node for attribute in attributes])
        rows = rows.withColumn(CLAUSE, first_match(merge))
        values = values_where_taken(merge, values_of, reads, (CLAUSE,))
        rows = rows.select(NEW_ROW, CLAUSE, *values)
        return with_broken_values(rows, merge, values_of, conditions)

    evaluated = collected_or_none(merge, query, len(pairs), limits.MAX_LOCAL_NEW_BYTES)
    if evaluated is None:
        raise NotRewritableError("clauses could not be evaluated")
    rows = evaluated.sort_by(NEW_ROW).combine_chunks()
    for name in dict.fromkeys(of_source_alone.values()):
        for given in (name, f"{BREAKS_CONSTRAINT}{name}"):
            if given in source.rows.column_names:
                rows = rows.append_column(given, source.rows[given].take(pairs[SOURCE_ROW]))
    return _Evaluated(rows[CLAUSE].to_numpy(), rows, values_of | of_source_alone)


@dataclass(frozen=True)
class NewValues:
    """The new rows that update and insert clauses give to numbered rows.

    The numbers are those of source rows for all clauses, or begin with 0 for each clause.

    Attributes:
        schema: The columns of the table, as files store them; those of partitions among them.
        of_clause: By the clause's index, the new rows in that schema. Rows that the clause does not
            take have arbitrary values there.
        broken: By the clause's index, whether the values of its rows break a constraint. Clauses
            whose values break none are missing.
    """

    schema: pyarrow.Schema
    of_clause: Mapping[int, pyarrow.Table]
    broken: Mapping[int, numpy.ndarray] = field(default_factory=dict)

    def rows(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> pyarrow.Table:
        """Return the new rows of some rows, in their order.

        Args:
            numbers: The rows' numbers.
            clauses: For each row, the index of its clause; a clause without values gives no row.
        """
        import numpy as np
        import pyarrow as pa

        parts, indexes = [self.nulls(0)], [np.array([], dtype=np.int64)]
        for clause, values in self.of_clause.items():
            of_clause = np.flatnonzero(clauses == clause)
            if len(of_clause):
                parts.append(values.take(pa.array(numbers[of_clause])))
                indexes.append(of_clause)
        if len(parts) <= 2:  # of one clause, in their order
            return parts[-1].combine_chunks()
        order = np.argsort(np.concatenate(indexes), kind="stable")
        return pa.concat_tables(parts).combine_chunks().take(pa.array(order))

    def gives_row(self, clauses: numpy.ndarray) -> numpy.ndarray:
        """Return for each clause, by its index, whether it gives a new row."""
        import numpy as np

        return np.isin(clauses, list(self.of_clause))

    def breaks_constraint(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> bool:
        """Return whether a new row of some rows breaks a constraint; arguments as in `rows`."""
        return any(broken[numbers[clauses == i]].any() for i, broken in self.broken.items())

    def nulls(self, number: int) -> pyarrow.Table:
        """Return `number` rows of nulls."""
        import pyarrow as pa

        return pa.table([pa.nulls(number, f.type) for f in self.schema], schema=self.schema)

    def check_size(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> None:
        """Raise NotRewritableError if the new rows of some rows may be too big."""
        size = sum(
            size_at_most(values.nbytes, numbers[clauses == clause])
            for clause, values in self.of_clause.items()
        )
        refuse_above_limit(size)


def size_at_most(num_bytes: int, numbers: numpy.ndarray) -> int:
    """Return the most bytes that rows may have.

    Args:
        num_bytes: The size of the rows that they are drawn from, in bytes.
        numbers: The indexes of the drawn rows; an index may repeat.
    """
    import numpy as np

    return num_bytes * int(np.bincount(numbers).max(initial=0))


def refuse_above_limit(num_bytes: int) -> None:
    """Raise NotRewritableError if new rows have more bytes than the driver may hold."""
    if num_bytes > limits.MAX_LOCAL_NEW_BYTES:
        raise NotRewritableError(f"the new rows may have {num_bytes:,} bytes")


def values_of_source(source: CollectedSource, schema: pyarrow.Schema) -> NewValues:
    """Return the values of clauses that need source rows alone, numbered as these rows.

    Clauses that keep columns of the target's rows are left out.
    """
    stored: dict[str, pyarrow.Table] = {}
    for name in dict.fromkeys(source.values_of.values()):
        if source.rows[name].type.num_fields == len(schema):
            stored[name] = as_stored(source.rows[name], schema)
    of_clause = {i: stored[name] for i, name in source.values_of.items() if name in stored}
    broken = {i: source.broken(i) for i in of_clause}
    return NewValues(schema, of_clause, {i: b for i, b in broken.items() if b is not None})
