"""The command `merge`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from benchmarks.commands.running import (
    DIRECTORY,
    Directory,
    Json,
    Keys,
    Plot,
    Runs,
    Scale,
    checked,
    session,
    show,
    with_cases,
)
from benchmarks.data.tables import Workspace
from benchmarks.merge import cases
from benchmarks.merge.profile import ProfileReport, measure_profile
from benchmarks.merge.report import MergeReport, settings_of
from benchmarks.merge.runner import measure
from benchmarks.report import environment_of
from deltaweave.cli import MISUSED, fail


def merge(  # noqa: PLR0913 - options of the command
    scale: Scale = 1,
    deletion_vectors: Annotated[
        Literal["on", "off", "both"],
        typer.Option(help="Targets with deletion vectors, without, or both."),
    ] = "both",
    case: Annotated[
        list[str] | None,
        typer.Option(help="A case (see --list); repeatable. By default, Delta's 16 run."),
    ] = None,
    runs: Runs = 3,
    keys: Keys = "double",
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
    plot: Plot = None,
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
    directory = checked(directory, json, plot)
    vectors = {"on": [True], "off": [False], "both": [True, False]}[deletion_vectors]
    with session(directory) as spark:
        workspaces = [Workspace(spark, directory, scale, each, keys, log_files) for each in vectors]
        settings = {**settings_of(workspaces[0], runs), "log_files": log_files}
        environment = environment_of(spark)
        report: MergeReport | ProfileReport
        if profile:
            report = with_cases(
                ProfileReport(settings, environment),
                chosen,
                workspaces,
                lambda case, workspace, _: measure_profile(case, workspace, runs=runs),
                json,
            )
        else:
            report = with_cases(
                MergeReport(settings, environment),
                chosen,
                workspaces,
                lambda case, workspace, turn: measure(case, workspace, runs=runs, turn=turn),
                json,
            )
    show(report, json, plot)
