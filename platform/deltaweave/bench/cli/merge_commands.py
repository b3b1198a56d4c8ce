"""The commands `deltaweave bench merge` and `deltaweave bench peers`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deltaweave.errors import DeltaweaveError
from deltaweave.terminal import FAILED, MISUSED, check_outputs, fail, session, writable

if TYPE_CHECKING:
    from deltaweave.bench.data import Workspace
    from deltaweave.bench.merge import Case, Report
    from deltaweave.bench.peers import Peer, PeersReport

T = TypeVar("T")

bench = typer.Typer(no_args_is_help=True, help="Measure the engine on this machine.")


class DeletionVectors(str, Enum):
    """Whether the measured targets have deletion vectors."""

    on = "on"
    off = "off"
    both = "both"


class KeyType(str, Enum):
    """The type of the key columns in the sources of Delta's cases."""

    double = "double"
    integer = "integer"


Runs = Annotated[int, typer.Option(help="Timed runs of each side.", min=1)]
Scale = Annotated[float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.001)]
Json = Annotated[Path | None, typer.Option(help="Write all that was measured here.")]
Directory = Annotated[Path, typer.Option(help="Where generated data and tables are kept.")]
DIRECTORY = Path(".bench")


@bench.callback()
def _bench() -> None:
    """Measure the engine on this machine."""


@bench.command("merge")
def bench_merge(
    scale: Scale = 1,
    deletion_vectors: Annotated[
        DeletionVectors, typer.Option(help="Targets with deletion vectors, without, or both.")
    ] = DeletionVectors.both,
    case: Annotated[
        list[str] | None, typer.Option(help="A case (see --list); repeatable. [default: 16]")
    ] = None,
    runs: Runs = 3,
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
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the ratios here (.png, .svg, .pdf).")
    ] = None,
    directory: Directory = DIRECTORY,
    list_: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
) -> None:
    """Run MERGE statements on the engine and on Delta's own MERGE, and compare times and rows.

    By default, the cases are those of Delta's own merge benchmark, on TPC-DS web returns from the
    published generator; --case chooses others. Both sides merge into fresh clones of the same table
    and take turns. The first merge of each is not timed.
    """
    from deltaweave.bench.data import Workspace
    from deltaweave.bench.merge import cases

    every = [*cases.delta_cases(), *cases.further_cases()]
    if list_:
        for each in every:
            print(each.name)
        return
    try:
        chosen = cases.chosen(case or [], every)
    except cases.UnknownCaseError as error:
        fail(f"{error} `deltaweave bench merge --list` lists them.", MISUSED)
    check_outputs(json, plot)
    vectors = {"on": [True], "off": [False], "both": [True, False]}[deletion_vectors.value]
    directory = writable(directory)
    console = Console(highlight=False)
    with session(directory) as spark:
        workspaces = [
            Workspace(spark, directory, scale, each, keys.value, log_files) for each in vectors
        ]
        report = _measure(console, chosen, workspaces, runs, json)
    console.print(report.table())
    if plot is not None:
        report.plot(plot)
    _fail_where_rows_differ(
        "built-in MERGE's",
        [result.case.name for result in report.results if result.rows_equal is False],
    )


