"""`python -m benchmarks`: the commands of the benchmarks."""

from __future__ import annotations

import sys

try:
    import typer

    from benchmarks.commands.limits import limits
    from benchmarks.commands.merge import merge
    from benchmarks.commands.merge_on_read import decay, ingest, read, read_peers
    from benchmarks.commands.peers import peers
except ModuleNotFoundError as error:
    sys.exit(f"The benchmarks need {error.name}: pip install -e '.[benchmarks]'.")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure the engine on this machine.",
)
for command in (merge, peers, read, read_peers, ingest, decay, limits):
    app.command()(command)

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
