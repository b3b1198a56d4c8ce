"""The command line: `deltaweave merge`, `explain`, `apply-changes`, `history`, `inspect`, ….

- `merges`: `merge` and `explain`, of a MERGE; `apply-changes`, of change events in any order;
  `maintain`, which compacts and vacuums a table where it needs it.
- `inspection`: `inspect`, how a table's rows are laid out; `history`, its merges; their charts;
  tables on a disk are read without Spark.
- `machine`: `init`, a Dagster project with a first table; `doctor`, whether this machine can run
  merges, and what is missing; `warm stop`, which ends Spark drivers that stay between runs.
- `options`: what commands share: options, exit codes, the session that they work in, and what a
  terminal shows meanwhile.

A command ends with 0 if it did what it was asked, with 1 if that failed, with 2 if its arguments
make no sense, and with 3 if it is unknown whether a merge was committed. Results go to the
standard output, as tables or with `--json`; all else goes to the standard error.
"""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer

    from deltaweave.cli.inspection import history, inspect
    from deltaweave.cli.machine import doctor, init, warm
    from deltaweave.cli.merges import apply_changes_command, explain_merge, maintain, run_merge
    from deltaweave.cli.options import (
        FAILED,
        MISUSED,
        check_java,
        check_output,
        check_plot,
        fail,
        session,
    )
except ModuleNotFoundError as error:  # the engine is installed without the command line's libraries
    sys.exit(f"The command line needs {error.name}: pip install {error.name}.")

__all__ = [
    "FAILED",
    "MISUSED",
    "app",
    "check_java",
    "check_output",
    "check_plot",
    "fail",
    "session",
]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="deltaweave keeps Delta tables current.",
    epilog="Begin with deltaweave doctor, which checks this machine.",
)
# In single quotes: in double quotes, a shell runs what is between back quotes.
_STATEMENT = (
    "'MERGE INTO delta.`/lake/orders` t USING parquet.`/landing/orders` s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *'"
)
_EVENTS = (
    "--format json --schema 'id INT, state STRING, op STRING, n INT' --key id --sequence-by n "
    "--deletes \"op = 'd'\" --except-column op --except-column n"
)
app.command("init", epilog="Example: deltaweave init my-shop")(init)
app.command("merge", epilog=f"Example: deltaweave merge {_STATEMENT}")(run_merge)
app.command("explain", epilog=f"Example: deltaweave explain {_STATEMENT}")(explain_merge)
app.command(
    "apply-changes", epilog=f"Example: deltaweave apply-changes ./orders ./events {_EVENTS}"
)(apply_changes_command)
app.command("maintain", epilog="Example: deltaweave maintain ./orders")(maintain)
app.command("history", epilog="Example: deltaweave history ./orders --limit 5")(history)
app.command("inspect", epilog="Example: deltaweave inspect ./orders --key id")(inspect)
app.command("doctor", epilog="Example: deltaweave doctor --conf spark.master=spark://host:7077")(
    doctor
)
app.add_typer(warm, name="warm")


def _show_version(wanted: bool) -> None:
    if wanted:
        import deltaweave

        print(f"deltaweave {deltaweave.__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            callback=_show_version,
            is_eager=True,
            metavar="",
        ),
    ] = False,
) -> None:
    """Delta tables kept current."""
