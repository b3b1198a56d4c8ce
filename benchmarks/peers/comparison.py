"""Measures one case on the engine and on its peers, over the same rows."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.data import TARGET_FILES, Workspace
from benchmarks.merge import ENGINE, Case, measure
from benchmarks.peers import delta_rs, iceberg
from benchmarks.peers.iceberg import COPY_ON_WRITE, ICEBERG
from benchmarks.peers.merge_report import DELTA_RS, PeerResult, PeerRuns
from benchmarks.peers.peer_process import PeerProcess


def compare(
    case: Case,
    mode: str,
    workspace: Workspace,
    process: PeerProcess | None,
    *,
    runs: int,
    turn: int = 0,
    with_delta_rs: bool = False,
) -> PeerResult:
    """Measure a case on the engine, in turns with delta-rs, and then on Iceberg.

    delta-rs merges into clones of the engine's table. Iceberg's table has the same rows in the same
    number of files.

    Args:
        case: The case; one of Delta's, if Iceberg runs.
        mode: How the tables are written; delta-rs runs for copy-on-write alone.
        workspace: Where our tables are kept; with deletion vectors if the mode needs them.
        process: The process that runs Iceberg; without it, Iceberg does not run.
        runs: How many timed runs each side has, after an untimed one.
        turn: Which of the engine and delta-rs begins the first run.
        with_delta_rs: Whether delta-rs runs.

    Raises:
        PeerError: A peer failed.
    """
    in_turns = {DELTA_RS: delta_rs.run_merges} if with_delta_rs and mode == COPY_ON_WRITE else {}
    alone = replace(case, with_builtin=False)
    measured = measure(alone, workspace, runs=runs, turn=turn, peers=in_turns)
    peers = {}
    if process is not None:
        job = iceberg.merge_job(
            workspace.spark, case.prepare(workspace), workspace.parts(), mode, runs
        )
        theirs = iceberg.measure(process, job)
        assert theirs.files_before == TARGET_FILES, "a task for each part wrote a file"
        rows_equal = tuple(map(str, measured.fingerprints[ENGINE])) == theirs.checksums
        peers[ICEBERG.name] = PeerRuns(theirs.seconds, rows_equal)
    for peer in in_turns:
        seconds = [run.seconds for run in measured.runs[peer]]
        peers[peer] = PeerRuns(seconds, measured.rows_equal is True)
    ours = [run.seconds for run in measured.runs[ENGINE]]
    return PeerResult(case.name, case.label, mode, ours, peers, case.is_deltas)
