"""The columns of a table, what the tables beside it call them, and how it stores texts of CHAR.

Events that were stored before columns were added, renamed, dropped or widened are read after that.
So they are stored by the names that the columns have in the table's files; without column mapping,
these are the columns' names. Earlier releases stored events by the columns' names. In a table that
was created with column mapping, the two differ, and both are looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from deltaweave.changes.conversions import (
    FROM,
    by_case,
    has_fields_of,
    holds_type,
    names_of,
    once,
    plain,
    with_fields,
)
from deltaweave.delta.log import TableSnapshot, physical_name
from deltaweave.delta.statement import OF_LIMITED_LENGTH

_SEQUENCE = "_cdc_sequence"
_MADE_WITH_MAPPING = "col-"
_GENERATION, _NUMBERED = "delta.generationExpression", "delta.identity.start"
_DEFAULT = "CURRENT_DEFAULT"
_FIRST_COLUMNS = "deltaweave.firstColumns"

_Longer = Callable[[Column, CharType | VarcharType], Column]


@dataclass(frozen=True)
class TableColumns:
    """A table's columns for the values of events, and their names in side tables.

    Attributes:
        fields: The columns by their names in lower case, with the names that side tables may have
            for them (`FROM`).
        stored: The columns as the side tables store them.
        at: The type of the table's sequences (`at`), or None if it has none.
        added: The columns that may have been added after the table was created, by their names in
            lower case; None if that is not known.
        table_id: The table's id.
        schema: The table's schema; None if the table is still to be created.
    """

    fields: Mapping[str, StructField]
    stored: Mapping[str, StructField]
    at: DataType | None
    added: frozenset[str] | None = None
    table_id: str = ""
    schema: StructType | None = None

    @classmethod
    def of(cls, table: TableSnapshot, own: Sequence[str]) -> TableColumns:
        """Read the columns of a version of a table.

        `own` names the columns that the table has of itself; the first has its sequences.
        """
        is_mapped = table.metadata.column_mapping != "none"
        # A table that got column mapping later keeps the names of that time in its files.
        by_name = is_mapped and all(
            physical_name(field).startswith(_MADE_WITH_MAPPING) for field in table.schema
        )
        names = [name.lower() for name in own]
        first = table.setting(_FIRST_COLUMNS)
        known = None if first is None else json.loads(first)
        fields, stored, at, added = {}, {}, None, set()
        for field in table.schema:
            lower = field.name.lower()
            if lower == names[0]:
                at = field.dataType
            if lower not in names:
                fields[lower] = _found_by(field, by_name=by_name) if is_mapped else field
                stored[lower] = _stored(field) if is_mapped else field
                if known is not None and stored[lower].name not in known:
                    added.add(lower)
        if own[0] == _SEQUENCE and isinstance(at, StructType):
            at = at["at"].dataType
        known_added = None if known is None else frozenset(added)
        return cls(fields, stored, at, known_added, table.id, table.schema)

    @classmethod
    def declared(cls, schema: StructType | str) -> TableColumns:
        """Describe the columns of a table that is still to be created."""
        fields = by_case(declared_columns(schema))
        return cls(fields, fields, None)

    def only(self, names: Sequence[str]) -> TableColumns:
        """Select columns."""
        lower = {name.lower() for name in names}
        return replace(self, fields={n: f for n, f in self.fields.items() if n in lower})

    def name(self, column_name: str) -> str:
        """Return the name of a column in the side tables."""
        field = self.stored.get(column_name.lower())
        return column_name if field is None else field.name

    def names(self, column_name: str) -> list[str]:
        """Return all names by which side tables may hold a column."""
        field = self.fields.get(column_name.lower())
        return [column_name] if field is None else names_of(field)

    def lacking(self, known: Sequence[str]) -> list[StructField]:
        """Return the columns whose names are not known, except those that the table computes."""
        spelled = {name.lower() for name in known}
        return [
            field
            for lower, field in self.fields.items()
            if lower not in spelled and not is_computed(field)
        ]

    def widest(self, event_column: StructField) -> StructField:
        """Return a column of events in the table's type, if that has all fields of the events."""
        field = self.fields.get(event_column.name.lower())
        fits = field is not None and has_fields_of(field.dataType, event_column.dataType)
        data_type = field.dataType if field is not None and fits else event_column.dataType
        return StructField(event_column.name, plain(data_type))

    def is_limited(self, name: str) -> bool:
        """Return whether a column is of CHAR or VARCHAR, or has a part of CHAR."""
        limits = self._limits_of(name)
        return isinstance(limits, VarcharType) or has_char(limits)

    def type_in_words(self, name: str) -> str:
        """Return a column's type in SQL, with the lengths of its texts."""
        field = self.fields[name.lower()]
        return str((field.metadata or {}).get(OF_LIMITED_LENGTH, field.dataType.simpleString()))

    def has_limits(self, name: str) -> bool:
        """Return whether a column is of CHAR or VARCHAR, or has a part of these."""
        return self._limits_of(name) is not None

    def as_stored(
        self, name: str, value: Column, held: DataType, is_written: Column | None = None
    ) -> Column:
        """Return a value of a column as the table stores it.

        CHAR texts are padded with blanks to the column's length; blanks beyond it are cut, also
        from VARCHAR texts. A longer text stays as it is, and the write fails, as for blanks beyond
        the length in an array, map or struct. Where it `is_written`, evaluating it is an error.
        """
        limits = self._limits_of(name)

        def longer(text: Column, limits: CharType | VarcharType) -> Column:
            if is_written is None:
                return text
            is_longer = F.length(text) > limits.length
            problem = f"a text does not fit the table, whose {name} is {self.type_in_words(name)}: "
            error = F.raise_error(F.concat(F.lit(problem), text))
            return F.when(is_written & is_longer, error).otherwise(text)

        if isinstance(limits, VarcharType):
            is_cut = F.length(F.rtrim(value)) <= limits.length
            is_cut = is_cut & (F.length(value) > limits.length)
            cut = F.when(is_cut, F.substring(value, 1, limits.length))
            return cut.otherwise(longer(value, limits))
        if isinstance(limits, CharType):
            return padded(F.rtrim(value), limits, longer(value, limits))
        if limits is None or (is_written is None and not has_char(limits)):
            return value
        types = held, self.fields[name.lower()].dataType, limits
        return once(value, lambda value: with_padded_parts(value, *types, longer))

    def _limits_of(self, name: str) -> DataType | None:
        """Return a column's type with the lengths of its texts, or None if it has none."""
        field = self.fields.get(name.lower())
        text = "" if field is None else (field.metadata or {}).get(OF_LIMITED_LENGTH, "")
        return limits_of(text) if text else None


