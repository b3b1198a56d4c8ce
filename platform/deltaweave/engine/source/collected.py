"""The rows of a small source on the driver: keys, clauses and the values that clauses give them.

One query evaluates the source, as the merge's only job; pyarrow reads a table where nothing is to
be evaluated. Where clauses depend on the source row alone, it is known before any match which
clause takes a row, and what it writes. Where WHEN MATCHED clauses read the target, the source's
columns that they read are collected instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructField, StructType

from deltaweave._validation import Verdict
from deltaweave.delta.files import (
    ReadableColumn,
    Reading,
    are_own,
    assumes_new_calendar,
    readable,
)
from deltaweave.delta.jvm import (
    Jvm,
    aliased,
    cast_to,
    column_named,
    constant,
    raise_hidden_interrupts,
    selected,
    sql_expression,
    translated,
    value_where,
    with_column,
)
from deltaweave.delta.releases import arrow_type
from deltaweave.delta.scan import SourceFiles, estimated_bytes, limit_of_partitions
from deltaweave.delta.statement import Equality, ResolvedMerge, TargetReads
from deltaweave.engine import limits
from deltaweave.engine.attempts import attempted, reason_of, storage_of, was_cancelled
from deltaweave.engine.clauses import (
    BREAKS_CONSTRAINT,
    CLAUSE,
    CLAUSE_VALUES,
    INSERT_CLAUSE,
    KEY,
    NO_CLAUSE,
    READ,
    first_insert,
    first_match,
    with_broken,
)
from deltaweave.engine.source.keys import SourceKeys, collected_keys
from deltaweave.engine.source.prepared import PreparedSource, collected_within
from deltaweave.engine.tasks import NotRewritableError, Storage, TooBigError, all_rows
from deltaweave.errors import ConstraintViolationError, SourceError

if TYPE_CHECKING:
    import numpy
    import pyarrow

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CollectedSource:
    """A source on the driver. Its rows are numbered as they came.

    Attributes:
        keys: The values that they have for the equalities of the ON condition.
        rows: `CLAUSE` and `INSERT_CLAUSE` of each row, its values and, if the table has
            constraints, whether values break any; then the columns that clauses read beside those
            of the target (`READ`).
        values_of: By the index of an update or insert clause, the column of `rows` (struct) with
            the values that it computes; null in rows that it does not take, if that is known. If
            WHEN MATCHED clauses read the target, those of inserts and of updates whose values read
            the source alone.
    """

    keys: SourceKeys
    rows: pyarrow.Table
    values_of: dict[int, str]

    @property
    def clauses(self) -> numpy.ndarray:
        """The index of the WHEN MATCHED clause that takes each row's matches, or -1."""
        clauses: numpy.ndarray = self.rows[CLAUSE].to_numpy()
        return clauses

    @property
    def insert_clauses(self) -> numpy.ndarray:
        """The index of the insert clause that takes each row if it matches nothing, or -1."""
        clauses: numpy.ndarray = self.rows[INSERT_CLAUSE].to_numpy()
        return clauses

    def broken(self, clause: int) -> numpy.ndarray | None:
        """Return for each row whether a clause's values break a constraint; None if none can."""
        column = f"{BREAKS_CONSTRAINT}{self.values_of[clause]}"
        if column not in self.rows.column_names:
            return None
        broken: numpy.ndarray = self.rows[column].to_numpy()
        return broken


@dataclass(frozen=True)
class WantedRows:
    """What is collected of a merge's source.

    Attributes:
        conjuncts: The equalities of the ON condition, whose values are the keys.
        conditions: What new rows must satisfy, over the table's columns by name.
        reads: What WHEN MATCHED clauses read of the target.
    """

    merge: ResolvedMerge
    source: PreparedSource
    conjuncts: Sequence[Equality]
    conditions: Sequence[Column]
    reads: TargetReads

    @cached_property
    def values_of(self) -> dict[int, str]:
        """The column of each clause's values; clauses with the same values share one."""
        columns: dict[int, str] = {}
        for i, clause in enumerate(self.merge.clauses):
            needs_pairs = self.reads.takes_query and i not in self.reads.of_source_alone
            if clause.action == "delete" or (clause.kind == "matched" and needs_pairs):
                continue
            same = [j for j in columns if self.merge.clauses[j].gives_same_values(clause)]
            columns[i] = columns[same[0]] if same else f"{CLAUSE_VALUES}{i}"
        return columns


