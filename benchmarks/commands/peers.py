"""The command `peers`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer

from benchmarks.commands.running import (
    DIRECTORY,
    Directory,
    Json,
    Keys,
    Runs,
    announce,
    checked,
    failing_in_one_line,
    session,
    show,
    with_cases,
)
from benchmarks.data.tables import MERGE_ON_READ, MODES, Workspace
from benchmarks.merge import cases
from benchmarks.merge.case import Case
from benchmarks.merge.report import settings_of
from benchmarks.merge.runner import CaseResult, measure
from benchmarks.peers.iceberg import ICEBERG
from benchmarks.peers.report import PEERS, PeersReport
from benchmarks.report import environment_of
from deltaweave.cli import MISUSED, fail


class PeerName(str, Enum):
    """A peer of MERGE; the command line takes no lists of literals."""

    iceberg = "iceberg"
    delta_rs = "delta-rs"


def peers(
    scale: Annotated[
        float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.01)
    ] = 1,
    peer: Annotated[
        list[PeerName] | None,
        typer.Option(help="A peer; repeatable. By default, both run."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="One of Delta's 16 cases, or of all where delta-rs runs alone; repeatable. "
            "By default, the 16 run."
        ),
    ] = None,
    keys: Keys = "double",
    runs: Runs = 3,
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Run Delta's 16 cases on the engine, Apache Iceberg and delta-rs; compare times and rows.

    Iceberg runs on its own Spark, in an environment that the first call creates in the directory.
    Its table, of format 3, has the same rows in the same number of files. Its merge-on-read mode is
    compared with our table with deletion vectors, and its copy-on-write mode with ours without.
    delta-rs merges into clones of our table without vectors. All take turns with the engine.
    """
    names = [each.value for each in peer or PeerName]
    chosen_peers = [each for name, each in PEERS.items() if name in names]
    chosen = _chosen_cases(case or [], with_iceberg=ICEBERG in chosen_peers)
    directory = checked(directory, json)
    with failing_in_one_line():
        for each in chosen_peers:
            each.install(directory, announce)
    with session(directory) as spark, failing_in_one_line(), ExitStack() as stack:
        running = {
            each.name: stack.enter_context(each.started(spark, directory)) for each in chosen_peers
        }
        workspaces = [
            Workspace(spark, directory, scale, mode == MERGE_ON_READ, keys)
            for mode in MODES
            if any(mode in each.modes for each in chosen_peers)
        ]

        def measured(case: Case, workspace: Workspace, turn: int) -> CaseResult:
            sides = {
                each.name: running[each.name].side
                for each in chosen_peers
                if workspace.mode in each.modes
            }
            alone = replace(case, with_builtin=False)
            return measure(alone, workspace, runs=runs, turn=turn, peers=sides)

        versions = {name: each.versions for name, each in running.items()}
        environment = {**environment_of(spark), **versions}
        empty = PeersReport(settings_of(workspaces[0], runs), environment)
        report = with_cases(empty, chosen, workspaces, measured, json)
    show(report, json)


def _chosen_cases(names: list[str], *, with_iceberg: bool) -> list[Case]:
    every, listed = cases.delta_cases(), "Iceberg runs Delta's 16: the first that"
    if not with_iceberg:
        every, listed = [*every, *cases.further_cases()], "They are those that"
    try:
        return cases.chosen(names, every)
    except cases.UnknownCaseError as error:
        fail(f"{error} {listed} `python -m benchmarks merge --list` names.", MISUSED)
