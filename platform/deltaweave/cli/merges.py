"""The commands that write: `merge`, `apply-changes`, `maintain`; `explain`, a merge's plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave._validation import refuse_credentials
from deltaweave.cli.inspection import table_on_disk
from deltaweave.cli.options import (
    FAILED,
    MISUSED,
    Catalog,
    Conf,
    Json,
    TableName,
    Verbose,
    as_path_if_exists,
    fail,
    print_json,
    print_result,
    reading_disk,
    working,
)
from deltaweave.errors import NOTHING_WRITTEN, DeltaweaveError, SourceError, TableNotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaweave.maintenance import Done


# Spark's error classes of a record that FAILFAST refuses, in CSV and in JSON.
_MALFORMED = ("MALFORMED_RECORD", "CANNOT_PARSE_JSON_FIELD")

_RECORD = "__deltaweave_record"
_RECORD_TEXTS = "__deltaweave_texts"
_SHOWN_CHARACTERS = 200  # characters of a value or record

Statement = Annotated[
    str | None, typer.Argument(help="A MERGE statement, or - to read one.", show_default=False)
]
File = Annotated[Path | None, typer.Option("--file", help="A file that holds the statement.")]


def run_merge(
    statement: Statement = None,
    file: File = None,
    builtin: Annotated[
        bool,
        typer.Option(
            "--fallback-builtin",
            help="Let Delta's own MERGE run where the table has a feature that is refused.",
            metavar="",
        ),
    ] = False,
    conf: Conf = [],  # noqa: B006  # typer reads it and hands on a list of its own
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a MERGE statement, and print what it did."""
    import deltaweave

    text = _statement_text(statement, file)
    with working("Merging", conf, catalog, verbose=verbose) as spark:
        result = deltaweave.merge(spark, text, fallback="builtin" if builtin else None)
    print_result(result, json=json)


def explain_merge(
    statement: Statement = None,
    file: File = None,
    conf: Conf = [],  # noqa: B006  # as above
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print what a MERGE would do to its target now, and what would help. It writes nothing."""
    import deltaweave

    text = _statement_text(statement, file)
    with working("Planning", conf, catalog, verbose=verbose) as spark:
        plan = deltaweave.explain(spark, text)
    if json:
        print_json(asdict(plan))
    else:
        print(plan)


def _statement_text(statement: str | None, file: Path | None) -> str:
    if (statement is None) == (file is None):
        fail("Give a statement, - to read one from the standard input, or --file.", MISUSED)
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            fail(f"{file} cannot be read: {reason}.", MISUSED)
    else:
        text = sys.stdin.read() if statement == "-" else str(statement)
    try:
        refuse_credentials(text)  # before Spark starts
    except DeltaweaveError as error:
        fail(str(error), FAILED)
    # A file's statement may end as a SQL script's does.
    return text.strip().removesuffix(";")


def apply_changes_command(  # noqa: PLR0913 - options of the command
    table: TableName,
    source: Annotated[
        str,
        typer.Argument(
            help="The events: files by their path (with a slash, or here), or a table by its name.",
            callback=as_path_if_exists,
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
        _check_target(spark, table)
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


def _check_target(spark: SparkSession, table: str) -> None:
    """Refuse a name without a table: its data would be in this command's temporary directory."""
    from deltaweave import Table

    if "/" not in table and not Table(spark, table).exists():
        raise TableNotFoundError(
            "there is no table of that name, and apply-changes creates tables at paths alone.",
            table=table,
            operation="applying changes",
            state=NOTHING_WRITTEN,
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


def malformed_column(
    spark: SparkSession, source: str, format: str, schema: str, options: Mapping[str, str]
) -> str | None:
    """Return which column of the first malformed record cannot be read, in words, or None.

    Spark names the record alone. So it is read twice: leniently, with nulls for such values, and
    with all of its columns as text.
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
    record_texts = parse(F.col(_RECORD), texts, {**options, "mode": "PERMISSIVE"})
    row = rows.where(F.col(_RECORD).isNotNull()).withColumn(_RECORD_TEXTS, record_texts).first()
    if row is None or row[_RECORD_TEXTS] is None:
        return None
    for field in declared:
        text = row[_RECORD_TEXTS][field.name]
        if row[field.name] is None and text is not None:
            return (
                f"Column {field.name} is declared as {field.dataType.simpleString().upper()}, "
                f"and {_cut(text)!r} cannot be read as one. The record is {_cut(row[_RECORD])}"
            )
    return None


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def maintain(
    table: TableName,
    only: Annotated[
        list[str],
        typer.Option(
            help="An operation: optimize, purge, floating_bounds, statistics, index_keys or "
            "vacuum; repeatable; by default all of them.",
            metavar="OPERATION",
        ),
    ] = [],  # noqa: B006  # typer reads it and hands on a list of its own
    conf: Conf = [],  # noqa: B006  # as above
    catalog: Catalog = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compact, purge, index and vacuum a table, each only if the table's log says it needs it.

    What was done before an error is printed, too.
    """
    from deltaweave import Table
    from deltaweave.engine.report import notify
    from deltaweave.maintenance import OPERATIONS, UpkeepPolicy

    for name in only:
        if name not in OPERATIONS:
            fail(f"--only {name}: there are {', '.join(OPERATIONS)}.", MISUSED)
    with reading_disk(table):
        table_on_disk(table, conf, catalog)  # an error if there is no table, before Spark starts
    done: dict[str, Done] = {}
    try:
        with working("Opening the table", conf, catalog, verbose=verbose) as spark:
            for name in only or OPERATIONS:
                notify(name.replace("_", " "))
                done[name] = OPERATIONS[name](Table(spark, table), UpkeepPolicy())
    finally:
        if done:
            _show(done, json=json)


def _show(done: dict[str, Done], *, json: bool) -> None:
    if json:
        print_json(
            {name: {"description": each.description, **each.numbers} for name, each in done.items()}
        )
        return
    shown = Shown("operation", "what was done", box=SIMPLE_HEAD, padding=0)
    for name, each in done.items():
        shown.add_row(name, each.description)
    Console(highlight=False).print(shown)