def collect_source(wanted: WantedRows) -> CollectedSource | None:
    """Collect the source; None if it is too big, or if the query fails.

    Values and conditions are computed also for rows that the merge may not need them for. Whether
    their failure is one of the merge, only the merge by Spark shows.

    Raises:
        SourceLostError: The executors lost the materialized rows.
        SourceError: The query was cancelled.
    """
    try:
        table = _rows(wanted)
    except TooBigError as error:
        logger.info("%s: the source is not collected: %s", wanted.merge.table, error)
        return None
    if table is None:
        return None
    _remember_counts(wanted.source, table)
    num_keys = len(wanted.conjuncts)
    keys = collected_keys(wanted.conjuncts, table.select(range(num_keys)))
    others = table.select(range(num_keys, table.num_columns))
    return CollectedSource(keys, others, wanted.values_of)


def _rows(wanted: WantedRows) -> pyarrow.Table | None:
    """Return a row for each source row, read by pyarrow or a query; None if the query fails.

    Raises:
        TooBigError: The rows are too many or too big for the driver, whoever reads them.
    """
    source, table = wanted.source, None
    if source.files is not None and not wanted.conditions:
        table = rows_of_table(wanted, source.files)
    if table is None:
        max_rows = source.num_rows if source.is_counted else limits.MAX_LOCAL_ROWS + 1
        query = partial(_query_of_rows, wanted)
        table = collected_or_none(wanted.merge, query, max_rows, limits.MAX_LOCAL_BYTES)
    if table is not None and table.num_rows > limits.MAX_LOCAL_ROWS:
        raise TooBigError(f"there are more than {limits.MAX_LOCAL_ROWS:,} rows")
    if table is not None and table.nbytes > limits.MAX_LOCAL_BYTES:
        raise TooBigError(f"the rows have {table.nbytes:,} bytes")
    return table


def collected_or_none(
    merge: ResolvedMerge, query: Callable[[], DataFrame], max_rows: int, max_bytes: int
) -> pyarrow.Table | None:
    """Collect a query's rows; None if it fails.

    Args:
        max_rows: The most rows that a task sends, as far as is known.

    Raises:
        TooBigError: The rows have more bytes.
        SourceLostError: The executors lost the materialized rows.
        SourceError: The query was cancelled.
    """

    def collect() -> pyarrow.Table:
        try:
            with translated(merge.table, otherwise=SourceError), raise_hidden_interrupts():
                return collected_within(query(), max_rows, max_bytes)
        except (ConstraintViolationError, SourceError) as error:
            if was_cancelled(error):
                raise
            raise NotRewritableError(reason_of(error)) from error

    return attempted(merge.table, "rows are not collected", collect, passing=TooBigError)


def _query_of_rows(wanted: WantedRows) -> DataFrame:
    """Return a row for each source row: keys, clauses, values, columns that clauses read."""
    merge, reads, values_of = wanted.merge, wanted.reads, wanted.values_of
    spark, jvm = merge.spark, Jvm.of(merge.spark)
    matched = constant(spark, NO_CLAUSE) if reads.takes_query else first_match(merge)
    rows = with_column(_bounded(wanted.source), CLAUSE, matched)
    rows = with_column(rows, INSERT_CLAUSE, first_insert(merge))
    keys = [aliased(each.source, f"{KEY}{i}") for i, each in enumerate(wanted.conjuncts)]
    taken = [column_named(spark, name) for name in (CLAUSE, INSERT_CLAUSE)]
    values = values_where_taken(merge, values_of, reads, (CLAUSE, INSERT_CLAUSE))
    read = [
        aliased(jvm.column_of(attribute.node), f"{READ}{i}")
        for i, attribute in enumerate(reads.source)
    ]
    rows = selected(rows, [*keys, *taken, *values, *read])
    return with_broken_values(rows, merge, values_of, wanted.conditions)


