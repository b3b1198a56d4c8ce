"""The command `python -m benchmarks merge`, and the options that other commands share with it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from benchmarks.cli.running_cases import (
    fail_where_rows_differ,
    failing_in_one_line,
    with_progress,
)
from deltaweave.terminal import MISUSED, check_outputs, fail, session, writable

if TYPE_CHECKING:
    from benchmarks.data import Workspace
    from benchmarks.merge import Case, Report

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
    keys: Keys = KeyType.double,
    log_files: Annotated[
        int, typer.Option(help="Files that the log of many_files_log names.", min=2)
    ] = 100_000,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Show where the engine's time goes, instead of a comparison."
        ),
    ] = False,
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

    With --profile, the engine runs alone: a table shows its time in jobs, planning and the commit,
    and the time that pyarrow needs to read the keys and write the changed rows.
    """
    from benchmarks.data import Workspace
    from benchmarks.merge import cases

    every = [*cases.delta_cases(), *cases.further_cases()]
    if list_:
        for each in every:
            print(each.name)
        return
    try:
        chosen = cases.chosen(case or [], every)
    except cases.UnknownCaseError as error:
        fail(f"{error} `python -m benchmarks merge --list` lists them.", MISUSED)
    if profile and plot is not None:
        fail("--plot draws the ratios of a comparison, and --profile has none.", MISUSED)
    check_outputs(json, plot)
    vectors = {"on": [True], "off": [False], "both": [True, False]}[deletion_vectors.value]
    directory = writable(directory)
    console = Console(highlight=False)
    with session(directory) as spark:
        workspaces = [
            Workspace(spark, directory, scale, each, keys.value, log_files) for each in vectors
        ]
        if profile:
            _profile(console, chosen, workspaces, runs, json)
            return
        report = _measure(console, chosen, workspaces, runs, json)
    console.print(report.table())
    if plot is not None:
        report.plot(plot)
    fail_where_rows_differ(
        "built-in MERGE's",
        [result.case.name for result in report.results if result.rows_equal is False],
    )


def _measure(
    console: Console,
    cases: Sequence[Case],
    workspaces: Sequence[Workspace],
    runs: int,
    json: Path | None,
) -> Report:
    from benchmarks.merge import empty_report, measure

    report = empty_report(workspaces[0], runs)
    todo = [(each, workspace) for workspace in workspaces for each in cases]
    for turn, (each, workspace) in enumerate(with_progress(console, todo)):
        with failing_in_one_line(each):
            report = report.with_result(measure(each, workspace, runs=runs, turn=turn))
        if json is not None:  # after each case, so that an interrupted run keeps its results
            report.write_json(json)
    return report


def _profile(
    console: Console,
    cases: Sequence[Case],
    workspaces: Sequence[Workspace],
    runs: int,
    json: Path | None,
) -> None:
    from benchmarks.merge import empty_report, measure_profile, profiles_table, write_profiles

    empty = empty_report(workspaces[0], runs)
    todo = [(each, workspace) for workspace in workspaces for each in cases]
    profiles = []
    for each, workspace in with_progress(console, todo):
        with failing_in_one_line(each):
            profiles.append(measure_profile(each, workspace, runs=runs))
        if json is not None:
            write_profiles(profiles, empty.settings, empty.environment, json)
    console.print(profiles_table(profiles))
