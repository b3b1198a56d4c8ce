"""Values as values of another type: fields added, left out, renamed or widened, at every depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
)

FROM = "deltaweave.from"
"""Metadata of a wanted field: the names that it may have among the existing fields."""

_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_WITHOUT_LOSS = (ByteType, ShortType, IntegerType)


def plain(data_type: DataType) -> DataType:
    """Return the type with nulls allowed at every depth, and without its fields' metadata."""
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, plain(f.dataType)) for f in data_type])
    if isinstance(data_type, ArrayType):
        return ArrayType(plain(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(plain(data_type.keyType), plain(data_type.valueType))
    return data_type


def by_case(fields: Iterable[StructField]) -> dict[str, StructField]:
    """Map the names of fields in lower case to the fields."""
    return {field.name.lower(): field for field in fields}


def names_of(wanted: StructField) -> list[str]:
    """Return the names by which a wanted field may be found among existing fields."""
    return list((wanted.metadata or {}).get(FROM, [wanted.name]))


def struct_of(
    values: Column, held: StructType, wanted: StructType, missing: Mapping[str, str] | None = None
) -> Column:
    """Convert values of a struct to another; a null becomes a struct of nulls.

    Args:
        values: The struct.
        held: The struct's type.
        wanted: The fields that the result has.
        missing: The SQL for fields that the struct lacks, by name; null for the others.
    """
    there = by_case(held)
    fields = []
    for field in wanted:
        found = [there[name.lower()] for name in names_of(field) if name.lower() in there]
        each = [converted(values[f.name], f.dataType, field.dataType) for f in found]
        if not each:
            each = [F.expr((missing or {}).get(field.name, "NULL")).cast(plain(field.dataType))]
        fields.append((each[0] if len(each) == 1 else F.coalesce(*each)).alias(field.name))
    return F.struct(*fields)


def converted(value: Column, held: DataType, wanted: DataType) -> Column:
    """Convert a value to another type as far as that loses nothing; else leave it as it is."""
    if is_as(held, wanted):
        return value
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        return F.when(value.isNotNull(), struct_of(value, held, wanted))
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        one, other = held.elementType, wanted.elementType
        return F.transform(value, lambda item: converted(item, one, other))
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        of_keys, of_values = (held.keyType, wanted.keyType), (held.valueType, wanted.valueType)
        return F.map_from_entries(
            F.transform(
                F.map_entries(value),
                lambda entry: F.struct(
                    converted(entry["key"], *of_keys), converted(entry["value"], *of_values)
                ),
            )
        )
    return value.cast(wanted) if widens(held, wanted) else value


def exact(value: Column, held: DataType, wanted: DataType, problem: tuple[str, str]) -> Column:
    """Cast a value to another type; evaluating one that this changes is an error.

    Args:
        value: The value.
        held: Its type.
        wanted: The other type.
        problem: What the error says before the value, and after it.
    """
    if plain(held) == plain(wanted):
        return value
    found = value.try_cast(plain(wanted))
    is_same = found.cast(plain(held)).eqNullSafe(value)
    said = F.concat(F.lit(problem[0]), value.cast("string"), F.lit(problem[1]))
    return F.when(is_same, found).otherwise(F.raise_error(said))


def spelled(names: Sequence[str], present: Column) -> Column:
    """Spell the names in an array as these columns spell them.

    Names that differ in case alone are the same, as everywhere in SQL. Names of no column stay as
    they are.
    """
    entries = [F.lit(name) for name in {name.lower(): name for name in names}.values()]
    known = F.map_from_arrays(F.array(*map(F.lower, entries)), F.array(*entries))
    return F.transform(present, lambda n: F.coalesce(F.try_element_at(known, F.lower(n)), n))


def is_as(held: DataType, wanted: DataType) -> bool:
    """Return whether values of a type already are of the wanted type."""
    return plain(held) == plain(wanted) and not _renames(wanted)


def has_fields_of(data_type: DataType, other: DataType) -> bool:
    """Return whether a type has all fields of another one, at every depth."""
    if isinstance(data_type, StructType) and isinstance(other, StructType):
        there = by_case(data_type)
        return all(
            f.name.lower() in there and has_fields_of(there[f.name.lower()].dataType, f.dataType)
            for f in other
        )
    if isinstance(data_type, ArrayType) and isinstance(other, ArrayType):
        return has_fields_of(data_type.elementType, other.elementType)
    if isinstance(data_type, MapType) and isinstance(other, MapType):
        of_keys = has_fields_of(data_type.keyType, other.keyType)
        return of_keys and has_fields_of(data_type.valueType, other.valueType)
    return True


def _renames(wanted: DataType) -> bool:
    if isinstance(wanted, StructType):
        return any(names_of(f)[0] != f.name or _renames(f.dataType) for f in wanted)
    if isinstance(wanted, ArrayType):
        return _renames(wanted.elementType)
    if isinstance(wanted, MapType):
        return _renames(wanted.keyType) or _renames(wanted.valueType)
    return False


def widens(narrow: DataType, wide: DataType) -> bool:
    """Return whether a type holds all values of another, and Delta can change columns to it."""
    if isinstance(narrow, NullType):
        return not isinstance(wide, NullType)
    if type(narrow) in _DIGITS and type(wide) in _DIGITS:
        return _DIGITS[type(narrow)] < _DIGITS[type(wide)]  # type: ignore[index]
    if isinstance(wide, DecimalType) and type(narrow) in _DIGITS:
        return wide.precision - wide.scale >= _DIGITS[type(narrow)]  # type: ignore[index]
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        has_digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return wide != narrow and has_digits and wide.scale >= narrow.scale
    if isinstance(wide, DoubleType):
        return isinstance(narrow, (FloatType, *_WITHOUT_LOSS))
    return isinstance(narrow, DateType) and isinstance(wide, TimestampNTZType)


def wider(held: DataType, further: DataType) -> DataType:
    """Return the type that holds values of two types: all fields of both; else the first."""
    if isinstance(held, StructType) and isinstance(further, StructType):
        others = by_case(further)
        fields = [
            StructField(
                f.name, wider(f.dataType, others[f.name.lower()].dataType), True, f.metadata
            )
            if f.name.lower() in others
            else f
            for f in held
        ]
        there = by_case(held)
        new = [f for f in further if f.name.lower() not in there]
        return StructType([*fields, *[StructField(f.name, plain(f.dataType)) for f in new]])
    if isinstance(held, ArrayType) and isinstance(further, ArrayType):
        return ArrayType(wider(held.elementType, further.elementType))
    if isinstance(held, MapType) and isinstance(further, MapType):
        return MapType(
            wider(held.keyType, further.keyType), wider(held.valueType, further.valueType)
        )
    return further if widens(held, further) else held


def changed_leaves(
    held: DataType, wanted: DataType, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], DataType]]:
    """Return where two types differ in shared parts: paths, as SQL has them, and wanted types."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        there = by_case(wanted)
        parts: list[tuple[str, Any, Any]] = [
            (f.name, f.dataType, there[f.name.lower()].dataType)
            for f in held
            if f.name.lower() in there
        ]
    elif isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        parts = [("element", held.elementType, wanted.elementType)]
    elif isinstance(held, MapType) and isinstance(wanted, MapType):
        parts = [("key", held.keyType, wanted.keyType), ("value", held.valueType, wanted.valueType)]
    else:
        return [] if held == wanted else [(path, wanted)]
    return [
        leaf for name, one, other in parts for leaf in changed_leaves(one, other, (*path, name))
    ]


def with_leaves_of(wanted: DataType, held: DataType) -> DataType:
    """Return the wanted type, with the leaves that exist as they are."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        there = by_case(held)
        return StructType(
            [
                StructField(
                    f.name,
                    with_leaves_of(f.dataType, there[f.name.lower()].dataType)
                    if f.name.lower() in there
                    else f.dataType,
                )
                for f in wanted
            ]
        )
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(with_leaves_of(wanted.elementType, held.elementType))
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        return MapType(
            with_leaves_of(wanted.keyType, held.keyType),
            with_leaves_of(wanted.valueType, held.valueType),
        )
    return held
