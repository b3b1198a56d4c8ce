"""Reads a source that is a small Delta table with pyarrow, so that no job of Spark evaluates it.

It serves clauses without a condition that take columns of the source as they are, as `UPDATE SET *`
and `INSERT *` do, and keys that are columns of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField

from deltaweave.delta.files import (
    ReadableColumn,
    Reading,
    Verdict,
    are_own,
    assumes_new_calendar,
    readable,
)
from deltaweave.delta.jvm import expression_of, jvm, select_where, seq
from deltaweave.delta.releases import arrow_type
from deltaweave.delta.scan import SourceFiles
from deltaweave.delta.statement import Equality, ResolvedMerge, TargetReads
from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, INSERT_CLAUSE, KEY, NO_CLAUSE, READ
from deltaweave.engine.local_attempt import attempted
from deltaweave.engine.storages import storage_of
from deltaweave.engine.tasks import Storage, TooBigError, all_rows

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class _Columns:
    """The columns of the source that keys and clauses take.

    Attributes:
        keys: The values for the equalities of the ON condition.
        values: By the column of values, what its fields take.
        places: By the column of values, the indexes of its fields among the target's columns.
        read: What clauses read beside the target's columns.
    """

    keys: Sequence[StructField]
    values: Mapping[str, Sequence[StructField]]
    places: Mapping[str, Sequence[int]]
    read: Sequence[StructField]

    @cached_property
    def all(self) -> list[StructField]:
        """All columns of the source that are read, each once."""
        used = [*self.keys, *self.read, *(field for each in self.values.values() for field in each)]
        return list({field.name: field for field in used}.values())


def rows_of_table(
    merge: ResolvedMerge,
    source: SourceFiles,
    conjuncts: Sequence[Equality],
    values_of: Mapping[int, str],
    reads: TargetReads,
) -> pyarrow.Table | None:
    """Return a row for each source row: keys, clauses, values, columns that clauses read.

    The same columns as those of the query that would evaluate them. None if that is left to it.

    Args:
        merge: The merge. New rows need not satisfy any condition.
        source: The table.
        conjuncts: The equalities of the ON condition.
        values_of: By the index of a clause, the column of its values.
        reads: What WHEN MATCHED clauses read of the target.

    Raises:
        TooBigError: The rows are too many or too big for the driver, however they are read.
    """
    attempt = partial(_rows_of_table, merge, source, conjuncts, values_of, reads)
    found = attempted(merge.table, "Spark reads the source", attempt)
    if isinstance(found, TooBigError):
        raise found
    return found


def _rows_of_table(
    merge: ResolvedMerge,
    source: SourceFiles,
    conjuncts: Sequence[Equality],
    values_of: Mapping[int, str],
    reads: TargetReads,
) -> pyarrow.Table | TooBigError | None:
    kinds = ("not_matched",) if reads.takes_query else ("matched", "not_matched")
    if any(clause.condition is not None for kind in kinds for clause in merge.of_kind(kind)):
        return None
    columns = _columns(merge, source, conjuncts, values_of, reads)
    if columns is None:
        return None
    storage, read = storage_of(source.table), _readable(source, columns.all)
    if storage is None or read is None:
        return None
    try:
        rows = _read(source, storage, read)
    except TooBigError as error:  # for Spark to collect, too
        return error
    return _as_collected(merge, rows, columns, reads)


def _columns(
    merge: ResolvedMerge,
    source: SourceFiles,
    conjuncts: Sequence[Equality],
    values_of: Mapping[int, str],
    reads: TargetReads,
) -> _Columns | None:
    """Return the columns that keys and clauses take; None if one takes anything else."""
    import numpy as np

    spark, view = merge.spark, jvm(merge.spark)
    keys = source.columns(seq(view, [expression_of(spark, each.source) for each in conjuncts]))
    read = source.columns(seq(view, [each.node for each in reads.source])) if reads.source else []
    if keys is None or read is None:
        return None
    values: dict[str, Sequence[StructField]] = {}
    places: dict[str, Sequence[int]] = {}
    for i, name in values_of.items():
        if name in values:
            continue
        expressions, wanted = merge.clauses[i].value_expressions(), reads.computed.get(i)
        if wanted is not None:
            expressions = select_where(view, expressions, wanted)
        else:
            wanted = np.ones(len(merge.evolved_schema), dtype=bool)
        taken, places[name] = source.columns(expressions), np.flatnonzero(wanted).tolist()
        if taken is None:
            return None
        given = [merge.evolved_schema.fields[place].dataType for place in places[name]]
        if [field.dataType for field in taken] != given:
            return None  # to cast them is left to Spark
        values[name] = taken
    return _Columns(keys, values, places, read)


def _readable(source: SourceFiles, columns: Sequence[StructField]) -> list[ReadableColumn] | None:
    """Return the columns as Arrow reads them; None if it may not, as far as the log shows."""
    table, files = source.table, source.files
    may_read = (
        files.size_in_bytes <= limits.MAX_ESTIMATED_BYTES_ON_DRIVER
        and (files.num_records or 0) <= limits.MAX_ROWS_ON_DRIVER
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


def _read(
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
        most = limits.MAX_ROWS_ON_DRIVER - num_rows, limits.MAX_BYTES_ON_DRIVER - size
        parts.append(all_rows(storage, location, schema, *most, new_calendar=is_new))
        num_rows, size = num_rows + parts[-1].num_rows, size + parts[-1].nbytes
    rows = pa.concat_tables(parts).combine_chunks()
    return rows.rename_columns([column.name for column in columns])


def _as_collected(
    merge: ResolvedMerge, rows: pyarrow.Table, columns: _Columns, reads: TargetReads
) -> pyarrow.Table:
    import pyarrow as pa

    def clause(kind: str) -> pyarrow.Array:
        first = next((i for i, each in enumerate(merge.clauses) if each.kind == kind), NO_CLAUSE)
        return pa.repeat(pa.scalar(first, pa.int32()), rows.num_rows)

    matched = pa.repeat(pa.scalar(NO_CLAUSE, pa.int32()), rows.num_rows)
    collected = {f"{KEY}{i}": rows[field.name] for i, field in enumerate(columns.keys)}
    collected[CLAUSE] = matched if reads.takes_query else clause("matched")
    collected[INSERT_CLAUSE] = clause("not_matched")
    for name, fields in columns.values.items():
        arrays = [rows[field.name].combine_chunks() for field in fields]
        names = [f"v{place}" for place in columns.places[name]]
        collected[name] = pa.StructArray.from_arrays(arrays, names)
    for i, field in enumerate(columns.read):
        collected[f"{READ}{i}"] = rows[field.name]
    return pa.table(collected)
