"""The arguments that say what change events are, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from deltaweave.changes.events import PREFIX, VALUES, Events, EventShape
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import check_is_classic
from deltaweave.errors import StatementError
from deltaweave.identifiers import RESERVED_PREFIX, quoted
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPERATION = "applying changes"
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


def event_shape(
    table: Table,
    rows: DataFrame,
    *,
    keys: Sequence[str],
    sequence_by: str | Column,
    apply_as_deletes: str | Column | None,
    apply_as_truncates: str | Column | None = None,
    inserts: str | Column | None = None,
    ignore_null_updates: bool,
    present_columns: str | None,
    column_list: Sequence[str] | None,
    except_column_list: Sequence[str] | None,
) -> EventShape:
    """How the rows are read as events, by the arguments that `apply_changes` describes.

    Raises:
        StatementError: They do not go together, or name columns that the rows do not have.
        UnsupportedSessionError: The rows are of a Spark Connect session.
    """
    check_is_classic(rows.sparkSession)
    return EventShape(
        keys=tuple(keys),
        sequence_by=_expression(sequence_by),
        deletes=None if apply_as_deletes is None else _expression(apply_as_deletes),
        truncates=None if apply_as_truncates is None else _expression(apply_as_truncates),
        inserts=None if inserts is None else _expression(inserts),
        columns=_columns(table, rows, keys, column_list, except_column_list, present_columns),
        present=present_columns,
        ignore_nulls=ignore_null_updates,
    )


def schema_of(events: Events, further: Sequence[StructField]) -> StructType:
    """The columns of the events' table, with further ones."""
    values = events.rows.schema[VALUES].dataType
    assert isinstance(values, StructType)
    keys = [StructField(key, events.rows.schema[key].dataType) for key in events.shape.keys]
    of_values = [StructField(name, values[name].dataType) for name in events.shape.columns]
    return StructType([*keys, *of_values, *further])


def check_columns(table: Table, schema: StructType) -> None:
    """Raise a StatementError where the table lacks columns, which it names."""
    has = {field.name.lower() for field in table.read().schema}
    missing = [field for field in schema if field.name.lower() not in has]
    if missing:
        added = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
        raise wrong(
            table,
            f"the table has no column {', '.join(field.name for field in missing)}.",
            f"Add them, ALTER TABLE … ADD COLUMNS ({added}), or leave columns of the events out.",
        )


def _expression(given: str | Column) -> Column:
    return F.expr(given) if isinstance(given, str) else given


def _columns(
    table: Table,
    rows: DataFrame,
    keys: Sequence[str],
    column_list: Sequence[str] | None,
    except_column_list: Sequence[str] | None,
    present_columns: str | None,
) -> tuple[str, ...]:
    """The columns of the table that are no keys."""
    if isinstance(keys, str) or not keys:
        raise wrong(table, "keys is a list of one or more columns.")
    if column_list is not None and except_column_list is not None:
        raise wrong(table, "column_list and except_column_list exclude each other.")
    left_out = {*(except_column_list or ()), *filter(None, [present_columns])}
    named = {*keys, *left_out, *(column_list or ())}
    unknown = sorted(named - set(rows.columns))
    if unknown:
        raise wrong(
            table,
            f"the source has no column {', '.join(unknown)}.",
            f"It has {', '.join(rows.columns)}.",
        )
    wanted = rows.columns if column_list is None else list(column_list)
    columns = tuple(name for name in wanted if name not in left_out and name not in keys)
    taken = (PREFIX, RESERVED_PREFIX)
    check_names_are_free(table, [n for n in (*keys, *columns) if n.lower().startswith(taken)])
    return columns


def check_names_are_free(table: Table, taken: Sequence[str]) -> None:
    """Raise a StatementError where columns have names of columns that the table needs itself."""
    if taken:
        raise wrong(
            table,
            f"the table has columns of its own named {', '.join(taken)}, or names that begin with "
            f"{PREFIX} or {RESERVED_PREFIX}, which are taken.",
            "Rename them in the source, or leave them out with except_column_list.",
        )


def needed_properties(schema: StructType) -> dict[str, str]:
    """The properties that a new table needs for the names of its columns.

    Parquet has no names with a blank and some other characters: Delta then gives the columns other
    names in the files (column mapping).
    """
    return {"delta.columnMapping.mode": "name"} if _needs_mapping(schema) else {}


def _needs_mapping(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(
            not _NOT_IN_PARQUET.isdisjoint(field.name) or _needs_mapping(field.dataType)
            for field in data_type
        )
    if isinstance(data_type, ArrayType):
        return _needs_mapping(data_type.elementType)
    if isinstance(data_type, MapType):
        return _needs_mapping(data_type.keyType) or _needs_mapping(data_type.valueType)
    return False


def wrong(table: Table, problem: str, hint: str | None = None) -> StatementError:
    """The error of arguments that do not fit."""
    return StatementError(problem, table=table.path_or_name, operation=_OPERATION, hint=hint)


def condition_of_keys(
    where: str | Column, rows: DataFrame, keys: Sequence[str], table: Table
) -> Column:
    """A condition of key columns.

    Args:
        where: The condition.
        rows: Rows that have the keys.
        keys: The key columns.
        table: The table, for the error's words.

    Raises:
        StatementError: It names other columns.
    """
    condition = F.expr(where) if isinstance(where, str) else where
    with translated(table.path_or_name, operation="reading"):
        # Not of a projection of the rows: Spark looks for other columns below it.
        alone = rows.select(*map(quoted, keys)).schema
        rows.sparkSession.createDataFrame([], alone).where(condition)
    return condition
