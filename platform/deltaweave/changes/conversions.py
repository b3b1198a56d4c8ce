"""Values in other forms, at every depth: as another type, as constants, and as hashes.

Converting to another type adds, leaves out, renames or widens fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
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
    IntegralType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from deltaweave.delta.jvm import json_text
from deltaweave.delta.log import is_collated
from deltaweave.identifiers import quoted

FROM = "deltaweave.from"
"""Metadata of a wanted field: the names that it may have among the existing fields."""

_DIGITS = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_OF_ZONES = (DateType, TimestampNTZType, StringType)  # an instant only in a time zone
_WITHOUT_LOSS = (ByteType, ShortType, IntegerType)

_SAME_KEYS = (
    "a map of an event that was stored before has keys that differ only in a field which was "
    "dropped from them since: RESTORE the table to before DROP COLUMN, and drop the field when the "
    "event is merged, or older than late_by."
)

_EPOCH_NTZ = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
_MICROSECOND = "INTERVAL '0.000001' SECOND"


def plain(data_type: DataType) -> DataType:
    """Return the type with nulls allowed at every depth, and without its fields' metadata."""
    return with_fields(data_type, lambda field: StructField(field.name, plain(field.dataType)))


def with_fields(data_type: DataType, change: Callable[[StructField], StructField]) -> DataType:
    """Apply a change to each outermost field of a type, also within arrays and maps."""
    if isinstance(data_type, StructType):
        return StructType([change(field) for field in data_type])
    if isinstance(data_type, ArrayType):
        return ArrayType(with_fields(data_type.elementType, change))
    if isinstance(data_type, MapType):
        key_type, value_type = data_type.keyType, data_type.valueType
        return MapType(with_fields(key_type, change), with_fields(value_type, change))
    return data_type


def nullable(data_type: DataType) -> DataType:
    """Return the type with nulls allowed at every depth.

    Types that require values are other types to Spark, and Delta has none within maps and arrays.
    So the values of a table and of its events have types without requirements before they meet.
    """
    return data_type._as_nullable()


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
    by_name = by_case(held)
    fields = []
    for field in wanted:
        found = [by_name[name.lower()] for name in names_of(field) if name.lower() in by_name]
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
        key_types, value_types = (held.keyType, wanted.keyType), (held.valueType, wanted.valueType)
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.struct(
                converted(entry["key"], *key_types).alias("key"),
                converted(entry["value"], *value_types),
            ),
        )
        return F.map_from_entries(entries) if is_as(*key_types) else once(entries, _map_of)
    return value.cast(wanted) if widens(held, wanted) else value


def _map_of(entries: Column) -> Column:
    """Build a map; evaluating one whose keys a dropped field told apart is an error."""
    keys = F.transform(entries, lambda entry: entry["key"])
    are_distinct = F.size(F.array_distinct(keys)) == F.size(keys)
    problem = F.raise_error(F.lit(_SAME_KEYS))
    return F.when(entries.isNull() | are_distinct, F.map_from_entries(entries)).otherwise(problem)


def exact(value: Column, held: DataType, wanted: DataType, problem: tuple[str, str]) -> Column:
    """Cast a value to another type; evaluating one that this changes is an error.

    So is any value whose cast depends on the session's time zone.

    Args:
        value: The value.
        held: Its type.
        wanted: The other type.
        problem: What the error says before the value, and after it.
    """
    if plain(held) == plain(wanted):
        return value
    found = value.try_cast(plain(wanted))
    is_same, ending = found.cast(plain(held)).eqNullSafe(value), problem[1]
    if depends_on_zone(held, wanted):
        is_same, ending = value.isNull(), f"{ending}, in every time zone"
    message = F.concat(F.lit(problem[0]), value.cast("string"), F.lit(ending))
    return F.when(is_same, found).otherwise(F.raise_error(message))


