"""Events as the tables beside a table store them, and read back as its columns are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, StructField, StructType

from deltaweave.changes.conversions import (
    FROM,
    by_case,
    converted,
    is_as,
    plain,
    struct_of,
    widens,
)
from deltaweave.changes.events import (
    NO_COLUMN,
    PRESENT,
    SEQUENCE,
    VALUES,
    Events,
    EventShape,
)
from deltaweave.changes.table_columns import TableColumns, defaults
from deltaweave.identifiers import column


def completed(events: Events, table: TableColumns) -> Events:
    """The events with all columns of their table, in its types where these are wider.

    An event that may leave columns out does not set those that its source lacks. Another one sets
    them to their default, or to null.
    """
    shape = events.shape
    held = _values_type(events.rows)
    lacking = table.lacking([*shape.keys, *shape.columns])
    wanted = [table.widest(held[name]) for name in shape.columns]
    wanted += [StructField(field.name, plain(field.dataType)) for field in lacking]
    rows = events.rows
    if wanted and not is_as(held, StructType(wanted)):
        missing = {} if shape.is_partial else defaults(lacking)
        values = struct_of(F.col(VALUES), held, StructType(wanted), missing)
        rows = rows.withColumn(VALUES, values)
    rows = rows.withColumns(_keys_of(rows, shape, table))
    rows = rows.withColumn(SEQUENCE, _sequence(rows, table))
    names = tuple(field.name for field in wanted)
    return replace(events, rows=rows, shape=replace(shape, columns=names, table=table))


def with_values_of(rows: DataFrame, wanted: DataType) -> DataFrame:
    """The rows with values of a struct's type, whose fields are found by name at every depth.

    A cast takes them by position. Here, it only changes the types that fields have.
    """
    held = _values_type(rows)
    values = converted(F.col(VALUES), held, wanted)
    return rows.withColumn(VALUES, values.cast(wanted))


def to_stored(rows: DataFrame, shape: EventShape) -> DataFrame:
    """Events as the tables beside store them; the rows have some of the columns of `Events`."""
    table = shape.table
    if table is None:
        return rows
    selected = []
    for name in rows.columns:
        value = column(name)
        if name == VALUES:
            held = _values_type(rows)
            wanted = StructType([table.stored.get(f.name.lower(), f) for f in held])
            value = value if is_as(held, wanted) else struct_of(value, held, wanted)
        elif name == PRESENT:
            value = _named({each.lower(): table.name(each) for each in shape.columns}, value)
        selected.append(value.alias(table.name(name) if name in shape.keys else name))
    return rows.select(*selected)


def to_events(kept: DataFrame, shape: EventShape) -> DataFrame:
    """Stored events as events of the table's columns.

    Columns that the stored events lack are null, and are not set by events that may leave columns
    out.
    """
    table = shape.table
    if table is None:
        return kept
    there = by_case(kept.schema)
    found = {
        key: [there[name.lower()] for name in table.names(key) if name.lower() in there]
        for key in shape.keys
    }
    selected = [_key(key, of, table).alias(key) for key, of in found.items()]
    taken = {field.name for of in found.values() for field in of}
    for name in kept.columns:
        if name == VALUES:
            selected.append(_values(kept, shape, table).alias(name))
        elif name == SEQUENCE:
            selected.append(_sequence(kept, table).alias(name))
        elif name != PRESENT and name not in taken:
            selected.append(column(name))
    if shape.present is not None:
        selected.append(_present(kept, shape, table).alias(PRESENT))
    return kept.select(*selected)


def untaken(held: StructType, shape: EventShape) -> list[str]:
    """Return the names of stored values that no column of the shape takes."""
    table = shape.table
    names = shape.columns if table is None else [n for c in shape.columns for n in table.names(c)]
    taken = {NO_COLUMN, *[name.lower() for name in names]}
    return [field.name for field in held if field.name.lower() not in taken]


def _keys_of(rows: DataFrame, shape: EventShape, table: TableColumns) -> dict[str, Column]:
    """Keys with fields, as the table has these: SQL compares fields by position."""
    keys = {}
    for key in shape.keys:
        field = rows.schema[key]
        wanted = table.widest(field).dataType
        if isinstance(wanted, (StructType, ArrayType)) and not is_as(field.dataType, wanted):
            keys[key] = converted(column(key), field.dataType, wanted)
    return keys


def _sequence(rows: DataFrame, table: TableColumns) -> Column:
    """The rows' sequences, in the table's type if that is wider."""
    held = rows.schema[SEQUENCE].dataType
    assert isinstance(held, StructType)
    sequence, at = F.col(SEQUENCE), held["at"].dataType
    if table.at is None or not widens(at, table.at):
        return sequence
    return F.struct(sequence["at"].cast(table.at).alias("at"), sequence["tie"].alias("tie"))


def _key(key: str, held: list[StructField], table: TableColumns) -> Column:
    """A key column, by the names that tables beside have for it."""
    wanted = table.fields[key.lower()].dataType
    values = [converted(column(field.name), field.dataType, wanted) for field in held]
    return F.coalesce(*values) if len(values) > 1 else (values or [F.lit(None).cast(wanted)])[0]


def _values(kept: DataFrame, shape: EventShape, table: TableColumns) -> Column:
    """Stored values as those of the table's columns, as the shape spells these."""
    held = _values_type(kept)
    wanted = StructType(
        [
            StructField(
                name, table.fields[name.lower()].dataType, metadata={FROM: table.names(name)}
            )
            for name in shape.columns
        ]
        or [StructField(NO_COLUMN, BooleanType())]
    )
    return F.col(VALUES) if is_as(held, wanted) else struct_of(F.col(VALUES), held, wanted)


def _present(kept: DataFrame, shape: EventShape, table: TableColumns) -> Column:
    """The names that stored events say they set, as the shape spells them."""
    there = by_case(_values_type(kept))
    of_stored, held = {}, []
    for name in shape.columns:
        names = [each.lower() for each in table.names(name)]
        of_stored.update(dict.fromkeys(names, name))
        held += [name] if any(each in there for each in names) else []
    if PRESENT not in kept.columns:
        return F.lit(None).cast("array<string>")
    present = _named(of_stored, F.col(PRESENT))
    if shape.ignore_nulls or len(held) == len(shape.columns):
        return present
    # Events of earlier releases that set all columns which there were then.
    return F.coalesce(present, F.array(*map(F.lit, held)).cast("array<string>"))


def _values_type(rows: DataFrame) -> StructType:
    values = rows.schema[VALUES].dataType
    assert isinstance(values, StructType)
    return values


def _named(names: Mapping[str, str], present: Column) -> Column:
    """The names in an array, in any case, by a mapping; those that it lacks are left out."""
    if not names:
        return F.when(present.isNotNull(), F.array().cast("array<string>"))
    known = F.map_from_arrays(F.array(*map(F.lit, names)), F.array(*map(F.lit, names.values())))
    renamed = F.transform(present, lambda name: F.try_element_at(known, F.lower(name)))
    return F.array_compact(renamed)
