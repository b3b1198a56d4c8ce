"""Events as the tables beside a table store them, and read back as its columns are now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from deltaweave.changes.conversions import (
    FROM,
    by_case,
    converted,
    exact,
    has_fields_of,
    is_as,
    names_of,
    plain,
    struct_of,
    widens,
)
from deltaweave.changes.events import (
    COLUMN_SEQUENCES,
    EVENT_VALUES,
    NO_COLUMN,
    OPERATION,
    PRESENT,
    SEQUENCE,
    UPSERT,
    Events,
    EventShape,
    last_truncate,
    mentions,
    sequence_at_type,
    values_type,
)
from deltaweave.changes.table_columns import TableColumns, defaults
from deltaweave.delta.jvm import cast_strictly
from deltaweave.delta.log import TableSnapshot
from deltaweave.errors import NOTHING_DONE, CommitConflictError, StatementError
from deltaweave.identifiers import back_quoted, column

ITEM = "item"
"""In a path, the items of an array, or the keys or values of a map."""

_FAR_ZONES = ("+14:00", "-12:00")
_NAMES_UTC = r"(?i)[\d\s](Z|UTC|GMT|[+-]00(:?00)?)\s*$"
_BEGINS_WITH_DAY = r"^\s*[+-]?\d{4,6}-"  # Spark reads a time of day without a date as one of today
_EXACT_DIGITS = {FloatType: 6, DoubleType: 15}
_BELOW_MICROSECONDS = r"\.\d{6}0*[1-9]"

_IsThere = Callable[[Column], Column]


def completed(events: Events, table: TableColumns) -> Events:
    """Complete the events by all columns of their table, in its types.

    Evaluating a value that an event sets and that does not fit its type is an error, whatever the
    session sets. An event that may leave columns out does not set those that its source lacks.
    Another one sets them to their default, or to null.
    """
    shape = events.shape
    held = values_type(events.rows.schema)
    lacking = table.lacking([*shape.keys, *shape.columns])
    wanted = [table.widest(held[name]) for name in shape.columns]
    wanted += [StructField(field.name, plain(field.dataType)) for field in lacking]
    rows = events.rows
    if wanted and not is_as(held, StructType(wanted)):
        missing = {} if shape.is_partial else defaults(lacking)
        fields = [_cast_where_set(rows, held, field, shape, missing) for field in wanted]
        rows = rows.withColumn(EVENT_VALUES, F.struct(*fields))
    names = tuple(field.name for field in wanted)
    wanted_types = {field.name: field.dataType for field in wanted}
    if limited := [name for name in names if table.has_limits(name)]:
        values = F.col(EVENT_VALUES)
        for name in limited:
            value = F.col(EVENT_VALUES)[name]
            value = table.as_stored(name, value, wanted_types[name], _is_set(name, shape))
            values = values.withField(back_quoted(name), value)
        rows = rows.withColumn(EVENT_VALUES, values)
    rows = rows.withColumns(_keys_of(rows, shape, table))
    at, truncated = sequence_at_type(rows.schema), events.truncated
    rows = rows.withColumn(SEQUENCE, _exact_sequence(rows, table))
    if truncated is not None and plain(at) != plain(sequence_at_type(rows.schema)):
        truncated = last_truncate(rows)  # the types may have different orders
    shape = replace(shape, columns=names, table=table)
    return replace(events, rows=rows, shape=shape, truncated=truncated)


def _cast_where_set(
    rows: DataFrame,
    held: StructType,
    field: StructField,
    shape: EventShape,
    missing: Mapping[str, str],
) -> Column:
    """Cast the value of a column that events set; deletes, and events that leave it out, have null.

    Args:
        rows: The events.
        held: The type of their values.
        field: The column.
        shape: What the events are.
        missing: The SQL for columns that the events lack, by name.
    """
    values = struct_of(F.col(EVENT_VALUES), held, StructType([field]), missing)
    value = cast_strictly(rows.sparkSession, values[field.name], field.dataType)
    return F.when(_is_set(field.name, shape), value).alias(field.name)


def _is_set(name: str, shape: EventShape) -> Column:
    """Return whether an event sets a column of the table."""
    is_set = F.col(OPERATION) == UPSERT
    return is_set & mentions(name, shape) if shape.is_partial and name in shape.columns else is_set


def check_are_of(newest: TableSnapshot, events: Events) -> None:
    """Fail unless the events were completed for the table as it is in a version.

    Raises:
        CommitConflictError: Another table replaced it, or its columns are others now. Complete the
            events again.
    """
    table = events.shape.table
    if table is None:
        return
    is_other = table.table_id != newest.id
    if is_other or table.schema != newest.schema:
        raise CommitConflictError(
            "another table is in its place since the batch began."
            if is_other
            else "its columns were changed since the batch began.",
            table=newest.data_path,
            version=newest.version,
            hint="Apply the events again, to the table as it is now.",
        )


def with_values_of(rows: DataFrame, wanted: DataType) -> DataFrame:
    """Convert the rows' values to a struct's type, finding fields by name at every depth.

    A cast alone would match them by position. Evaluating a value that does not fit is an error.
    """
    held = values_type(rows.schema)
    values = converted(F.col(EVENT_VALUES), held, wanted)
    return rows.withColumn(EVENT_VALUES, cast_strictly(rows.sparkSession, values, wanted))


def to_stored(rows: DataFrame, shape: EventShape) -> DataFrame:
    """Convert events to the form in which side tables store them."""
    table = shape.table
    if table is None:
        return rows
    selected = []
    for name in rows.columns:
        value = column(name)
        if name == EVENT_VALUES:
            held = values_type(rows.schema)
            wanted = StructType([table.stored.get(f.name.lower(), f) for f in held])
            value = value if is_as(held, wanted) else struct_of(value, held, wanted)
        elif name == PRESENT:
            value = _with_names_of(
                {each.lower(): table.name(each) for each in shape.columns}, value
            )
        selected.append(value.alias(table.name(name) if name in shape.keys else name))
    return rows.select(*selected)


def stored_schema(rows: DataFrame, shape: EventShape) -> StructType:
    """Return the types of rows from `to_stored`, as their table has them if it has the columns."""
    table = {} if shape.table is None else {f.name: f for f in shape.table.stored.values()}

    def as_table_has_it(field: StructField) -> StructField:
        return StructField(field.name, plain(table.get(field.name, field).dataType))

    keys, fields = {shape.stored(key) for key in shape.keys}, []
    for field in rows.schema:
        if field.name == EVENT_VALUES:
            fields.append(
                StructField(
                    EVENT_VALUES, StructType([*map(as_table_has_it, values_type(rows.schema))])
                )
            )
        else:
            fields.append(as_table_has_it(field) if field.name in keys else field)
    return StructType(fields)


def to_events(kept: DataFrame, shape: EventShape) -> DataFrame:
    """Convert stored events to events of the table's columns.

    Columns that the stored events lack are null, and are not set by events that may leave columns
    out. Evaluating values is an error where the shape has whole events and one leaves columns out.
    """
    table = shape.table
    if table is None:
        return kept
    by_name = by_case(kept.schema)
    found = {
        key: [by_name[name.lower()] for name in table.names(key) if name.lower() in by_name]
        for key in shape.keys
    }
    selected = [_read_key(key, held_fields, table).alias(key) for key, held_fields in found.items()]
    taken = {field.name for held_fields in found.values() for field in held_fields}
    for name in kept.columns:
        if name == EVENT_VALUES:
            values = _table_values(kept, shape, table)
            if PRESENT in kept.columns and not shape.is_partial:
                values = _unless_partial(values, kept, shape, table)
            selected.append(values.alias(name))
        elif name == SEQUENCE:
            selected.append(_widened_sequence(kept, table).alias(name))
        elif name != PRESENT and name not in taken:
            selected.append(column(name))
    if shape.is_partial:
        selected.append(_present(kept, shape, table).alias(PRESENT))
    return kept.select(*selected)


def untaken(held: StructType, shape: EventShape) -> dict[tuple[str, ...], Column]:
    """Return the paths, at every depth, to stored values that no column of the shape takes.

    Returns:
        By path, whether an event has a value there.
    """
    assert shape.table is not None
    found = _untaken(held, _wanted(shape, shape.table))
    return {path: is_there(F.col(EVENT_VALUES)) for path, is_there in found if path != (NO_COLUMN,)}


def _untaken(held: DataType, wanted: DataType) -> Iterator[tuple[tuple[str, ...], _IsThere]]:
    """Yield the paths to fields that a type does not take, and the test that a value has them."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        into = {
            name.lower(): wanted_field.dataType
            for wanted_field in wanted
            for name in names_of(wanted_field)
        }
        for field in held:
            if field.name.lower() not in into:
                yield (field.name,), _in_field(field.name, Column.isNotNull)
                continue
            for path, is_there in _untaken(field.dataType, into[field.name.lower()]):
                yield (field.name, *path), _in_field(field.name, is_there)
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        for path, is_there in _untaken(held.elementType, wanted.elementType):
            yield (ITEM, *path), _in_items(lambda items: items, is_there)
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        for path, is_there in _untaken(held.keyType, wanted.keyType):
            yield (ITEM, *path), _in_items(F.map_keys, is_there)
        for path, is_there in _untaken(held.valueType, wanted.valueType):
            yield (ITEM, *path), _in_items(F.map_values, is_there)


