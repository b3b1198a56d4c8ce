"""The command line: `deltaweave merge`, `explain`, `apply-changes`, `history`, `inspect`, ….

- `project`: `init`, a Dagster project with a first table.
- `statements`: `merge` and `explain`, of a MERGE as text or in a file.
- `changes`: `apply-changes`, of change events in any order.
- `malformed_records`: which column of a record cannot be read as its declared type.
- `upkeep`: `maintain`, which compacts and vacuums a table where it needs it.
- `merge_history`: `history`, the merges of a table.
- `inspection`: `inspect`, how its rows are laid out.
- `health`: `doctor`, whether this machine can run merges, and what is missing.
- `warm`: `warm stop`, which ends Spark drivers that stay between runs.
- `charts`: what `--plot` draws.
- `commits`: tables on a disk and their commits, read without Spark.
- `options`: what several commands take.
- `steps`: what a terminal shows while a command works.

A command ends with 0 if it did what it was asked, with 1 if that failed, with 2 if its arguments
make no sense, and with 3 if it is unknown whether a merge was committed. Results go to the
standard output, as tables or with `--json`; all else goes to the standard error.
"""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer

    from deltaweave.cli.changes import apply_changes
    from deltaweave.cli.health import doctor
    from deltaweave.cli.inspection import inspect
    from deltaweave.cli.merge_history import history
    from deltaweave.cli.project import init
    from deltaweave.cli.statements import explain_merge, run_merge
    from deltaweave.cli.upkeep import maintain
    from deltaweave.cli.warm import warm
except ModuleNotFoundError as error:  # the engine is installed without the command line's libraries
    sys.exit(f"The command line needs {error.name}: pip install {error.name}.")

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="deltaweave keeps Delta tables current.",
)
app.command("init")(init)
app.command("merge")(run_merge)
app.command("explain")(explain_merge)
app.command("apply-changes")(apply_changes)
app.command("maintain")(maintain)
app.command("history")(history)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
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
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Delta tables kept current."""
