"""The command `apply-changes`: applies change events to a table, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from deltaweave._terminal import FAILED, MISUSED, fail
from deltaweave._validation import refuse_credentials
from deltaweave.cli.malformed_records import malformed_column
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    TableName,
    Verbose,
    as_path_if_there,
    print_result,
    working,
)
from deltaweave.errors import DeltaweaveError, SourceError, TableNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's error classes of a record that FAILFAST refuses, in CSV and in JSON.
_MALFORMED = ("MALFORMED_RECORD", "CANNOT_PARSE_JSON_FIELD")


def apply_changes(
    table: TableName,
    source: Annotated[
        str,
        typer.Argument(
            help="The events: files by their path (with a slash, or here), or a table by its name.",
            callback=as_path_if_there,
        ),
    ],
    key: Annotated[
        list[str],
        typer.Option(help="A column that identifies a row; repeatable.", metavar="COLUMN"),
    ],
    sequence_by: Annotated[
        str, typer.Option(help="SQL that orders the events of a key.", metavar="SQL")
    ],
    deletes: Annotated[
        str | None,
        typer.Option(
            help="SQL condition of events that delete.", show_default=False, metavar="SQL"
        ),
    ] = None,
    truncates: Annotated[
        str | None,
        typer.Option(
            help="SQL condition of events that empty the table.", show_default=False, metavar="SQL"
        ),
    ] = None,
    column: Annotated[
        list[str],
        typer.Option(
            help="Keep this event column in the table; repeatable; by default all.",
            metavar="COLUMN",
        ),
    ] = [],  # noqa: B006  # typer reads it and hands on a list of its own
    except_column: Annotated[
        list[str],
        typer.Option(
            help="Exclude this event column from the table; repeatable.", metavar="COLUMN"
        ),
    ] = [],  # noqa: B006  # as above
    present_columns: Annotated[
        str | None,
        typer.Option(
            help="Column with the names that an event sets.", show_default=False, metavar="COLUMN"
        ),
    ] = None,
    ignore_null_updates: Annotated[
        bool,
        typer.Option("--ignore-null-updates", help="Nulls leave columns as they are.", metavar=""),
    ] = False,
    rescued: Annotated[
        str | None,
        typer.Option(
            help="Path or name of a table that takes events which cannot be applied.",
            show_default=False,
            metavar="TABLE",
        ),
    ] = None,
    scd_type: Annotated[
        int, typer.Option(help="1 for current rows, 2 for histories.", min=1, max=2)
    ] = 1,
    late_by_days: Annotated[
        float, typer.Option(help="For how many days deletes are remembered.", min=0)
    ] = 7,
    format: Annotated[str, typer.Option(help="Format of the files.", metavar="FORMAT")] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(help="DDL of the files' columns.", show_default=False, metavar="DDL"),
    ] = None,
    option: Annotated[
        list[str],
        typer.Option(help="An option of Spark's reader; repeatable.", metavar="KEY=VALUE"),
    ] = [],  # noqa: B006  # as above
    conf: Conf = [],  # noqa: B006  # as above
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Apply change events to a table: the newest of each key wins, in whatever order they come.

    A path at which there is no table gets one. Run again with the same events, it changes nothing.
    """
    import deltaweave

    options = _reader_options(option)
    try:
        for location in (source, *options.values()):  # before Spark starts
            refuse_credentials(location, operation="reading the events")
    except DeltaweaveError as error:
        fail(str(error), FAILED)
    with (
        working("Applying changes", conf, catalog, verbose=verbose) as spark,
        _naming_column(spark, source, format, schema, options),
    ):
        _check_place(spark, table)
        result = deltaweave.apply_changes(
            spark,
            table,
            _events(spark, source, format, schema, options, table),
            keys=key,
            sequence_by=sequence_by,
            apply_as_deletes=deletes,
            apply_as_truncates=truncates,
            column_list=column or None,
            except_column_list=except_column or None,
            present_columns=present_columns,
            ignore_null_updates=ignore_null_updates,
            rescued=rescued or False,
            stored_as_scd_type=2 if scd_type == 2 else 1,
            late_by=timedelta(days=late_by_days),
        )
    print_result(result, json=json)


@contextmanager
def _naming_column(
    spark: SparkSession, source: str, format: str, schema: str | None, options: dict[str, str]
) -> Iterator[None]:
    """Name the column in the error that a value is not of its declared type."""
    try:
        yield
    except DeltaweaveError as error:
        if schema is None or not (error.error_class or "").startswith(_MALFORMED):
            raise
        found = None
        with suppress(Exception):  # the error that is reported must not be hidden
            found = malformed_column(spark, source, format.lower(), schema, options)
        hint = "Correct the record or --schema. --option mode=PERMISSIVE reads such values as null."
        error.restate(hint=f"{found}\n{hint}" if found else hint)
        raise


def _check_place(spark: SparkSession, table: str) -> None:
    """Refuse a name without a table: its data would be in this command's temporary directory.

    Raises:
        TableNotFoundError: There is no table of that name.
    """
    from deltaweave import Table

    if "/" not in table and not Table(spark, table).exists():
        raise TableNotFoundError(
            "there is no table of that name, and apply-changes creates tables at paths alone.",
            table=table,
            operation="applying changes",
            state="Nothing was written.",
            hint=f"Give a path (with a slash, as ./{table}), or create the table first.",
        )


def _reader_options(given: list[str]) -> dict[str, str]:
    from deltaweave._session import secret_keys

    options = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            fail(f"--option {each}: give it as key=value.", MISUSED)
        options[name] = value
    secret = secret_keys(options)
    if secret:
        fail(
            f"--option {secret[0]}: other users of this machine can read the command line.", MISUSED
        )
    return options


def _events(
    spark: SparkSession,
    source: str,
    format: str,
    schema: str | None,
    options: dict[str, str],
    table: str,
) -> DataFrame:
    """Read the events from a table of this name, a table at this path, or other files."""
    from deltaweave import Table
    from deltaweave.delta.jvm import translated

    with translated(table, operation="reading the events", otherwise=SourceError):
        if "/" not in source:
            return spark.table(source)
        # Its directory also has files with rows that are no longer in the table.
        if format in ("parquet", "delta") and not options and Table(spark, source).exists():
            return Table(spark, source).read()
        reader = spark.read.format(format).options(**_strict(options, format, schema))
        return (reader.schema(schema) if schema is not None else reader).load(source)


def _strict(options: dict[str, str], format: str, schema: str | None) -> dict[str, str]:
    """Return the reader's options, which let it fail where a value is not of its declared type.

    By default, Spark reads such a value as null: it would be lost, and a key that is null is
    refused for another reason than the one that the user has to know.
    """
    is_text = format.lower() in ("csv", "json") and schema is not None
    if not is_text or any(name.lower() == "mode" for name in options):
        return options
    return {**options, "mode": "FAILFAST"}
