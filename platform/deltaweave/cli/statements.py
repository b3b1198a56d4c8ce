"""The commands `merge`, which runs a MERGE statement, and `explain`, which plans it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deltaweave._terminal import FAILED, MISUSED, fail
from deltaweave._validation import refuse_credentials
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    Verbose,
    print_json,
    print_result,
    working,
)
from deltaweave.errors import DeltaweaveError

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

    text = _text(statement, file)
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

    text = _text(statement, file)
    with working("Planning", conf, catalog, verbose=verbose) as spark:
        plan = deltaweave.explain(spark, text)
    if json:
        print_json(asdict(plan))
    else:
        print(plan)


def _text(statement: str | None, file: Path | None) -> str:
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