def _in_field(name: str, is_there: _IsThere) -> _IsThere:
    return lambda value: is_there(value[name])


def _in_items(items: Callable[[Column], Column], is_there: _IsThere) -> _IsThere:
    return lambda value: F.exists(items(value), is_there)


def _keys_of(rows: DataFrame, shape: EventShape, table: TableColumns) -> dict[str, Column]:
    """Return keys in the table's types; evaluating one that this changes is an error.

    Otherwise, keys of other events, or of rows of the table, may become the same when they are
    written. Fields are found by name, because SQL compares them by position.
    """
    keys = {}
    for key in shape.keys:
        field = rows.schema[key]
        held, wanted = plain(field.dataType), table.widest(field).dataType
        value = column(key)
        if not is_as(held, wanted):
            ending = f" does not fit the table, whose {key} is {wanted.simpleString()}"
            value = converted_exactly(rows, value, (held, wanted), (f"the key {key}=", ending))
        if table.has_limits(key) or not is_as(held, wanted):
            # A delete with another key finds no row.
            keys[key] = table.as_stored(key, value, wanted, F.col(OPERATION) == UPSERT)
    return keys


def converted_exactly(
    rows: DataFrame, value: Column, types: tuple[DataType, DataType], problem: tuple[str, str]
) -> Column:
    """Convert a value of one type to another; evaluating one that this changes is an error."""
    held, wanted = types
    value = converted(value, held, wanted)  # finds fields by name
    [named] = rows.select(value.alias("value")).schema
    return _exact(rows.sparkSession, value, (named.dataType, wanted), problem)