def first_columns(names: Sequence[str]) -> dict[str, str]:
    """Return the properties of a new table that record the columns it began with.

    A row with a null in another column may be older than the column.
    """
    return {_FIRST_COLUMNS: json.dumps(list(names))}


def is_computed(field: StructField) -> bool:
    """Return whether the table computes the column's values itself."""
    return not {_GENERATION, _NUMBERED}.isdisjoint(field.metadata or {})


def generated(fields: Iterable[StructField]) -> dict[str, str]:
    """Return the SQL of columns that are generated from others, by name."""
    return {
        f.name: str(f.metadata[_GENERATION]) for f in fields if _GENERATION in (f.metadata or {})
    }


def numbered(fields: Iterable[StructField]) -> list[str]:
    """Return the names of identity columns."""
    return [f.name for f in fields if _NUMBERED in (f.metadata or {})]


def defaults(fields: Sequence[StructField]) -> dict[str, str]:
    """Return the SQL of the fields' defaults, by name."""
    return {f.name: str(f.metadata[_DEFAULT]) for f in fields if _DEFAULT in (f.metadata or {})}


def _found_by(field: StructField, *, by_name: bool) -> StructField:
    """Return a column found by its name in files or, for earlier releases, by its own name."""
    names = [physical_name(field), *([field.name] if by_name else [])]
    metadata = {**(field.metadata or {}), FROM: names}
    data_type = with_fields(field.dataType, lambda each: _found_by(each, by_name=by_name))
    return StructField(field.name, data_type, metadata=metadata)


def _stored(field: StructField) -> StructField:
    """Return a column named as in files, that is found by its name."""
    data_type = with_fields(field.dataType, _stored)
    return StructField(physical_name(field), data_type, metadata={FROM: [field.name]})


@lru_cache(maxsize=256)
def limits_of(text: str) -> DataType | None:
    """Parse a type with CHAR and VARCHAR, as the metadata of a column has it.

    None if names of fields in it would need quotes, which Spark leaves out and cannot read either.
    """
    try:
        parsed = StructType.fromDDL(f"limits {text}")
    except ParseException:
        return None
    assert isinstance(parsed, StructType)
    limits: DataType = parsed["limits"].dataType
    return limits