def depends_on_zone(held: DataType, wanted: DataType) -> bool:
    """Return whether a cast reads the session's time zone, at any depth; fields by position."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        return any(
            depends_on_zone(a.dataType, b.dataType) for a, b in zip(held, wanted, strict=False)
        )
    if isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        return depends_on_zone(held.elementType, wanted.elementType)
    if isinstance(held, MapType) and isinstance(wanted, MapType):
        keys_depend = depends_on_zone(held.keyType, wanted.keyType)
        return keys_depend or depends_on_zone(held.valueType, wanted.valueType)
    pairs = [(held, wanted), (wanted, held)]
    return any(isinstance(a, TimestampType) and isinstance(b, _OF_ZONES) for a, b in pairs)


def once(value: Column, function: Callable[[Column], Column]) -> Column:
    """Apply a function that reads its argument several times.

    The plan has the argument once. Otherwise, nesting such functions would make it grow
    exponentially.
    """
    return F.get(F.transform(F.array(value), function), F.lit(0))


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
    return plain(held) == plain(wanted) and not holds_type(wanted, _renames)


def has_fields_of(data_type: DataType, other: DataType) -> bool:
    """Return whether a type has all fields of another one, at every depth."""
    if isinstance(data_type, StructType) and isinstance(other, StructType):
        by_name = by_case(data_type)
        return all(
            f.name.lower() in by_name
            and has_fields_of(by_name[f.name.lower()].dataType, f.dataType)
            for f in other
        )
    if isinstance(data_type, ArrayType) and isinstance(other, ArrayType):
        return has_fields_of(data_type.elementType, other.elementType)
    if isinstance(data_type, MapType) and isinstance(other, MapType):
        keys_have = has_fields_of(data_type.keyType, other.keyType)
        return keys_have and has_fields_of(data_type.valueType, other.valueType)
    return True


def holds_type(data_type: DataType, is_one: Callable[[DataType], bool]) -> bool:
    """Return whether a test is true of a type, or of a part of it at any depth."""
    parts: list[DataType] = []
    if isinstance(data_type, StructType):
        parts = [field.dataType for field in data_type]
    elif isinstance(data_type, ArrayType):
        parts = [data_type.elementType]
    elif isinstance(data_type, MapType):
        parts = [data_type.keyType, data_type.valueType]
    return is_one(data_type) or any(holds_type(part, is_one) for part in parts)


def _renames(data_type: DataType) -> bool:
    """Return whether a struct's own fields are found by other names first."""
    fields = data_type if isinstance(data_type, StructType) else ()
    return any(names_of(field)[0] != field.name for field in fields)


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
        by_name = by_case(held)
        new = [f for f in further if f.name.lower() not in by_name]
        return StructType([*fields, *[StructField(f.name, plain(f.dataType)) for f in new]])
    if isinstance(held, ArrayType) and isinstance(further, ArrayType):
        return ArrayType(wider(held.elementType, further.elementType))
    if isinstance(held, MapType) and isinstance(further, MapType):
        return MapType(
            wider(held.keyType, further.keyType), wider(held.valueType, further.valueType)
        )
    return further if widens(held, further) else held


@dataclass(frozen=True)
class ChangedField:
    """A part of a column without parts of its own.

    Attributes:
        path: The names down to it, as SQL has them.
    """

    path: tuple[str, ...]
    data_type: DataType


def changed_fields(
    held: DataType, wanted: DataType, path: tuple[str, ...] = ()
) -> list[ChangedField]:
    """Return where two types differ in shared parts, with the wanted types."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        by_name = by_case(wanted)
        parts: list[tuple[str, Any, Any]] = [
            (f.name, f.dataType, by_name[f.name.lower()].dataType)
            for f in held
            if f.name.lower() in by_name
        ]
    elif isinstance(held, ArrayType) and isinstance(wanted, ArrayType):
        parts = [("element", held.elementType, wanted.elementType)]
    elif isinstance(held, MapType) and isinstance(wanted, MapType):
        parts = [("key", held.keyType, wanted.keyType), ("value", held.valueType, wanted.valueType)]
    else:
        return [] if held == wanted else [ChangedField(path, wanted)]
    return [
        leaf for name, one, other in parts for leaf in changed_fields(one, other, (*path, name))
    ]


def conflicts(held: DataType, wanted: DataType) -> list[tuple[ChangedField, ChangedField]]:
    """Return shared parts of two types, as each has them, if neither holds the other's values."""
    one, other = wider(held, wanted), wider(wanted, held)
    others = {_lower(leaf.path): leaf for leaf in changed_fields(one, other)}
    pairs = [(leaf, others[_lower(leaf.path)]) for leaf in changed_fields(other, one)]
    return [(a, b) for a, b in pairs if not _are_texts(a.data_type, b.data_type)]


def _lower(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in path)


def _are_texts(*types: DataType) -> bool:
    return all(isinstance(each, StringType) for each in types)


