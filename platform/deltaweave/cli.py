"""The command line: `deltaweave explain` plans a MERGE, `deltaweave bench` measures."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from deltaweave.errors import DeltaweaveError

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
except ModuleNotFoundError as error:  # the engine is installed without the command line's libraries
    sys.exit(f"The command line needs {error.name}: pip install 'deltaweave[cli]'.")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaweave.bench.case import Case
    from deltaweave.bench.report import Report
    from deltaweave.bench.tables import Workspace

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="deltaweave keeps Delta tables current.",
)
bench = typer.Typer(no_args_is_help=True, help="Measure the engine on this machine.")
app.add_typer(bench, name="bench")

_FAILED, _MISUSED = 1, 2  # exit codes


class DeletionVectors(str, Enum):
    """Which targets are measured."""

    on = "on"
    off = "off"
    both = "both"


class KeyType(str, Enum):
    """The type of the key columns in the sources of Delta's cases."""

    double = "double"
    integer = "integer"


@app.command("explain")
def explain_merge(
    statement: Annotated[str, typer.Argument(help="A MERGE statement, or - to read one.")],
) -> None:
    """Say what a MERGE would do to its target as it is now, and what would help; writes nothing."""
    import deltaweave

    text = sys.stdin.read() if statement == "-" else statement
    spark = deltaweave.local_session()
    try:
        print(deltaweave.explain(spark, text))
    except DeltaweaveError as error:
        _fail(str(error), _FAILED)
    finally:
        spark.stop()


@bench.callback()
def _bench() -> None:
    """Measure the engine on this machine."""


@bench.command("merge")
def bench_merge(
    scale: Annotated[
        float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.001)
    ] = 1,
    deletion_vectors: Annotated[
        DeletionVectors, typer.Option(help="Targets with deletion vectors, without, or both.")
    ] = DeletionVectors.both,
    case: Annotated[
        list[str] | None, typer.Option(help="A case (see --list); again for more. [default: 16]")
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed runs of each side.", min=1)] = 3,
    keys: Annotated[
        KeyType,
        typer.Option(
            help="Type of the source's keys in Delta's cases: double as in Delta's benchmark, "
            "or the table's own."
        ),
    ] = KeyType.double,
    log_files: Annotated[
        int, typer.Option(help="Files that the log of many_files_log names.", min=2)
    ] = 100_000,
    json: Annotated[Path | None, typer.Option(help="Write all that was measured here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the ratios here (.png, .svg, .pdf).")
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Where generated data and tables are kept.")
    ] = Path(".bench"),
    list_: Annotated[bool, typer.Option("--list", help="List the cases and end.")] = False,
) -> None:
    """Run MERGE statements on the engine and on Delta's own MERGE, and compare times and rows.

    The cases of Delta's own merge benchmark, on TPC-DS web returns from the published generator,
    unless --case chooses others. Both sides merge into fresh clones of the same table and take
    turns; the first merge of each is not timed.
    """
    from deltaweave.bench import cases
    from deltaweave.bench.tables import Workspace

    if list_:
        for each in [*cases.delta_cases(), *cases.further_cases()]:
            print(each.name)
        return
    try:
        chosen = cases.chosen(case or [])
    except cases.UnknownCaseError as error:
        _fail(f"{error} `deltaweave bench merge --list` lists them.", _MISUSED)
    _check_outputs(json, plot)
    vectors = {"on": [True], "off": [False], "both": [True, False]}[deletion_vectors.value]
    directory = _writable(directory)
    console = Console(highlight=False)
    with _session(directory) as spark:
        workspaces = [
            Workspace(spark, directory, scale, each, keys.value, log_files) for each in vectors
        ]
        report = _measure(console, chosen, workspaces, runs, json)
    console.print(report.table())
    if plot is not None:
        report.plot(plot)
    differing = [result.case.name for result in report.results if result.rows_equal is False]
    if differing:
        _fail(f"Rows differ from built-in MERGE's: {', '.join(differing)}.", _FAILED)


