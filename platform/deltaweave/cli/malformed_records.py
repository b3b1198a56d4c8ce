"""Which column of a record in CSV or JSON cannot be read as its declared type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECORD = "__deltaweave_record"
_TEXTS = "__deltaweave_texts"
_SHOWN = 200  # characters of a value or record


def malformed_column(
    spark: SparkSession, source: str, format: str, schema: str, options: Mapping[str, str]
) -> str | None:
    """Return which column of the first malformed record cannot be read, in words, or None.

    Spark names the record alone. So it is read twice: leniently, with nulls for such values, and
    with all of its columns as text.

    Args:
        spark: The session.
        source: Where the files are.
        format: `csv` or `json`.
        schema: DDL of their columns.
        options: Options of Spark's reader.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    from deltaweave.identifiers import quoted

    declared = spark.read.format(format).schema(schema).load(source).schema
    lenient = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RECORD}
    reader = spark.read.format(format).options(**lenient)
    rows = reader.schema(StructType([*declared]).add(_RECORD, StringType())).load(source)
    texts = ", ".join(f"{quoted(field.name)} STRING" for field in declared)
    parse = F.from_csv if format == "csv" else F.from_json
    of_texts = parse(F.col(_RECORD), texts, {**options, "mode": "PERMISSIVE"})
    row = rows.where(F.col(_RECORD).isNotNull()).withColumn(_TEXTS, of_texts).first()
    if row is None or row[_TEXTS] is None:
        return None
    for field in declared:
        text = row[_TEXTS][field.name]
        if row[field.name] is None and text is not None:
            return (
                f"Column {field.name} is declared as {field.dataType.simpleString().upper()}, "
                f"and {_cut(text)!r} cannot be read as one. The record is {_cut(row[_RECORD])}"
            )
    return None


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
