"""Values of a table's types, from the text that JSON has for them."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

TimeUnit = Literal["micros", "millis"]


def from_text(text: Column, data_type: DataType, time_unit: TimeUnit) -> Column:
    """Return a value of the type, from its JSON text."""
    if isinstance(data_type, StringType):
        return text
    if isinstance(data_type, BinaryType):
        return F.unbase64(text)
    is_number = text.rlike(r"^-?\d+$")
    number = F.when(is_number, text).cast("bigint")
    if isinstance(data_type, DateType):
        days = F.date_from_unix_date(number.cast("int"))
        return F.when(is_number, days).otherwise(F.when(~is_number, text).cast("date"))
    if isinstance(data_type, (TimestampType, TimestampNTZType)):
        since = F.timestamp_micros(number) if time_unit == "micros" else F.timestamp_millis(number)
        if isinstance(data_type, TimestampNTZType):
            # A time without a zone is no instant: converting it by one would shift it by the
            # session's zone.
            unit = "0.000001" if time_unit == "micros" else "0.001"
            epoch = F.expr("TIMESTAMP_NTZ '1970-01-01 00:00:00'")
            since = epoch + F.expr(f"INTERVAL '{unit}' SECOND") * number
        return F.when(is_number, since).otherwise(F.when(~is_number, text).cast(data_type))
    if isinstance(data_type, VariantType):
        return F.parse_json(text)
    if isinstance(data_type, (StructType, ArrayType, MapType)):
        return F.from_json(text, data_type, {"mode": "FAILFAST"})  # type: ignore[arg-type]
    return text.cast(data_type)