def _exact(
    spark: SparkSession, value: Column, types: tuple[DataType, DataType], problem: tuple[str, str]
) -> Column:
    """Cast a value as `exact` does, but parse its texts, at every depth of structs."""
    held, wanted = types
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        fields = [
            _exact(spark, value[a.name], (a.dataType, b.dataType), problem).alias(a.name)
            for a, b in zip(held, wanted, strict=True)
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if not isinstance(held, StringType) or is_as(held, wanted):
        return exact(value, held, wanted, problem)
    return _parsed_text(spark, value, plain(wanted), problem)


def _parsed_text(
    spark: SparkSession, text: Column, wanted: DataType, problem: tuple[str, str]
) -> Column:
    """Parse a text; evaluating one that the type does not hold exactly is an error.

    A TIMESTAMP is a text with a time zone; other times are texts without one, or in UTC.
    """

    def read(as_type: DataType, zone: str | None = None) -> Column:
        return cast_strictly(spark, text, as_type, zone=zone)

    value, ending = read(wanted), problem[1]
    if isinstance(wanted, DecimalType):
        digits = DecimalType(38, 38 - wanted.precision + wanted.scale)
        is_longer = text.rlike(rf"^[^eE]*\.\d{{{wanted.scale}}}0*[1-9][^eE]*$")
        is_same = value.eqNullSafe(read(digits)) & ~is_longer
    elif isinstance(wanted, (TimestampType, TimestampNTZType, DateType)):
        east, west = (read(TimestampType(), zone) for zone in _FAR_ZONES)
        is_same = east.eqNullSafe(west)
        if isinstance(wanted, TimestampType):
            value, ending = east, f"{ending}, in every time zone"
            is_same &= text.rlike(_BEGINS_WITH_DAY)
        else:
            local = read(TimestampNTZType())
            names_no_other = ~is_same | text.rlike(_NAMES_UTC)
            is_same = names_no_other & value.cast(TimestampNTZType()).eqNullSafe(local)
        is_same &= ~text.rlike(_BELOW_MICROSECONDS)
    elif isinstance(wanted, (DoubleType, FloatType)):
        # Texts of so few digits are different numbers, and so are the shortest texts of numbers.
        shown = F.regexp_replace(F.regexp_replace(text, "[eE].*", ""), "[^0-9]", "")
        number = F.length(F.regexp_replace(shown, "^0+|0+$", ""))
        is_same = (number <= _EXACT_DIGITS[type(wanted)]) | value.cast("string").eqNullSafe(text)
    else:
        return value
    message = F.concat(F.lit(problem[0]), text, F.lit(ending))
    return F.when(text.isNull() | is_same, value).otherwise(F.raise_error(message))


def _widened_sequence(rows: DataFrame, table: TableColumns) -> Column:
    """Return the rows' sequences, in the table's type if that is wider."""
    sequence, at = F.col(SEQUENCE), sequence_at_type(rows.schema)
    if table.at is None or not widens(at, table.at):
        return sequence
    return F.struct(sequence["at"].cast(table.at).alias("at"), sequence["tie"].alias("tie"))


def _exact_sequence(rows: DataFrame, table: TableColumns) -> Column:
    """Cast the rows' sequences to the table's type; evaluating one that changes is an error."""
    at, wanted = sequence_at_type(rows.schema), table.at
    if wanted is None or plain(at) == plain(wanted) or widens(at, wanted):
        return _widened_sequence(rows, table)
    ending = f" does not fit the table, whose sequences are {wanted.simpleString()}"
    if not has_fields_of(at, wanted):
        raise StatementError(
            f"the sequence {at.simpleString()}{ending}.",
            operation="applying changes",
            state=NOTHING_DONE,
            hint="Give sequence_by all fields that it has in the table, by their names.",
        )
    at_held = converted_exactly(
        rows, F.col(SEQUENCE)["at"], (at, wanted), ("the sequence ", ending)
    )
    return F.struct(at_held.alias("at"), F.col(SEQUENCE)["tie"].alias("tie"))


def _read_key(key: str, held: list[StructField], table: TableColumns) -> Column:
    """Read a key column, by the names that side tables have for it."""
    wanted = table.fields[key.lower()].dataType
    values = [converted(column(field.name), field.dataType, wanted) for field in held]
    # Earlier releases remembered texts of CHAR columns without their blanks.
    values = [table.as_stored(key, value, wanted) for value in values] or [F.lit(None).cast(wanted)]
    return F.coalesce(*values) if len(values) > 1 else values[0]


def _table_values(kept: DataFrame, shape: EventShape, table: TableColumns) -> Column:
    """Convert stored values to the table's columns, as the shape spells these."""
    held = values_type(kept.schema)
    wanted, values = _wanted(shape, table), F.col(EVENT_VALUES)
    if is_as(held, wanted):
        return values
    return cast_strictly(kept.sparkSession, struct_of(values, held, wanted), plain(wanted))


def _wanted(shape: EventShape, table: TableColumns) -> StructType:
    """Return the type of values as the shape spells them, with the names of stored ones."""
    return StructType(
        [
            StructField(
                name, table.fields[name.lower()].dataType, metadata={FROM: table.names(name)}
            )
            for name in shape.columns
        ]
        or [StructField(NO_COLUMN, BooleanType())]
    )


def _present(kept: DataFrame, shape: EventShape, table: TableColumns) -> Column:
    """Return the names of the columns that stored events set, as the shape spells them."""
    by_name = by_case(values_type(kept.schema))
    names_by_stored, held = {}, []
    for name in shape.columns:
        names = [each.lower() for each in table.names(name)]
        names_by_stored.update(dict.fromkeys(names, name))
        held += [name] if any(each in by_name for each in names) else []
    if PRESENT not in kept.columns:
        return F.lit(None).cast("array<string>")
    present = _with_names_of(names_by_stored, F.col(PRESENT))
    if shape.ignore_nulls or len(held) == len(shape.columns):
        return present
    # Whole events of earlier releases set all columns of their time.
    return F.coalesce(present, F.array(*map(F.lit, held)).cast("array<string>"))


def _unless_partial(
    values: Column, kept: DataFrame, shape: EventShape, table: TableColumns
) -> Column:
    """Return the values of whole events; evaluating those of another event is an error."""
    names = F.array_distinct(_present(kept, shape, table))
    is_upsert = F.col(OPERATION) == UPSERT
    is_partial = is_upsert & F.col(PRESENT).isNotNull() & (F.size(names) < len(shape.columns))
    sequences = MapType(StringType(), kept.schema[SEQUENCE].dataType).simpleString()
    problem = (
        "a pending event leaves columns out, and without sequences of columns the table cannot "
        f"keep those: ALTER TABLE … ADD COLUMNS ({COLUMN_SEQUENCES} {sequences}), or RESTORE it to "
        "a version that has this column."
    )
    return F.when(is_partial, F.raise_error(F.lit(problem))).otherwise(values)


def _with_names_of(names: Mapping[str, str], present: Column) -> Column:
    """Rename the names in an array, in any case, by a mapping; drop those that it lacks."""
    if not names:
        return F.when(present.isNotNull(), F.array().cast("array<string>"))
    known = F.map_from_arrays(F.array(*map(F.lit, names)), F.array(*map(F.lit, names.values())))
    renamed = F.transform(present, lambda name: F.try_element_at(known, F.lower(name)))
    return F.array_compact(renamed)
