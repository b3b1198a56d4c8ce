"""Collects rows as Arrow tables, of the same types in all sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame


def collected(rows: DataFrame) -> pyarrow.Table:
    """Collect rows as Arrow, whose texts and bytes have offsets of 32 bits.

    PySpark gives them 64 where `spark.sql.execution.arrow.useLargeVarTypes` is on, and Arrow
    compares no such text with one of 32. That setting is also for the functions of users, so it
    stays on for the query.
    """
    import pyarrow as pa

    table = rows.toArrow()
    fields = [field.with_type(_with_small_offsets(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _with_small_offsets(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow as pa
    from pyarrow import types

    def small(field: pyarrow.Field) -> pyarrow.Field:
        return field.with_type(_with_small_offsets(field.type))

    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([small(kind.field(place)) for place in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(small(kind.key_field), small(kind.item_field))
    return pa.list_(small(kind.value_field)) if types.is_list(kind) else kind
