"""What the commands share: options, checks, the session, progress and failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from assets.tpcds import GeneratorError
from benchmarks.data.tables import KeyType, Workspace
from benchmarks.peers.peer import PeerError
from benchmarks.report import Report
from deltaweave import cli
from deltaweave.cli import FAILED, fail
from deltaweave.errors import DeltaweaveError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.merge.case import Case

AnyReport = TypeVar("AnyReport", bound=Report[Any])


Keys = Annotated[
    KeyType,
    typer.Option(
        help="Type of the source's keys in Delta's cases: double as in Delta's benchmark, "
        "or the table's own."
    ),
]
Runs = Annotated[int, typer.Option(help="Timed runs of each side.", min=1)]
Scale = Annotated[float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.001)]
Json = Annotated[Path | None, typer.Option(help="Write all that was measured here.")]
Plot = Annotated[Path | None, typer.Option(help="Draw a chart here (.png, .svg, .pdf).")]
Directory = Annotated[Path, typer.Option(help="Where generated data and tables are kept.")]
DIRECTORY = Path(".bench")

console = Console(highlight=False)


def checked(directory: Path, json: Path | None, plot: Path | None = None) -> Path:
    """Return the directory as an absolute path, created if it is missing.

    The command ends if the directory or an output file cannot be written.
    """
    cli.check_output(json)
    cli.check_plot(plot)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"The directory {directory} cannot be made: {error.strerror}.", FAILED)
    if not os.access(directory, os.W_OK | os.X_OK):
        fail(f"The directory {directory} cannot be written.", FAILED)
    return directory.resolve()


def announce(line: str) -> None:
    """Print a line before something takes long."""
    console.print(line, soft_wrap=True)


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """Work in a session that keeps its warehouse and its log in the directory."""
    warehouse = str(directory / "spark-warehouse")
    options = {"spark.driver.memory": "8g", "spark.sql.warehouse.dir": warehouse}
    with cli.session(options, directory / "spark.log") as spark:
        yield spark


def with_cases(
    report: AnyReport,
    cases: Sequence[Case],
    workspaces: Sequence[Workspace],
    measure: Callable[[Case, Workspace, int], Any],
    json: Path | None,
) -> AnyReport:
    """Return the report with a result of each case in each workspace.

    The JSON is written after each case, so that an interrupted run keeps its results.

    Args:
        report: The report to begin with.
        cases: The cases.
        workspaces: Where the tables are kept, e.g. with deletion vectors and without.
        measure: Measures a case; the number counts the cases that were measured.
        json: A file for the results.
    """
    todo = [(case, workspace) for workspace in workspaces for case in cases]
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
        for number, (case, workspace) in enumerate(todo):
            bar.update(task, description=case.label)
            with failing_in_one_line(case):
                report = report.with_result(measure(case, workspace, number))
            if json is not None:
                report.write_json(json)
            bar.advance(task)
    return report


@contextmanager
def failing_in_one_line(case: Case | None = None) -> Iterator[None]:
    """End the command with one line, which names the case, where the block fails."""
    where = "" if case is None else f"{case.name}: "
    try:
        yield
    except GeneratorError as error:
        lines = str(error).splitlines()  # the last ones of the generator's output
        fail(" ".join(dict.fromkeys((lines[0], lines[-1]))), FAILED)
    except (DeltaweaveError, PeerError) as error:
        fail(f"{where}{error}", FAILED)
    except OSError as error:
        fail(f"{where}{error.strerror or error}", FAILED)


def show(report: Report[Any], json: Path | None, plot: Path | None = None) -> None:
    """Print the results and write the files; the command fails if the results are wrong."""
    console.print(report.table())
    if json is not None:
        report.write_json(json)
    if plot is not None:
        report.plot(plot)
    problem = report.problem()
    if problem is not None:
        fail(problem, FAILED)