@bench.command("peers")
def bench_peers(
    scale: Annotated[
        float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.01)
    ] = 1,
    case: Annotated[
        list[str] | None,
        typer.Option(help="One of Delta's 16 cases; repeatable. [default: 16]"),
    ] = None,
    runs: Runs = 3,
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Run Delta's 16 cases on the engine and on Apache Iceberg, and compare times and rows.

    Iceberg runs on its own Spark, in an environment that the first call creates in the directory.
    Its table, of format 3, has the same rows in the same number of files. Its merge-on-read mode is
    compared with our table with deletion vectors, and its copy-on-write mode with ours without.
    """
    from deltaweave.bench.data import Workspace
    from deltaweave.bench.merge import cases
    from deltaweave.bench.peers import ICEBERG, MODES, has_deletion_vectors

    try:
        chosen = cases.chosen(case or [], cases.delta_cases())
    except cases.UnknownCaseError as error:
        fail(
            f"{error} Iceberg runs Delta's 16: the first that `bench merge --list` names.",
            MISUSED,
        )
    check_outputs(json)
    directory = writable(directory)
    console = Console(highlight=False)
    with _failing_in_one_line():
        install(console, ICEBERG, directory)
    with session(directory) as spark:
        workspaces = {
            mode: Workspace(spark, directory, scale, has_deletion_vectors(mode)) for mode in MODES
        }
        report = _measure_peers(console, chosen, workspaces, runs, json)
    console.print(report.table())
    _fail_where_rows_differ(
        "Iceberg's",
        [f"{result.name} ({result.mode})" for result in report.results if not result.rows_equal],
    )


def install(console: Console, peer: Peer, directory: Path) -> None:
    """Create the environment of a peer in the directory, unless it exists.

    Raises:
        PeerError: It cannot be made.
    """
    environment = peer.environment(directory)
    if peer.is_made(environment):
        return
    console.print(
        f"Installing {peer.pyspark} for {peer.title} into {environment} (once; about 450 MB)",
        soft_wrap=True,
    )
    with console.status("Installing"):
        peer.make(environment)


def _measure(
    console: Console,
    cases: Sequence[Case],
    workspaces: Sequence[Workspace],
    runs: int,
    json: Path | None,
) -> Report:
    from deltaweave.bench.merge import empty_report, measure

    report = empty_report(workspaces[0], runs)
    todo = [(each, workspace) for workspace in workspaces for each in cases]
    for turn, (each, workspace) in enumerate(_with_progress(console, todo)):
        with _failing_in_one_line(each):
            report = report.with_result(measure(each, workspace, runs=runs, turn=turn))
        if json is not None:  # after each case, so that an interrupted run keeps its results
            report.write_json(json)
    return report


def _measure_peers(
    console: Console,
    cases: Sequence[Case],
    workspaces: Mapping[str, Workspace],
    runs: int,
    json: Path | None,
) -> PeersReport:
    from deltaweave.bench.merge import environment_of
    from deltaweave.bench.peers import ICEBERG, PeersReport, compare, session_conf

    any_of_them = next(iter(workspaces.values()))
    directory = any_of_them.directory
    settings = {"scale": any_of_them.scale, "runs": runs, "key_type": any_of_them.key_type}
    environment = environment_of(any_of_them.spark)
    todo = [(each, mode) for mode in workspaces for each in cases]
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".iceberg-") as tables,
        _failing_in_one_line(),
        ICEBERG.started(
            ICEBERG.environment(directory),
            session_conf(any_of_them.spark),
            Path(tables),
            directory / "iceberg.log",
        ) as process,
    ):
        report = PeersReport(settings, {**environment, "iceberg": process.versions})
        for each, mode in _with_progress(console, todo):
            with _failing_in_one_line(each):
                report = report.with_result(
                    compare(each, mode, workspaces[mode], process, runs=runs)
                )
            if json is not None:
                report.write_json(json)
    return report


def _with_progress(console: Console, todo: Sequence[tuple[Case, T]]) -> Iterator[tuple[Case, T]]:
    """Yield each item under a progress bar that names its case."""
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
        for case, beside in todo:
            bar.update(task, description=case.label)
            yield case, beside
            bar.advance(task)


@contextmanager
def _failing_in_one_line(case: Case | None = None) -> Iterator[None]:
    from deltaweave.bench.data import GeneratorError
    from deltaweave.bench.peers import PeerError

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


def _fail_where_rows_differ(whose: str, differing: Sequence[str]) -> None:
    if differing:
        fail(f"Rows differ from {whose}: {', '.join(differing)}.", FAILED)
