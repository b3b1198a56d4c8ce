"""Texts of CHAR within arrays, maps and structs, as a table stores them."""

from __future__ import annotations

from functools import lru_cache

from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StringType, StructType

from deltaweave.changes.conversions import by_case


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


def has_char(limits: DataType | None) -> bool:
    """Return whether a type has CHAR at any depth."""
    if isinstance(limits, StructType):
        return any(has_char(field.dataType) for field in limits)
    if isinstance(limits, ArrayType):
        return has_char(limits.elementType)
    if isinstance(limits, MapType):
        return has_char(limits.keyType) or has_char(limits.valueType)
    return isinstance(limits, CharType)


def padded(text: Column, limits: CharType, otherwise: Column) -> Column:
    """Pad a text with blanks up to the length of its type; return another if it is longer."""
    fits = F.length(text) <= limits.length
    return F.when(fits, F.rpad(text, limits.length, " ")).otherwise(otherwise)


def with_padded_parts(value: Column, held: DataType, table: DataType, limits: DataType) -> Column:
    """Pad the texts of CHAR at every depth.

    Args:
        value: The value.
        held: Its type. Fields are found by their names.
        table: The type that the table has for it.
        limits: That type with its lengths. Names of fields are those with which it was created.
    """
    if isinstance(limits, CharType):
        return padded(value, limits, value) if isinstance(held, StringType) else value
    # A field may be of another type than when it was created: dropped, and added again.
    if not has_char(limits) or not type(held) is type(table) is type(limits):
        return value
    if isinstance(held, ArrayType) and isinstance(table, ArrayType):
        assert isinstance(limits, ArrayType)
        types = held.elementType, table.elementType, limits.elementType
        return F.transform(value, lambda item: with_padded_parts(item, *types))
    if isinstance(held, MapType) and isinstance(table, MapType):
        assert isinstance(limits, MapType)
        of_keys = held.keyType, table.keyType, limits.keyType
        of_values = held.valueType, table.valueType, limits.valueType
        keys = F.transform(F.map_keys(value), lambda key: with_padded_parts(key, *of_keys))
        values = F.transform(F.map_values(value), lambda of: with_padded_parts(of, *of_values))
        return F.map_from_arrays(keys, values)
    if isinstance(held, StructType) and isinstance(table, StructType):
        assert isinstance(limits, StructType)
        return _with_padded_fields(value, held, table, limits)
    return value


def _with_padded_fields(
    value: Column, held: StructType, table: StructType, limits: StructType
) -> Column:
    types = by_case(table)
    limits_of_fields = _limits_by_field(list(types), limits)
    fields = []
    for field in held:
        part, lower = value[field.name], field.name.lower()
        if lower in limits_of_fields:
            of_part = types[lower].dataType, limits_of_fields[lower]
            part = with_padded_parts(part, field.dataType, *of_part)
        fields.append(part.alias(field.name))
    return F.when(value.isNotNull(), F.struct(*fields))


def _limits_by_field(names: list[str], limits: StructType) -> dict[str, DataType]:
    """Map the names that fields have now to their types as they were when created.

    A field that was renamed is found by its position.
    """
    created = by_case(limits)
    found = {name: created[name].dataType for name in names if name in created}
    for name, (earlier, field) in zip(names, created.items(), strict=False):
        if name not in created and earlier not in names:
            found[name] = field.dataType
    return found
