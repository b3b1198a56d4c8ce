"""PySpark's Arrow types: since 4.2 it takes the zone of timestamps, before it took UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType


def arrow_type(spark: SparkSession, data_type: DataType) -> pyarrow.DataType:
    """Return the Arrow type in which PySpark keeps values of a type; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    in_utc: dict[str, Any] = {"timezone": "UTC"} if jvm_.spark_line(spark) >= (4, 2) else {}
    return to_arrow_type(data_type, **in_utc)
