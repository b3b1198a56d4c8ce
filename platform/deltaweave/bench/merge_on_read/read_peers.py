"""Measures a merge-on-read table beside those of other formats: one upsert, and reads around it.

Each side has the same rows in as many files, and gets the same changes in one batch: whole rows,
most of which update one. Each run creates the side's table again. The reads take every column of
every row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from deltaweave import __version__
from deltaweave.bench.data import (
    Workspace,
    changed_table,
    clone,
    drawn_changes,
    returns_table,
    tpcds,
)
from deltaweave.bench.merge import fingerprint
from deltaweave.bench.peers import (
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
from deltaweave.changes.merge_on_read import MergeOnReadTable
from deltaweave.delta.jvm import compute

OURS = "deltaweave"

_Sql = Callable[[Sequence[str], Sequence[str]], SqlUpsert]
PEERS: Sequence[tuple[Peer, _Sql]] = (
    (iceberg.ICEBERG, iceberg.upsert),
    (hudi.HUDI, hudi.upsert),
)
"""The formats, and how each upserts into a table of these columns and keys."""


@dataclass(frozen=True)
class Side:
    """What was measured of one format.

    Attributes:
        name: As JSON names it.
        title: As tables name it.
        versions: Of the format and its Spark, by name.
        seconds: The times of the timed runs, by operation; none where it did not run.
        checksums: What the table holds after the last run: `runner.fingerprint`, as texts.
        error: Why it did not run.
    """

    name: str
    title: str
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    checksums: tuple[str, ...] = ()
    error: str | None = None

    def median(self, operation: str) -> float:
        """The median time, in seconds."""
        return median(self.seconds[operation])

    @property
    def read_ratio(self) -> float:
        """How many times as long as before it a read takes after the upsert."""
        return self.median(AFTER) / self.median(PLAIN)


@dataclass(frozen=True)
class Comparison:
    """What was measured of all.

    Attributes:
        changed: The share of rows that were drawn for a change.
        rows: Rows of the base.
        changes: Rows of the batch.
        sides: Ours, then the peers.
    """

    changed: float
    rows: int
    changes: int
    sides: Sequence[Side]

    @property
    def rows_equal(self) -> bool:
        """Whether all tables that were measured hold the same rows in the end."""
        return len({side.checksums for side in self.sides if side.error is None}) == 1


def compare(
    workspace: Workspace, *, changed: float, runs: int, install: Callable[[Peer], None]
) -> Comparison:
    """Measure each format, ours first, each operation `runs` times after a run that does not count.

    Args:
        workspace: Where the tables are kept.
        changed: The share of rows that have a change; where one is deleted, that is left out.
        runs: How many timed runs each has.
        install: Makes a peer's environment where it is not made.
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
            table.pending()  # reads the logs, as a session has that used the tables before
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
    """Do each operation with our table, and say how many seconds it took."""
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