@bench.command("read")
def bench_read(
    scale: Annotated[
        float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.001)
    ] = 1,
    changed: Annotated[
        float, typer.Option(help="Share of the rows that have a change.", min=0.0001, max=1)
    ] = 0.01,
    runs: Annotated[int, typer.Option(help="Timed runs of each way.", min=1)] = 3,
    json: Annotated[Path | None, typer.Option(help="Write all that was measured here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the times here (.png, .svg, .pdf).")
    ] = None,
    directory: Annotated[
        Path, typer.Option(help="Where generated data and tables are kept.")
    ] = Path(".bench"),
) -> None:
    """Read a merge-on-read table in each way, and bring its changes into the base in each way.

    Beside a plain scan of the base, and beside Delta's own MERGE of the same changes. Each
    measurement has a session of its own; all must give the same rows.
    """
    from deltaweave.bench import read_report
    from deltaweave.bench.reads import measure_reads
    from deltaweave.bench.report import empty_report
    from deltaweave.bench.tables import Workspace

    _check_outputs(json, plot)
    directory = _writable(directory)
    console = Console(highlight=False)
    with _session(directory) as spark:
        workspace = Workspace(spark, directory, scale, deletion_vectors=True)
        timings = measure_reads(workspace, changed=changed, runs=runs)
        environment = empty_report(workspace, runs).environment
    console.print(read_report.as_table(timings))
    if json is not None:
        settings = {"scale": scale, "runs": runs, "environment": environment}
        read_report.write_json(timings, settings, json)
    if plot is not None:
        read_report.plot(timings, plot)
    if not timings.rows_equal:
        _fail("The ways of reading and writing do not end with the same rows.", _FAILED)


def _check_outputs(json: Path | None, plot: Path | None) -> None:
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        _fail("--plot needs matplotlib: pip install 'deltaweave[bench]'.", _MISUSED)
    for file in (json, plot):
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            _fail(f"{file} cannot be written: its directory is missing or closed.", _MISUSED)


def _measure(
    console: Console,
    cases: Sequence[Case],
    workspaces: Sequence[Workspace],
    runs: int,
    json: Path | None,
) -> Report:
    from deltaweave.bench.report import empty_report
    from deltaweave.bench.runner import measure
    from deltaweave.bench.tpcds import GeneratorError

    report = empty_report(workspaces[0], runs)
    todo = [(each, workspace) for workspace in workspaces for each in cases]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(todo))
        for turn, (each, workspace) in enumerate(todo):
            bar.update(task, description=each.label)
            try:
                result = measure(each, workspace, runs=runs, turn=turn)
            except GeneratorError as error:
                lines = str(error).splitlines()  # the last ones of the generator's output
                _fail(" ".join(dict.fromkeys((lines[0], lines[-1]))), _FAILED)
            except DeltaweaveError as error:
                _fail(f"{each.name}: {error}", _FAILED)
            except OSError as error:
                _fail(f"{each.name}: {error.strerror or error}", _FAILED)
            report = report.with_result(result)
            if json is not None:  # after each case: what stops a long run does not lose it
                report.write_json(json)
            bar.advance(task)
    return report


def _writable(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(f"The directory {directory} cannot be made: {error.strerror}.", _FAILED)
    if not os.access(directory, os.W_OK | os.X_OK):
        _fail(f"The directory {directory} cannot be written.", _FAILED)
    return directory.resolve()


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    """The active session, or one of our own with more memory, ended afterwards."""
    from pyspark.sql import SparkSession

    from deltaweave.session import local_session

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    problem = _java_problem()
    if problem is not None:
        _fail(problem, _FAILED)
    log = directory / "spark.log"
    options = {
        "spark.driver.memory": "8g",
        "spark.sql.warehouse.dir": str(directory / "spark-warehouse"),
    }
    try:
        with _output_to(log):
            spark = local_session(**options)
    except Exception as error:  # whatever stops a JVM from starting; its own words are in the log
        _fail(f"Spark did not start ({type(error).__name__}); its output is in {log}.", _FAILED)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Output of this process and of those it starts to a file; theirs stays there."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)


def _java_problem() -> str | None:
    """Why no JVM can be started that Spark runs on, or None."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        found = None
    else:
        # "1.8.0_392" is Java 8: releases before 9 were numbered 1.x.
        found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    if found is not None and found[1] in ("17", "21"):
        return None
    release = f"Java {found[1]}" if found is not None else "none"
    return f"deltaweave needs Java 17 or 21 and found {release}: install one or set JAVA_HOME."


def _fail(problem: str, code: int) -> NoReturn:
    typer.echo(problem, err=True)
    raise typer.Exit(code)
