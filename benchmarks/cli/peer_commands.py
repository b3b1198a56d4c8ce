"""The command `python -m benchmarks peers`, and the environments of peers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from benchmarks.cli.merge_commands import DIRECTORY, Directory, Json, Keys, KeyType, Runs
from benchmarks.cli.running_cases import (
    fail_where_rows_differ,
    failing_in_one_line,
    with_progress,
)
from deltaweave.terminal import MISUSED, check_outputs, fail, session, writable

if TYPE_CHECKING:
    from benchmarks.data import Workspace
    from benchmarks.merge import Case
    from benchmarks.peers import Peer, PeerProcess, PeersReport

of_peers = typer.Typer()


class PeerName(str, Enum):
    """A peer of MERGE."""

    iceberg = "iceberg"
    delta_rs = "delta-rs"


@of_peers.command("peers")
def bench_peers(
    scale: Annotated[
        float, typer.Option(help="TPC-DS scale factor; 1 is 71,763 rows.", min=0.01)
    ] = 1,
    peer: Annotated[
        list[PeerName] | None, typer.Option(help="A peer; repeatable. [default: both]")
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="One of Delta's 16 cases, or of all where delta-rs runs alone; repeatable. "
            "[default: 16]"
        ),
    ] = None,
    keys: Keys = KeyType.double,
    runs: Runs = 3,
    json: Json = None,
    directory: Directory = DIRECTORY,
) -> None:
    """Run Delta's 16 cases on the engine, Apache Iceberg and delta-rs; compare times and rows.

    Iceberg runs on its own Spark, in an environment that the first call creates in the directory.
    Its table, of format 3, has the same rows in the same number of files. Its merge-on-read mode is
    compared with our table with deletion vectors, and its copy-on-write mode with ours without.
    delta-rs merges into clones of our table without vectors, and takes turns with the engine.
    """
    from benchmarks.data import Workspace
    from benchmarks.merge import cases
    from benchmarks.peers import COPY_ON_WRITE, ICEBERG, MODES, has_deletion_vectors

    peers = set(peer or PeerName)
    every, listed = cases.delta_cases(), "Iceberg runs Delta's 16: the first that"
    if PeerName.iceberg not in peers:
        every, listed = [*every, *cases.further_cases()], "They are those that"
    try:
        chosen = cases.chosen(case or [], every)
    except cases.UnknownCaseError as error:
        fail(f"{error} {listed} `python -m benchmarks merge --list` names.", MISUSED)
    _check_delta_rs(peers)
    check_outputs(json)
    directory = writable(directory)
    console = Console(highlight=False)
    if PeerName.iceberg in peers:
        with failing_in_one_line():
            install(console, ICEBERG, directory)
    modes = MODES if PeerName.iceberg in peers else (COPY_ON_WRITE,)
    with session(directory) as spark:
        workspaces = {
            mode: Workspace(spark, directory, scale, has_deletion_vectors(mode), keys.value)
            for mode in modes
        }
        report = _Measurement(console, workspaces, peers, runs, json).of(chosen)
    console.print(report.table())
    fail_where_rows_differ(
        "the engine's",
        [
            f"{title}, {each.name} ({each.mode})"
            for each in report.results
            for title in each.differing
        ],
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


@dataclass(frozen=True)
class _Measurement:
    """How the cases are measured.

    Attributes:
        console: Where progress is shown.
        workspaces: Where our tables are kept, by the mode of Iceberg that they are compared with.
        peers: The peers that run.
        runs: How many timed runs each side has.
        json: A file for the results.
    """

    console: Console
    workspaces: Mapping[str, Workspace]
    peers: set[PeerName]
    runs: int
    json: Path | None

    def of(self, cases: Sequence[Case]) -> PeersReport:
        """Measure the cases in each mode."""
        from benchmarks.peers import compare

        todo = [(each, mode) for mode in self.workspaces for each in cases]
        with failing_in_one_line(), self._iceberg() as process:
            report = self._empty_report(process)
            for turn, (each, mode) in enumerate(with_progress(self.console, todo)):
                with failing_in_one_line(each):
                    result = compare(
                        each,
                        mode,
                        self.workspaces[mode],
                        process,
                        runs=self.runs,
                        turn=turn,
                        with_delta_rs=PeerName.delta_rs in self.peers,
                    )
                report = report.with_result(result)
                if self.json is not None:
                    report.write_json(self.json)
        return report

    @property
    def _any_workspace(self) -> Workspace:
        return next(iter(self.workspaces.values()))

    def _empty_report(self, process: PeerProcess | None) -> PeersReport:
        from benchmarks.merge import environment_of
        from benchmarks.peers import DELTA_RS, ICEBERG, PeersReport, delta_rs_versions

        workspace = self._any_workspace
        settings = {
            "scale": workspace.scale,
            "runs": self.runs,
            "key_type": workspace.key_type,
        }
        environment = environment_of(workspace.spark)
        if process is not None:
            environment[ICEBERG.name] = process.versions
        if PeerName.delta_rs in self.peers:
            environment[DELTA_RS] = delta_rs_versions()
        return PeersReport(settings, environment)

    @contextmanager
    def _iceberg(self) -> Iterator[PeerProcess | None]:
        """Iceberg's process, if Iceberg is to run; it ends with the context."""
        from benchmarks.peers import ICEBERG, session_conf

        if PeerName.iceberg not in self.peers:
            yield None
            return
        workspace = self._any_workspace
        directory = workspace.directory
        with (
            tempfile.TemporaryDirectory(dir=directory, prefix=".iceberg-") as tables,
            ICEBERG.started(
                ICEBERG.environment(directory),
                session_conf(workspace.spark),
                Path(tables),
                directory / "iceberg.log",
            ) as process,
        ):
            yield process


def _check_delta_rs(peers: set[PeerName]) -> None:
    """End the command if delta-rs is to run and is not installed."""
    from benchmarks.peers import has_delta_rs

    if PeerName.delta_rs in peers and not has_delta_rs():
        fail(
            "delta-rs needs deltalake: pip install deltalake, or --peer iceberg alone.",
            MISUSED,
        )
