"""The command line: `deltaweave explain` plans a MERGE, `deltaweave bench` measures."""

from __future__ import annotations

import sys
from typing import Annotated

from deltaweave.errors import DeltaweaveError
from deltaweave.locations import refuse_credentials

try:
    import typer

    from deltaweave.bench.cli import bench, of_changes, of_limits
except ModuleNotFoundError as error:  # the engine is installed without the command line's libraries
    sys.exit(f"The command line needs {error.name}: pip install 'deltaweave[cli]'.")

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="deltaweave keeps Delta tables current.",
)
app.add_typer(bench, name="bench")
bench.add_typer(of_changes)
bench.add_typer(of_limits)


@app.command("explain")
def explain_merge(
    statement: Annotated[str, typer.Argument(help="A MERGE statement, or - to read one.")],
) -> None:
    """Say what a MERGE would do to its target as it is now, and what would help; writes nothing."""
    text = sys.stdin.read() if statement == "-" else statement
    try:
        refuse_credentials(text)  # before Spark starts
        print(_explained(text))
    except DeltaweaveError as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from error


def _explained(statement: str) -> str:
    import deltaweave

    spark = deltaweave.local_session()
    try:
        return str(deltaweave.explain(spark, statement))
    finally:
        spark.stop()