def values_where_taken(
    merge: ResolvedMerge,
    values_of: dict[int, str],
    reads: TargetReads,
    taken: Sequence[str],
) -> list[Column]:
    """Return the values that clauses compute, as structs; null for rows that they do not take.

    Whether a clause that reads the target takes a row is not known from the source row alone.

    Args:
        values_of: By the index of a clause, the column of its values.
        taken: The columns with the indexes of clauses that take a row.
    """
    values: dict[str, Column] = {}
    for i, name in values_of.items():
        if name not in values:
            clauses = [j for j, other in values_of.items() if other == name]
            listed = ", ".join(map(str, clauses))
            condition = " OR ".join(f"{column} IN ({listed})" for column in taken)
            if reads.of_source_alone.intersection(clauses):
                condition = "true"
            is_taken = sql_expression(merge.spark, condition)
            kept = reads.kept(i, merge.evolved_schema.names)
            fields = [
                # Arrow refuses a struct with two fields of the same name.
                StructField(f"v{index}", field.dataType)
                for index, field in enumerate(merge.evolved_schema.fields)
                if field.name not in kept
            ]
            row = merge.clauses[i].row(reads.computed.get(i))
            row = cast_to(merge.spark, row, StructType(fields))
            values[name] = aliased(value_where(merge.spark, is_taken, row), name)
    return list(values.values())


def with_broken_values(
    rows: DataFrame,
    merge: ResolvedMerge,
    values_of: dict[int, str],
    conditions: Sequence[Column],
) -> DataFrame:
    """Add to the rows whether each column of values breaks a condition, if there are any."""
    names = merge.evolved_schema.names
    for values in dict.fromkeys(values_of.values()) if conditions else ():
        rows = with_broken(rows, values, names, conditions, f"{BREAKS_CONSTRAINT}{values}")
    return rows


def _bounded(source: PreparedSource) -> DataFrame:
    """Limit the source's rows to one more than the limit, enough to see that it is exceeded.

    Counted rows are all returned: callers do not ask for too many.
    """
    if source.is_counted:
        return source.rows
    most = limits.MAX_LOCAL_ROWS + 1
    if estimated_bytes(source.rows) <= limits.MAX_LOCAL_BYTES:
        return limit_of_partitions(source.rows, most)
    return source.rows.limit(most)


def _remember_counts(source: PreparedSource, table: pyarrow.Table) -> None:
    import numpy as np

    source.known.rows = table.num_rows
    if source.insertable is not None:
        are_taken = table[INSERT_CLAUSE].to_numpy() != NO_CLAUSE
        source.known.insertable = int(np.count_nonzero(are_taken))


@dataclass(frozen=True)
class _Columns:
    """The columns of the source that keys and clauses take.

    Attributes:
        keys: The values for the equalities of the ON condition.
        values: By the column of values, what its fields take.
        indexes: By the column of values, the indexes of its fields among the target's columns.
        read: What clauses read beside the target's columns.
    """

    keys: Sequence[StructField]
    values: Mapping[str, Sequence[StructField]]
    indexes: Mapping[str, Sequence[int]]
    read: Sequence[StructField]

    @cached_property
    def all(self) -> list[StructField]:
        """All columns of the source that are read, each once."""
        used = [*self.keys, *self.read, *(field for each in self.values.values() for field in each)]
        return list({field.name: field for field in used}.values())


def rows_of_table(wanted: WantedRows, source: SourceFiles) -> pyarrow.Table | None:
    """Return a row for each source row: keys, clauses, values, columns that clauses read.

    Its columns are those of the query that would evaluate them; None if the query must run. New
    rows need not satisfy any condition.

    Raises:
        TooBigError: The rows are too many or too big for the driver, however they are read.
    """
    attempt = partial(_rows_of_table, wanted, source)
    return attempted(wanted.merge.table, "Spark reads the source", attempt, passing=TooBigError)


def _rows_of_table(wanted: WantedRows, source: SourceFiles) -> pyarrow.Table | None:
    kinds = ("not_matched",) if wanted.reads.takes_query else ("matched", "not_matched")
    clauses = [clause for kind in kinds for clause in wanted.merge.of_kind(kind)]
    if any(clause.condition is not None for clause in clauses):
        return None
    columns = _columns_read(wanted, source)
    if columns is None:
        return None
    storage, read = storage_of(source.table), _readable(source, columns.all)
    if storage is None or read is None:
        return None
    return collected_rows(wanted, rows_of_files(source, storage, read), columns)


