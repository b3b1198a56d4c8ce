"""Reads a landed source partition, or raises one clear error before anything is merged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql.types import StructType

from deltaweave.delta.jvm import translated
from deltaweave.errors import DeltaweaveError, SourceError
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PATTERN = re.compile(r"[\\*?\[\]{},]")


def literal_path(path: str) -> str:
    """The path with `*` and the like escaped: Spark would read it as a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def read_source_partition(
    spark: SparkSession, path: str, *, schema: StructType | str, table: str
) -> DataFrame:
    """The Parquet files of a source partition, each of which must have exactly this schema.

    Args:
        spark: The session that reads.
        path: Directory of the partition.
        schema: The columns and types it must have; their order and nullability do not matter.
        table: The table into which the partition is merged, for the error message.

    Raises:
        SourceError: The partition is missing, empty, unreadable, or has another schema.
        StatementError: The path is a URI that holds credentials.
    """
    refuse_credentials(path, operation="reading a source partition")
    expected = schema_as_struct(schema)
    try:
        # Spark takes the schema from one of the files and fills columns that others lack with
        # nulls, so the schema of each file is read.
        with translated(table, otherwise=SourceError):
            rows = spark.read.schema(expected).parquet(literal_path(path))
            files = sorted(map(unquote, rows.inputFiles()))  # which Spark gives as URIs
            schemas = {file: spark.read.parquet(literal_path(file)).schema for file in files}
    except DeltaweaveError as error:
        raise _error(
            path, table, f"cannot be read: {error.problem.strip().splitlines()[0]}"
        ) from error
    if not files:
        raise _error(path, table, "holds no Parquet file.")
    for file, found in schemas.items():
        differences = list(schema_differences(expected, found))
        if differences:
            name = file.rsplit("/", 1)[-1]
            raise _error(path, table, f"has a wrong schema in {name}: {'; '.join(differences)}.")
    return rows


def schema_as_struct(schema: StructType | str) -> StructType:
    """A schema that is given as a StructType or as DDL."""
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(struct, StructType)  # fromDDL is annotated with the wider DataType
    return struct


def schema_differences(expected: StructType, found: StructType) -> Iterator[str]:
    """The differences of a schema, a text for each column; order and nullability may differ."""
    types = {field.name: field.dataType.simpleString() for field in found}
    for field in expected:
        type_name = field.dataType.simpleString()
        if field.name not in types:
            yield f"column {field.name} {type_name} is missing"
        elif types[field.name] != type_name:
            yield f"column {field.name} is {types[field.name]}, not {type_name}"
    for name in types:
        if name not in expected.names:
            yield f"column {name} {types[name]} is unexpected"


def _error(path: str, table: str, problem: str) -> SourceError:
    return SourceError(
        f"the source partition {path} {problem}",
        table=table,
        hint="Land the partition again; its new delivery is then merged.",
    )
