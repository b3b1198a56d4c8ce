"""Compares merge-on-read tables of several formats: reads before and after one upsert.

Each side has the same rows in the same number of files, and gets the same changes in one batch of
whole rows, most of which are updates. Each run creates the side's table again. The reads take every
column of every row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from assets import tpcds
from benchmarks.data import (
    Workspace,
    changed_table,
    clone,
    drawn_changes,
    returns_table,
)
from benchmarks.merge import fingerprint
from benchmarks.peers import (
    AFTER,
    OPERATIONS,
    PARQUET,
    PLAIN,
    UPSERT,
    Peer,
    PeerError,
    SqlUpsert,
    hudi,
    iceberg,
    session_conf,
    upsert_job,
)
from deltaweave import __version__
from deltaweave.changes.merge_on_read import MergeOnReadTable
from deltaweave.delta.jvm import compute

OURS = "deltaweave"

_Sql = Callable[[Sequence[str], Sequence[str]], SqlUpsert]
PEERS: Sequence[tuple[Peer, _Sql]] = (
    (iceberg.ICEBERG, iceberg.upsert),
    (hudi.HUDI, hudi.upsert),
)
"""The formats, and how each upserts into a table with these columns and keys."""


@dataclass(frozen=True)
class Side:
    """The results of one format.

    Attributes:
        name: The name in JSON.
        title: The name in tables.
        versions: The versions of the format and its Spark, by name.
        seconds: The times of the timed runs, by operation; empty if the format did not run.
        checksums: The `runner.fingerprint` of the table after the last run, as strings.
        error: Why it did not run.
    """

    name: str
    title: str
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    checksums: tuple[str, ...] = ()
    error: str | None = None

    def median(self, operation: str) -> float:
        """Return the median time of an operation, in seconds."""
        return median(self.seconds[operation])

    @property
    def read_ratio(self) -> float:
        """The time of a read after the upsert divided by the time before it."""
        return self.median(AFTER) / self.median(PLAIN)


@dataclass(frozen=True)
class Comparison:
    """The results of all formats.

    Attributes:
        changed: The share of rows that were drawn for a change.
        rows: Rows of the base.
        changes: Rows of the batch.
        sides: deltaweave, then the peers.
    """

    changed: float
    rows: int
    changes: int
    sides: Sequence[Side]

    @property
    def rows_equal(self) -> bool:
        """Whether all measured tables hold the same rows at the end."""
        return len({side.checksums for side in self.sides if side.error is None}) == 1


def compare(
    workspace: Workspace, *, changed: float, runs: int, install: Callable[[Peer], None]
) -> Comparison:
    """Measure each format, deltaweave first: each operation `runs` times after one untimed run.

    Args:
        workspace: Where the tables are kept.
        changed: The share of rows that have a change; deletes are left out.
        runs: How many timed runs each format has.
        install: Creates a peer's environment if it does not exist.
    """
    changes = workspace.made_once(
        f"upserts-{changed:g}",
        lambda path: (
            drawn_changes(workspace, changed).where("op <> 'delete'").write.parquet(str(path))
        ),
    )
    ours = _measure_ours(workspace, changed, changes, runs)
    peers = [_measure_peer(workspace, peer, sql, changes, runs, install) for peer, sql in PEERS]
    return Comparison(
        changed,
        workspace.returns().count(),
        workspace.spark.read.parquet(str(changes)).count(),
        (ours, *peers),
    )


def _measure_ours(workspace: Workspace, changed: float, changes: Path, runs: int) -> Side:
    base = changed_table(workspace, changed) / "base"
    seconds: dict[str, list[float]] = {operation: [] for operation in OPERATIONS}
    for _ in range(1 + runs):
        with tempfile.TemporaryDirectory(dir=workspace.directory, prefix=".clones-") as empty:
            clone(base, Path(empty) / "base")
            table = returns_table(
                workspace.spark.newSession(), Path(empty) / "base", Path(empty) / "changes"
            )
            table.pending()  # reads the logs, so that each run starts with cached snapshots
            for operation, took in _operations(table, workspace.parts(), changes):
                seconds[operation].append(took)
            checksums = tuple(map(str, fingerprint(table.read())))
    return Side(
        OURS,
        OURS,
        {OURS: __version__, "spark": workspace.spark.version},
        {operation: times[1:] for operation, times in seconds.items()},
        checksums,
    )


def _operations(
    table: MergeOnReadTable, base_files: Sequence[Path], changes: Path
) -> Iterator[tuple[str, float]]:
    """Run each operation on deltaweave's table, and yield its time in seconds."""
    base = table.spark.read.parquet(*map(str, base_files))
    events = table.spark.read.parquet(str(changes))
    done: Mapping[str, Callable[[], object]] = {
        PARQUET: lambda: compute(base),
        PLAIN: lambda: compute(table.read_optimized()),
        UPSERT: lambda: table.append(events),
        AFTER: lambda: compute(table.read()),
    }
    for operation in OPERATIONS:
        began = time.perf_counter()
        done[operation]()
        yield operation, time.perf_counter() - began


def _measure_peer(
    workspace: Workspace,
    peer: Peer,
    sql: _Sql,
    changes: Path,
    runs: int,
    install: Callable[[Peer], None],
) -> Side:
    columns = tpcds.schema().names
    files = sorted(changes.glob("*.parquet"))
    job = upsert_job(sql(columns, tpcds.KEY), columns, workspace.parts(), files, runs)
    directory = workspace.directory
    try:
        install(peer)
        with (
            tempfile.TemporaryDirectory(dir=directory, prefix=f".{peer.name}-") as tables,
            peer.started(
                peer.environment(directory),
                session_conf(workspace.spark),
                Path(tables),
                directory / f"{peer.name}.log",
            ) as process,
        ):
            done = process.do(job)
            return Side(
                peer.name,
                peer.title,
                process.versions,
                done["run_seconds"],
                tuple(done["checksums"]),
            )
    except PeerError as error:
        return Side(peer.name, peer.title, {peer.name: peer.version}, error=str(error))
