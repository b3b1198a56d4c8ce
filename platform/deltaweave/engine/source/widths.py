"""Count the bytes of rows where Spark has them, so that no more come to the driver than it holds.

What files store, and what Spark estimates by it, says little: a text that repeats is stored once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from deltaweave.delta.jvm import collected
from deltaweave.delta.scan import limit_of_partitions
from deltaweave.engine import limits
from deltaweave.engine.columns import WIDTH
from deltaweave.engine.tasks import TooBigError
from deltaweave.identifiers import back_quoted, is_replaced

if TYPE_CHECKING:
    import pyarrow

_BYTES_OF_NUMBER = 8
_BYTES_OF_OTHERS = 16
_OF_FIXED_WIDTH = (
    NumericType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
    YearMonthIntervalType,
    NullType,
)
# Columns that repeat the width's expression. A column of its own takes six calls of the JVM more.
_MAX_REPEATED_WIDTHS = 16


def collected_within(query: DataFrame, max_rows: int, max_bytes: int) -> pyarrow.Table:
    """Collect a query's rows, unless they have more bytes than the driver may hold.

    Tasks leave out the values of rows that are wider than their share of what tasks may send
    (`limits.MAX_BYTES_SENT`), and send their widths. If the rows turn out to fit nevertheless, a
    second job collects them. Arrow sends as many bytes for a null number as for another: of rows
    with many numbers, a task sends no more than are known to be too big.

    Args:
        query: The query, which gives the same rows again.
        max_rows: The most rows that a task sends, as far as is known.
        max_bytes: The most bytes that the rows may have.

    Raises:
        TooBigError: They have more, or it is not known how many.
    """
    schema = query.schema
    narrowest = _least_width(schema)
    most = max_bytes // max(1, narrowest)
    may_be_cut = max_rows > most and max_rows * narrowest > limits.MAX_BYTES_SENT
    if may_be_cut:
        query, max_rows = limit_of_partitions(query, most + 1), most + 1
    table = _collected(query, schema, limits.MAX_BYTES_SENT // max(1, max_rows), max_bytes)
    if may_be_cut and table.num_rows > most:
        raise TooBigError(f"the rows have more than {max_bytes:,} bytes")
    return table


def _collected(query: DataFrame, schema: StructType, share: int, max_bytes: int) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if fixed_width(schema) is not None:
        return collected(query)
    if not can_be_measured(schema):
        raise TooBigError("SQL cannot count the bytes of the rows")
    width = width_of(schema)
    varies = [fixed_width(StructType([field])) is None for field in schema.fields]
    measured, of_row = query, f"({width})"
    if sum(varies) > _MAX_REPEATED_WIDTHS:
        measured, of_row = query.selectExpr("*", f"{width} AS {WIDTH}"), WIDTH
    columns = [
        f"CASE WHEN {of_row} <= {share} THEN {name} END AS {name}" if may_be_wide else name
        for name, may_be_wide in zip(map(back_quoted, schema.names), varies, strict=True)
    ]
    try:
        table = collected(measured.selectExpr(*columns, f"{of_row} AS {WIDTH}"))
    except pa.ArrowInvalid as error:  # Arrow takes no null for a struct whose fields are none
        raise TooBigError(f"rows may be too wide: {error}") from error
    widths = table[WIDTH]
    if (pc.sum(widths).as_py() or 0) > max_bytes:
        raise TooBigError(f"the rows have more than {max_bytes:,} bytes")
    if (pc.max(widths).as_py() or 0) > share:
        return collected(query)
    return table.drop_columns([WIDTH])


def width_of(schema: StructType) -> str:
    """Return SQL that counts the bytes of a row."""
    of_fields = [_width(back_quoted(field.name), field.dataType, 0) for field in schema.fields]
    fixed = sum(number for _, number in of_fields)
    return " + ".join([f"{fixed}L", *(text for text, _ in of_fields if text)])


def _least_width(schema: StructType) -> int:
    """Return the bytes that every row has at least."""
    return sum(_width("", field.dataType, 0)[1] for field in schema.fields)


def fixed_width(schema: StructType) -> int | None:
    """Return the bytes that every row has, or None if rows differ."""
    of_fields = [_width(back_quoted(field.name), field.dataType, 0) for field in schema.fields]
    return None if any(text for text, _ in of_fields) else sum(number for _, number in of_fields)


def can_be_measured(kind: DataType) -> bool:
    """Return whether SQL can count the bytes of a value.

    It cannot look into types of users and types that are not known here, nor name fields of a
    struct that share a name or hold `${…}`.
    """
    if isinstance(kind, StructType):
        names = {name.casefold() for name in kind.names if not is_replaced(name)}
        return len(names) == len(kind) and all(can_be_measured(f.dataType) for f in kind)
    if isinstance(kind, ArrayType):
        return can_be_measured(kind.elementType)
    if isinstance(kind, MapType):
        return can_be_measured(kind.keyType) and can_be_measured(kind.valueType)
    return isinstance(kind, (StringType, BinaryType, *_OF_FIXED_WIDTH)) or _is_variant(kind)


def _is_variant(kind: DataType) -> bool:
    return kind.typeName() == "variant"  # which Spark 3.5 does not have


def _width(value: str, kind: DataType, depth: int) -> tuple[str, int]:
    """Return SQL for the bytes of a value that vary, or nothing, and the number of the others."""
    if isinstance(kind, (StringType, BinaryType)):
        return f"coalesce(octet_length({value}), 0)", _BYTES_OF_NUMBER
    if isinstance(kind, StructType):
        fields = [_width(f"{value}.{back_quoted(f.name)}", f.dataType, depth) for f in kind.fields]
        return " + ".join(text for text, _ in fields if text), sum(number for _, number in fields)
    if isinstance(kind, ArrayType):
        return _width_of_items(value, kind.elementType, depth), _BYTES_OF_NUMBER
    if isinstance(kind, MapType):
        keys = _width_of_items(f"map_keys({value})", kind.keyType, depth)
        values = _width_of_items(f"map_values({value})", kind.valueType, depth)
        return f"{keys} + {values}", _BYTES_OF_NUMBER
    if _is_variant(kind):
        return f"coalesce(octet_length(CAST({value} AS STRING)), 0)", _BYTES_OF_OTHERS
    if not isinstance(kind, _OF_FIXED_WIDTH):
        return "NULL", 0  # see `can_be_measured`
    return "", _BYTES_OF_OTHERS if isinstance(kind, DecimalType) else _BYTES_OF_NUMBER


def _width_of_items(items: str, kind: DataType, depth: int) -> str:
    total, item = f"total{depth}", f"item{depth}"
    text, fixed = _width(item, kind, depth + 1)
    if not text:
        return f"coalesce(array_size({items}), 0) * {fixed}L"
    added = f"({total}, {item}) -> {total} + {fixed}L + {text}"
    return f"coalesce(aggregate({items}, 0L, {added}), 0L)"