def _columns_read(wanted: WantedRows, source: SourceFiles) -> _Columns | None:
    """Return the columns that keys and clauses take; None if one takes anything else."""
    import numpy as np

    merge, reads, jvm = wanted.merge, wanted.reads, Jvm.of(wanted.merge.spark)
    keys = source.columns(jvm.seq(jvm.expression_of(each.source) for each in wanted.conjuncts))
    read = source.columns(jvm.seq(each.node for each in reads.source)) if reads.source else []
    if keys is None or read is None:
        return None
    values: dict[str, Sequence[StructField]] = {}
    indexes: dict[str, Sequence[int]] = {}
    for i, name in wanted.values_of.items():
        if name in values:
            continue
        expressions, computed = merge.clauses[i].value_expressions(), reads.computed.get(i)
        if computed is not None:
            expressions = jvm.select_where(expressions, computed)
        else:
            computed = np.ones(len(merge.evolved_schema), dtype=bool)
        taken, indexes[name] = source.columns(expressions), np.flatnonzero(computed).tolist()
        if taken is None:
            return None
        given = [merge.evolved_schema.fields[index].dataType for index in indexes[name]]
        if [field.dataType for field in taken] != given:
            return None  # to cast them is left to Spark
        values[name] = taken
    return _Columns(keys, values, indexes, read)


def _readable(source: SourceFiles, columns: Sequence[StructField]) -> list[ReadableColumn] | None:
    """Return the columns as Arrow reads them; None if it may not, as far as the log shows."""
    table, files = source.table, source.files
    may_read = (
        files.size_in_bytes <= limits.MAX_LOCAL_ESTIMATED_BYTES
        and (files.num_records or 0) <= limits.MAX_LOCAL_ROWS
        and not files.num_vectors
        and bool(are_own(files).all())
        and not {column.name for column in columns} & set(table.partition_columns)
        and table.metadata.column_mapping in ("none", "name")
        and not table.metadata.has_unused_names
    )
    if not may_read:
        return None
    reading = Reading(table.spark)
    found = [readable(column, reading) for column in columns]
    allowed = [each for each in found if not isinstance(each, Verdict)]
    return allowed if len(allowed) == len(found) else None


def rows_of_files(
    source: SourceFiles, storage: Storage, columns: Sequence[ReadableColumn]
) -> pyarrow.Table:
    """Read the rows of the files, one after the other, with columns named as in the table."""
    import pyarrow as pa

    spark, physical = source.table.spark, source.table.physical_names
    fields = [(physical[each.name], arrow_type(spark, each.column.dataType)) for each in columns]
    schema = pa.schema(fields)
    is_new = assumes_new_calendar(spark)
    parts, num_rows, size = [schema.empty_table()], 0, 0
    for location in source.files.rows["location"].to_pylist():
        most = limits.MAX_LOCAL_ROWS - num_rows, limits.MAX_LOCAL_BYTES - size
        parts.append(all_rows(storage, location, schema, *most, new_calendar=is_new))
        num_rows, size = num_rows + parts[-1].num_rows, size + parts[-1].nbytes
    rows = pa.concat_tables(parts).combine_chunks()
    return rows.rename_columns([column.name for column in columns])


def collected_rows(wanted: WantedRows, rows: pyarrow.Table, columns: _Columns) -> pyarrow.Table:
    """Arrange the rows that were read as the columns that a merge reads of its source."""
    import pyarrow as pa

    def clause(kind: str) -> pyarrow.Array:
        clauses = wanted.merge.clauses
        first = next((i for i, each in enumerate(clauses) if each.kind == kind), NO_CLAUSE)
        return pa.repeat(pa.scalar(first, pa.int32()), rows.num_rows)

    matched = pa.repeat(pa.scalar(NO_CLAUSE, pa.int32()), rows.num_rows)
    collected = {f"{KEY}{i}": rows[field.name] for i, field in enumerate(columns.keys)}
    collected[CLAUSE] = matched if wanted.reads.takes_query else clause("matched")
    collected[INSERT_CLAUSE] = clause("not_matched")
    for name, fields in columns.values.items():
        arrays = [rows[field.name].combine_chunks() for field in fields]
        names = [f"v{index}" for index in columns.indexes[name]]
        collected[name] = pa.StructArray.from_arrays(arrays, names)
    for i, field in enumerate(columns.read):
        collected[f"{READ}{i}"] = rows[field.name]
    return pa.table(collected)
