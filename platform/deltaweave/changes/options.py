"""The options of change data capture: each is declared here once, with its default and checks."""

# No `from __future__ import annotations`: Dagster's components resolve the fields of dataclasses by
# their annotations.

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from deltaweave._validation import choice_problem, keys_problem
from deltaweave.changes.conversions import holds_type, nullable
from deltaweave.changes.epochs import as_held, log_fields
from deltaweave.changes.events import PREFIX, Events, EventShape, values_type
from deltaweave.changes.table_columns import first_columns
from deltaweave.delta.jvm import check_is_data_frame, translated
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import RESERVED_PREFIX, back_quoted, quoted, spelled_as
from deltaweave.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

_APPLYING = "applying changes"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_PARQUET = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """The options of change events, whatever the kind of their table.

    `apply_changes` documents the options in full. The public functions take the fields of these
    classes as keywords, with the same defaults: a test compares them.
    """

    keys: Sequence[str]
    sequence_by: str | Column
    apply_as_deletes: str | Column | None = None
    apply_as_truncates: str | Column | None = None
    ignore_null_updates: bool = False
    present_columns: str | None = None
    column_list: Sequence[str] | None = None
    except_column_list: Sequence[str] | None = None
    message_column: str | None = None
    rescued: str | bool = False
    late_by: timedelta = timedelta(days=7)

    @property
    def problem(self) -> str | None:
        """What is wrong with the options by themselves, whatever the table and the events are."""
        if self.column_list is not None and self.except_column_list is not None:
            return keys_problem(self.keys) or (
                "column_list and except_column_list exclude each other."
            )
        return keys_problem(self.keys)

    def check(self, table: Table) -> None:
        """Raise a StatementError if the options contradict each other."""
        if self.problem is not None:
            raise wrong(table, self.problem)

    def spelled_as(self, columns: Sequence[str]) -> "Self":
        """Return the same options, with columns spelled as in `columns`."""

        def one(name: str | None) -> str | None:
            return None if name is None else spelled_as(columns, [name])[0]

        def all_of(names: Sequence[str] | None) -> Sequence[str] | None:
            return None if names is None else spelled_as(columns, names)

        return replace(
            self,
            keys=list(dict.fromkeys(spelled_as(columns, self.keys))),
            present_columns=one(self.present_columns),
            column_list=all_of(self.column_list),
            except_column_list=all_of(self.except_column_list),
            message_column=one(self.message_column),
        )

    def shape(self, table: Table, rows: DataFrame) -> EventShape:
        """Describe how the rows are read as events.

        Raises:
            StatementError: Options contradict each other, or name columns that the rows do not
                have, or the rows are no DataFrame.
            UnsupportedSessionError: The rows belong to a Spark Connect session.
        """
        name = table.path_or_name
        check_is_data_frame(rows, "the source", table=name, operation=_APPLYING)
        self.check(table)
        options = self.spelled_as(rows.columns)
        sequence, at_type = _table_sequence(table, rows, _as_column(options.sequence_by))
        return EventShape(
            keys=tuple(options.keys),
            sequence_by=sequence,
            deletes=_condition_column(options.apply_as_deletes),
            truncates=_condition_column(options.apply_as_truncates),
            columns=_value_columns(table, rows, options),
            present=options.present_columns,
            ignore_nulls=options.ignore_null_updates,
            message=options.message_column,
            log_fields=log_fields(at_type),
        )


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(EventOptions):
    """The options of `apply_changes`, which documents them in full."""

    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1
    track_history_column_list: Sequence[str] | None = None
    track_history_except_column_list: Sequence[str] | None = None

    @property
    def keeps_histories(self) -> bool:
        """Whether the table has a row for each version of a key."""
        return str(self.stored_as_scd_type) == "2"

    @property
    def problem(self) -> str | None:
        """What is wrong with the options by themselves, whatever the table and the events are."""
        kind = choice_problem("stored_as_scd_type", str(self.stored_as_scd_type), ("1", "2"))
        lists = (self.track_history_column_list, self.track_history_except_column_list)
        num_lists = sum(each is not None for each in lists)
        if kind is None and num_lists > (1 if self.keeps_histories else 0):
            kind = (
                "track_history_column_list and track_history_except_column_list exclude each "
                "other, and go with stored_as_scd_type 2."
            )
        return super().problem or kind

    def tracked(self, table: Table, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the table's non-key columns whose change starts a new version.

        Raises:
            StatementError: The table lacks such a column.
        """
        only, all_but = self.track_history_column_list, self.track_history_except_column_list
        if only is None and all_but is None:
            return tuple(columns)
        named = spelled_as(columns, only if only is not None else all_but or ())
        unknown = sorted(set(named) - set(columns))
        if unknown:
            raise wrong(
                table, f"history cannot be tracked on {', '.join(unknown)}: no such column."
            )
        return tuple(name for name in columns if (name in named) == (only is not None))


@dataclass(frozen=True, kw_only=True)
class MergeOnReadOptions(EventOptions):
    """The options of a merge-on-read table; `MergeOnReadTable` documents them in full."""

    inserts: str | Column | None = None
    partition_by: Sequence[str] = ()
    keep_merged_for: timedelta = timedelta(hours=1)
    broadcast_limit_bytes: int = 2**30

    @property
    def keeps_deletes_for(self) -> timedelta:
        """How long deletes are remembered: as long as views by name still show merged batches."""
        late_by = max(self.late_by, timedelta(0))
        return late_by + min(self.keep_merged_for, timedelta.max - late_by)

    def shape(self, table: Table, rows: DataFrame) -> EventShape:
        """Describe how the rows are read as events; raise what `EventOptions.shape` raises."""
        return replace(super().shape(table, rows), inserts=_condition_column(self.inserts))


def schema_of(events: Events, further: Sequence[StructField]) -> StructType:
    """Return the schema of the events' table, with further columns.

    Parts of keys may be null in it, because Delta has no required fields in arrays and maps.
    """
    row_type = events.rows.schema
    values = values_type(row_type)
    keys = [StructField(key, nullable(row_type[key].dataType)) for key in events.shape.keys]
    value_fields = [StructField(name, values[name].dataType) for name in events.shape.columns]
    return StructType([*keys, *value_fields, *further])


def check_types_are_known(table: Table, events: Events, schema: StructType) -> None:
    """Raise a StatementError if a table that is still to be created would have VOID columns.

    Such a column, or part of one, is null in all events, and no later value would fit it.
    """
    untyped = [f.name for f in schema if holds_type(f.dataType, lambda t: isinstance(t, NullType))]
    if untyped and not table.exists():
        own = {*events.shape.keys, *events.shape.columns}
        names = dict.fromkeys(name if name in own else "sequence_by" for name in untyped)
        raise wrong(
            table,
            f"the type of the column {', '.join(names)} is not known, because the events have "
            "only nulls in it or in a part of it, and the table is to be created for them.",
            "Cast it in the source's query, e.g. CAST(NULL AS STRING), or create the table first.",
        )


def check_columns(table: Table, schema: StructType) -> None:
    """Raise a StatementError that names the columns, or fields of them, that the table lacks."""
    missing = dict(_missing(schema, table.snapshot().schema))
    if missing:
        added = ", ".join(f"{name} {_as_sql(data_type)}" for name, data_type in missing.items())
        raise wrong(
            table,
            f"the table has no column {', '.join(missing)}.",
            f"Add them, ALTER TABLE … ADD COLUMNS ({added}), or leave columns of the events out.",
        )


def _missing(wanted: DataType, held: DataType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """Yield the fields of a type, at every depth, that a table's type lacks, as SQL names them."""
    if isinstance(wanted, StructType) and isinstance(held, StructType):
        has = {field.name.lower(): field.dataType for field in held}
        for field in wanted:
            name = f"{path}{_name_as_sql(field.name)}"
            if field.name.lower() not in has:
                yield name, field.dataType
            else:
                yield from _missing(field.dataType, has[field.name.lower()], f"{name}.")
    elif isinstance(wanted, ArrayType) and isinstance(held, ArrayType):
        yield from _missing(wanted.elementType, held.elementType, f"{path}element.")
    elif isinstance(wanted, MapType) and isinstance(held, MapType):
        yield from _missing(wanted.keyType, held.keyType, f"{path}key.")
        yield from _missing(wanted.valueType, held.valueType, f"{path}value.")


def _as_sql(data_type: DataType) -> str:
    """Write a type as SQL, whatever the names of its fields are."""
    if isinstance(data_type, StructType):
        fields = (f"{_name_as_sql(field.name)}:{_as_sql(field.dataType)}" for field in data_type)
        return f"struct<{','.join(fields)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{_as_sql(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{_as_sql(data_type.keyType)},{_as_sql(data_type.valueType)}>"
    return data_type.simpleString()


def _name_as_sql(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else back_quoted(name)


def _as_column(given: str | Column) -> Column:
    return F.expr(given) if isinstance(given, str) else given


class _Sequence(NamedTuple):
    """The sequences of events as the table holds them, and their type."""

    column: Column
    at_type: DataType


def _table_sequence(table: Table, rows: DataFrame, given: Column) -> _Sequence:
    """Return the sequences of events as the table holds them."""
    with translated(table.path_or_name, operation="reading changes", otherwise=SourceError):
        at_type = rows.select(given.alias("at")).schema["at"].dataType
        sequence = as_held(given, at_type, table)
        if sequence is given:
            return _Sequence(given, at_type)
        at_type = rows.select(sequence.alias("at")).schema["at"].dataType
        return _Sequence(sequence, at_type)


def _condition_column(given: str | Column | None) -> Column | None:
    return None if given is None else _as_column(given)


def _value_columns(table: Table, rows: DataFrame, options: EventOptions) -> tuple[str, ...]:
    """Return the columns of the table that are not keys."""
    keys, column_list = options.keys, options.column_list
    event_columns = filter(None, [options.present_columns, options.message_column])
    left_out = {*(options.except_column_list or ()), *event_columns}
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
    for name in (*keys, *columns):
        quoted(name)  # refuses names that SQL text cannot hold, before anything is written
    return columns


def check_names_are_free(table: Table, taken: Sequence[str]) -> None:
    """Raise a StatementError if columns have names that the table itself needs."""
    if taken:
        raise wrong(
            table,
            f"the table has columns of its own named {', '.join(taken)}, or names that begin with "
            f"{PREFIX} or {RESERVED_PREFIX}, which are taken.",
            "Rename them in the source, or leave them out with except_column_list.",
        )


def properties_of_new(shape: EventShape, schema: StructType) -> dict[str, str]:
    """Return the properties of a new table with this schema for events of this shape."""
    first = first_columns([*shape.keys, *shape.columns]) if shape.is_partial else {}
    return {"delta.enableDeletionVectors": "true", **needed_properties(schema), **first}


def needed_properties(schema: StructType) -> dict[str, str]:
    """Return the properties that a new table needs for the names of its columns.

    Parquet does not allow blanks and some other characters in names. With column mapping, Delta
    gives such columns other names in the files.
    """
    return {"delta.columnMapping.mode": "name"} if holds_type(schema, _needs_mapping) else {}


def _needs_mapping(data_type: DataType) -> bool:
    names = data_type.names if isinstance(data_type, StructType) else ()
    return not all(map(_NOT_IN_PARQUET.isdisjoint, names))


def wrong(table: Table, problem: str, hint: str | None = None) -> StatementError:
    """Build the error for invalid arguments."""
    return StatementError(problem, table=table.path_or_name, operation=_APPLYING, hint=hint)


def condition_of_keys(
    where: str | Column, rows: DataFrame, keys: Sequence[str], table: Table
) -> Column:
    """Resolve a condition of key columns.

    Raises:
        StatementError: The condition names other columns.
    """
    condition = F.expr(where) if isinstance(where, str) else where
    with translated(table.path_or_name, operation="reading"):
        # Not a projection of the rows, because Spark would resolve other columns below it.
        alone = rows.select(*map(quoted, keys)).schema
        rows.sparkSession.createDataFrame([], alone).where(condition)
    return condition
