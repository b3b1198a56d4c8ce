"""The command `maintain`: compacts, purges, indexes and vacuums a table where it needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Shown

from deltaweave._terminal import MISUSED, fail
from deltaweave.cli.commits import table_on_disk
from deltaweave.cli.options import (
    Catalog,
    Conf,
    Json,
    TableName,
    Verbose,
    print_json,
    reading_disk,
    working,
)

if TYPE_CHECKING:
    from deltaweave.maintenance import Done


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
    from deltaweave.engine.phases import tell
    from deltaweave.maintenance import OPERATIONS, UpkeepPolicy

    for name in only:
        if name not in OPERATIONS:
            fail(f"--only {name}: there are {', '.join(OPERATIONS)}.", MISUSED)
    with reading_disk(table):
        table_on_disk(table, conf)  # an error if there is no table, before Spark starts
    done: dict[str, Done] = {}
    try:
        with working("Opening the table", conf, catalog, verbose=verbose) as spark:
            for name in only or OPERATIONS:
                tell(name.replace("_", " "))
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
