"""Reads a landed source partition, or raises one clear error before anything is merged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dagster_deltaweave.landing.text_rows import TextFiles
from deltaweave.delta.jvm import translated
from deltaweave.delta.log import STRICTLY
from deltaweave.errors import DeltaweaveError, SourceError, StatementError
from deltaweave.identifiers import is_path
from deltaweave.locations import check_given_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SHOWN = 3  # rows that do not fit, in an error
_PATTERN = re.compile(r"[\\*?\[\]{},]")


def literal_path(path: str) -> str:
    """Escape `*` and the like in a path, which Spark would read as a pattern."""
    return _PATTERN.sub(r"\\\g<0>", path)


def read_source_partition(
    spark: SparkSession,
    path: str,
    *,
    schema: StructType | str,
    table: str,
    format: Literal["parquet", "csv", "json"] = "parquet",
    options: Mapping[str, object] | None = None,
    rescued: str | None = None,
) -> DataFrame:
    """Read the files of a source partition, each of which must have exactly this schema.

    A CSV file has a header, which names its columns in any order; with `{"header": False}`
    its columns are those of the schema in their order. JSON objects need not name each column, and
    must name no other; fields within a column are not looked at. A row of either that Spark cannot
    read as the schema's types is an error that names file, line and column, or is put aside: to
    find out, the files are read once more. Spark rounds decimals, and reads `2024` as a DATE.

    Args:
        spark: The session that reads.
        path: The partition: a directory, or a single file.
        schema: The columns and types it must have; their order and nullability do not matter.
        table: The table into which the partition is merged, for the error message.
        format: What the files are.
        options: Spark's options for CSV or JSON, such as `sep`, `dateFormat` or `multiLine`.
        rescued: Path or name of a Delta table that takes the rows of CSV and JSON which do not fit.
            It has the columns `source_digest`, `source_partition`, `rescued_at`, `file`, `record`
            (up to 100,000 characters), `columns` and, as JSON, what could be `read` of the row. A
            partition that is read again replaces its rows.

    Raises:
        SourceError: The partition is missing, empty, unreadable, or has another schema; or it has
            rows that do not fit and are not `rescued`.
        StatementError: A location is empty or holds credentials, or an option is not taken.
    """
    for location in (path, *([rescued] if rescued is not None else [])):
        check_given_location(location, operation="reading a source partition")
    expected = schema_as_struct(schema)
    if format == "parquet":
        if options or rescued:
            raise _not_taken("options and rescued are for CSV and JSON", table)
        return _read_parquet(spark, path, expected, table)
    settings = {name: str(value) for name, value in (options or {}).items()}
    files = TextFiles(spark, format, expected, settings)
    refused = files.refused_option()
    if refused is not None:
        raise _not_taken(f"the option {refused} is set by the function itself", table)
    return _read_text(files, path, table, rescued)


def _read_parquet(spark: SparkSession, path: str, expected: StructType, table: str) -> DataFrame:
    try:
        # Spark takes the schema from one of the files and fills columns that others lack with
        # nulls, so the schema of each file is read.
        with translated(table, otherwise=SourceError):
            reader = spark.read.options(**STRICTLY)
            rows = reader.schema(expected).parquet(literal_path(path))
            files = sorted(map(unquote, rows.inputFiles()))  # which Spark gives as URIs
            of_file = spark.read.options(**STRICTLY)
            schemas = {file: of_file.parquet(literal_path(file)).schema for file in files}
    except DeltaweaveError as error:
        raise _unreadable(path, table, error) from error
    _check_schemas(path, table, expected, schemas)
    return rows


def _read_text(files: TextFiles, path: str, table: str, rescued: str | None) -> DataFrame:
    try:
        with translated(table, otherwise=SourceError):
            found = files.spark.read.format("text").load(literal_path(path)).inputFiles()
            schemas = {
                literal_path(file): files.schema_of(literal_path(file))
                for file in sorted(map(unquote, found))
            }
    except DeltaweaveError as error:
        raise _unreadable(path, table, error) from error
    _check_schemas(path, table, files.schema, schemas)
    with translated(table, operation="reading a source partition", otherwise=SourceError):
        rows = files.rows(schemas)
        bad = files.bad_rows(rows)
        if rescued is not None:
            _put_aside(bad, path, rescued)
        elif shown := bad.limit(_SHOWN).collect():
            listed = [files.described(row.file, row.record, row.columns) for row in shown]
            raise _error(path, table, f"has rows that do not fit its schema: {'; '.join(listed)}.")
        return files.good_rows(rows, others_are_errors=rescued is None)


def _put_aside(bad: DataFrame, path: str, rescued: str) -> None:
    """Write the rows that do not fit, in place of those of the partition that are there."""
    # Partitioned, so that two source partitions can be read at once; a path may be too long for it.
    digest = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:16]
    rows = bad.select(
        F.lit(digest).alias("source_digest"),
        F.lit(path).alias("source_partition"),
        F.current_timestamp().alias("rescued_at"),
        "*",
    )
    writer = (
        rows.write.format("delta")
        .mode("overwrite")
        .partitionBy("source_digest")
        .option("replaceWhere", f"source_digest = '{digest}'")
    )
    if is_path(rescued):
        writer.save(rescued)
    else:
        writer.saveAsTable(rescued)


def _check_schemas(
    path: str, table: str, expected: StructType, schemas: Mapping[str, StructType]
) -> None:
    if not schemas:
        raise _error(path, table, "holds no file.")
    for file, found in schemas.items():
        differences = list(schema_differences(expected, found))
        if differences:
            name = file.rsplit("/", 1)[-1]
            raise _error(path, table, f"has a wrong schema in {name}: {'; '.join(differences)}.")


def schema_as_struct(schema: StructType | str) -> StructType:
    """Return a schema as a StructType, also if it is given as DDL."""
    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(struct, StructType)  # fromDDL is annotated with the wider DataType
    return struct


def schema_differences(expected: StructType, found: StructType) -> Iterator[str]:
    """Yield the differences of two schemas, a text a column; order and nullability may differ."""
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


def _not_taken(problem: str, table: str) -> StatementError:
    return StatementError(
        f"{problem}.",
        table=table,
        operation="reading a source partition",
        state="Nothing was read.",
        hint="Leave it out.",
    )


def _unreadable(path: str, table: str, error: DeltaweaveError) -> SourceError:
    return _error(path, table, f"cannot be read: {error.problem.strip().splitlines()[0]}")


def _error(path: str, table: str, problem: str) -> SourceError:
    return SourceError(
        f"the source partition {path} {problem}",
        table=table,
        hint="Land the partition again; its new delivery is then merged.",
    )
