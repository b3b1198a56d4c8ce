"""Rows of the old target schema as rows of the evolved one: new columns and fields are null.

Evolution matches struct fields by name, at any depth, also inside arrays and maps, and widens types
where Delta's analysis allowed it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from deltaweave.delta.statement import ResolvedClause, ResolvedMerge, assignments


def columns_before(merge: ResolvedMerge) -> list[Column]:
    """Return the target's columns in the evolved schema, before any clause changes them."""
    return evolved_columns(
        merge.target_columns,
        merge.target_schema,
        merge.evolved_schema,
        case_sensitive=merge.is_case_sensitive,
    )


def changes_nothing(merge: ResolvedMerge, clause: ResolvedClause) -> Column:
    """Return whether an update leaves a row's values, null-safe; false if that is not known.

    It is not known for maps and variants, which cannot be compared, and for random values, which
    must not be computed twice.
    """
    same: Column = F.lit(True)
    columns = zip(
        merge.evolved_schema, columns_before(merge), assignments(merge, clause), strict=True
    )
    for field, before, assigned in columns:
        if assigned.is_column_itself:
            continue
        if not _comparable(field.dataType) or not assigned.is_deterministic:
            return F.lit(False)
        same = same & assigned.value.eqNullSafe(before)
    return same


def _comparable(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return all(_comparable(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _comparable(data_type.elementType)
    return not isinstance(data_type, MapType | VariantType)


def evolved_columns(
    columns: Sequence[Column], old: StructType, new: StructType, *, case_sensitive: bool
) -> list[Column]:
    """Return one Column per field of `new`, computed from the columns of `old`.

    Args:
        columns: The target's columns, in the order of `old`.
        old: Their schema.
        new: The evolved schema: `old` with columns, nested fields or wider types added.
        case_sensitive: Whether names differing in case are different (`spark.sql.caseSensitive`).
    """
    known = {_key(field.name, case_sensitive): i for i, field in enumerate(old.fields)}
    evolved = []
    for field in new.fields:
        place = known.get(_key(field.name, case_sensitive))
        if place is None:
            evolved.append(F.lit(None).cast(field.dataType))
        else:
            was = old.fields[place].dataType
            evolved.append(_evolve(columns[place], was, field.dataType, case_sensitive))
    return evolved


def _evolve(value: Column, old: DataType, new: DataType, case_sensitive: bool) -> Column:
    if _same(old, new):
        return value
    if isinstance(old, StructType) and isinstance(new, StructType):
        fields = [
            _evolved_field(value, field, old, case_sensitive).alias(field.name)
            for field in new.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        was, becomes = old.elementType, new.elementType
        return F.transform(value, lambda item: _evolve(item, was, becomes, case_sensitive))
    if isinstance(old, MapType) and isinstance(new, MapType):
        old_map, new_map = old, new
        with_keys = F.transform_keys(
            value, lambda k, _: _evolve(k, old_map.keyType, new_map.keyType, case_sensitive)
        )
        return F.transform_values(
            with_keys,
            lambda _, v: _evolve(v, old_map.valueType, new_map.valueType, case_sensitive),
        )
    return value.cast(new)


def _evolved_field(
    struct: Column, field: StructField, old: StructType, case_sensitive: bool
) -> Column:
    wanted = _key(field.name, case_sensitive)
    for known in old.fields:
        if _key(known.name, case_sensitive) == wanted:
            return _evolve(
                struct.getField(known.name), known.dataType, field.dataType, case_sensitive
            )
    return F.lit(None).cast(field.dataType)


def _key(name: str, case_sensitive: bool) -> str:
    return name if case_sensitive else name.lower()


def _same(old: DataType, new: DataType) -> bool:
    """Return whether types are equal except for nullability and metadata, which no cast changes."""
    return old.simpleString() == new.simpleString()