def declared_columns(schema: StructType | str) -> StructType:
    """Return the columns of a table that is created with a schema, as Spark has them.

    Texts of CHAR and VARCHAR are strings, and the metadata of their columns has the lengths.
    """
    declared = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(declared, StructType)
    columns = []
    for field in declared:
        plain = _with_plain_texts(field.dataType)
        metadata = dict(field.metadata or {})
        if plain != field.dataType:
            metadata[OF_LIMITED_LENGTH] = field.dataType.simpleString()
        columns.append(StructField(field.name, plain, field.nullable, metadata))
    return StructType(columns)


def _with_plain_texts(data_type: DataType) -> DataType:
    if isinstance(data_type, (CharType, VarcharType)):
        return StringType()
    if isinstance(data_type, StructType):
        return StructType(
            [
                StructField(f.name, _with_plain_texts(f.dataType), f.nullable, f.metadata)
                for f in data_type
            ]
        )
    if isinstance(data_type, ArrayType):
        return ArrayType(_with_plain_texts(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, MapType):
        key_type, value_type = data_type.keyType, data_type.valueType
        parts = _with_plain_texts(key_type), _with_plain_texts(value_type)
        return MapType(*parts, data_type.valueContainsNull)
    return data_type


def has_char(limits: DataType | None) -> bool:
    """Return whether a type has CHAR at any depth."""
    return limits is not None and holds_type(limits, lambda part: isinstance(part, CharType))


def padded(text: Column, limits: CharType, otherwise: Column) -> Column:
    """Pad a text with blanks up to the length of its type; return another if it is longer."""
    fits = F.length(text) <= limits.length
    return F.when(fits, F.rpad(text, limits.length, " ")).otherwise(otherwise)


def with_padded_parts(
    value: Column, held: DataType, table: DataType, limits: DataType, longer: _Longer
) -> Column:
    """Pad the texts of CHAR at every depth.

    `limits` is the table's type with lengths, which names fields as when it was created. `longer`
    gets the texts that are not padded, with the type of their length.
    """
    if isinstance(limits, CharType | VarcharType):
        if not isinstance(held, StringType):
            return value
        kept = longer(value, limits)
        return padded(value, limits, kept) if isinstance(limits, CharType) else kept
    # A field may be of another type than when it was created: dropped, and added again.
    is_limited = holds_type(limits, lambda part: isinstance(part, CharType | VarcharType))
    if not is_limited or not type(held) is type(table) is type(limits):
        return value
    if isinstance(held, ArrayType) and isinstance(table, ArrayType):
        assert isinstance(limits, ArrayType)
        types = held.elementType, table.elementType, limits.elementType
        return F.transform(value, lambda item: with_padded_parts(item, *types, longer))
    if isinstance(held, MapType) and isinstance(table, MapType):
        assert isinstance(limits, MapType)
        key_types = held.keyType, table.keyType, limits.keyType
        value_types = held.valueType, table.valueType, limits.valueType
        keys = F.transform(
            F.map_keys(value), lambda key: with_padded_parts(key, *key_types, longer)
        )
        values = F.transform(
            F.map_values(value), lambda item: with_padded_parts(item, *value_types, longer)
        )
        return F.map_from_arrays(keys, values)
    if isinstance(held, StructType) and isinstance(table, StructType):
        assert isinstance(limits, StructType)
        return _with_padded_fields(value, held, table, limits, longer)
    return value


def _with_padded_fields(
    value: Column, held: StructType, table: StructType, limits: StructType, longer: _Longer
) -> Column:
    types = by_case(table)
    limits_of_fields = _limits_by_field(list(types), limits)
    fields = []
    for field in held:
        part, lower = value[field.name], field.name.lower()
        if lower in limits_of_fields:
            part_types = types[lower].dataType, limits_of_fields[lower]
            part = with_padded_parts(part, field.dataType, *part_types, longer)
        fields.append(part.alias(field.name))
    return F.when(value.isNotNull(), F.struct(*fields))


def _limits_by_field(names: list[str], limits: StructType) -> dict[str, DataType]:
    """Map the present names of fields to the types with which they were created.

    A field that was renamed is found by its position.
    """
    created = by_case(limits)
    found = {name: created[name].dataType for name in names if name in created}
    for name, (earlier, field) in zip(names, created.items(), strict=False):
        if name not in created and earlier not in names:
            found[name] = field.dataType
    return found