def with_leaves_of(wanted: DataType, held: DataType) -> DataType:
    """Return the wanted type, with the leaves that exist as they are."""
    if isinstance(held, StructType) and isinstance(wanted, StructType):
        by_name = by_case(held)
        return StructType(
            [
                StructField(
                    f.name,
                    with_leaves_of(f.dataType, by_name[f.name.lower()].dataType)
                    if f.name.lower() in by_name
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


def collectable(value: Column, data_type: DataType) -> Column:
    """Convert a value to a form that can be collected without loss; `as_constant` reverses it.

    Python collects times in its local zone, where one hour in autumn occurs twice, and has no dates
    after the year 9999. So times and dates are collected as numbers.
    """
    if isinstance(data_type, StructType):
        fields = [
            collectable(value[each.name], each.dataType).alias(each.name) for each in data_type
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(data_type, TimestampType):
        return F.unix_micros(value)
    if isinstance(data_type, TimestampNTZType):
        return value - F.expr(_EPOCH_NTZ)
    return F.unix_date(value) if isinstance(data_type, DateType) else value


def as_constant(collected: Any, data_type: DataType) -> Column | None:
    """Convert a collected `collectable` value to a constant of its type; None for null."""
    if collected is None:
        return None
    if isinstance(data_type, StructType):
        fields = []
        for part, field in zip(collected, data_type, strict=True):
            value = as_constant(part, field.dataType)
            missing = F.lit(None).cast(field.dataType)
            fields.append((missing if value is None else value).alias(field.name))
        return F.struct(*fields)
    if isinstance(data_type, TimestampType):
        return F.timestamp_micros(F.lit(collected))
    if isinstance(data_type, TimestampNTZType):
        micros = collected // timedelta(microseconds=1)
        return F.expr(_EPOCH_NTZ) + F.expr(_MICROSECOND) * F.lit(micros)
    if isinstance(data_type, DateType):
        return F.date_from_unix_date(F.lit(collected))
    return F.lit(collected).cast(data_type)


def hashed(value: Column, data_type: DataType, name: str) -> list[Column]:
    """Return the arguments for `xxhash64`, so that different values have different hashes.

    `xxhash64` skips nulls, also in structs and arrays, and flattens arrays of arrays. So each value
    comes with a name, and values in arrays and maps are hashed one by one.
    """
    is_there = F.when(value.isNotNull(), F.lit(name))
    if isinstance(data_type, StructType):
        parts = [is_there]
        for field in data_type:
            parts += hashed(value[field.name], field.dataType, f"{name}.{quoted(field.name)}")
        return parts
    if isinstance(data_type, ArrayType):
        item_type = data_type.elementType
        return [is_there, F.transform(value, lambda item: F.xxhash64(*hashed(item, item_type, "")))]
    if isinstance(data_type, MapType):
        key_type, value_type = data_type.keyType, data_type.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.xxhash64(
                *hashed(entry["key"], key_type, "key"), *hashed(entry["value"], value_type, "value")
            ),
        )
        return [
            is_there,
            F.array_sort(entries),
        ]  # maps with the same entries in another order are equal
    if isinstance(data_type, VariantType):
        return [is_there, json_text(value)]
    if isinstance(data_type, (FloatType, DoubleType)):
        return [is_there, value.cast("string")]  # 0.0 and -0.0 have the same hash
    if isinstance(data_type, IntegralType):
        return [is_there, value.cast("bigint")]  # widening the column does not change it
    if is_collated(data_type):
        return [is_there, value.cast("binary")]
    return [is_there, value]


def _is_compared_by_hash(data_type: DataType) -> bool:
    """Return whether values of a type, without its parts, may be equal for `=` and yet differ."""
    kinds = (MapType, VariantType, FloatType, DoubleType)
    return isinstance(data_type, kinds) or is_collated(data_type)


def comparable_field(rows: DataFrame, struct: str, name: str) -> Column:
    """Return a field of a struct of `rows` in a form that `=` compares exactly.

    Maps, variants, numbers with 0.0 and -0.0, which are equal, and texts with a collation are
    compared by their hashes.
    """
    fields = rows.schema[struct].dataType
    assert isinstance(fields, StructType)
    value, data_type = F.col(struct)[name], fields[name].dataType
    if holds_type(data_type, _is_compared_by_hash):
        return F.xxhash64(*hashed(value, data_type, name))
    return value
