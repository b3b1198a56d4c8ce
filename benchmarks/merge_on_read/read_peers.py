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
from typing import TYPE_CHECKING, Any

from assets import tpcds
from benchmarks.data.tables import Workspace, clone, compute
from benchmarks.merge.runner import checksums, fingerprint
from benchmarks.merge_on_read.tables import changed_table, drawn_changes, returns_table
from benchmarks.peers.hudi import HUDI
from benchmarks.peers.iceberg import ICEBERG
from benchmarks.peers.peer import PeerError
from benchmarks.peers.spark_peer import SparkPeer, SqlUpsert, session_conf
from benchmarks.report import Report, environment_of, screen_table
from deltaweave import __version__
from deltaweave.changes.merge_on_read import MergeOnReadTable

if TYPE_CHECKING:
    from rich.table import Table

OURS = "deltaweave"
PEERS = (ICEBERG, HUDI)

PARQUET, PLAIN, UPSERT, AFTER = "parquet_scan", "plain_scan", "upsert", "read_after_upsert"
OPERATIONS = (PARQUET, PLAIN, UPSERT, AFTER)
"""The timed operations, in the order of each run."""
_HEADINGS = ("the same\nParquet files", "the table", "upsert", "the table\nafter it")


@dataclass(frozen=True)
class Side:
    """The results of one format.

    Attributes:
        name: The name in JSON.
        title: The name in tables.
        versions: The versions of the format and its Spark, by name.
        seconds: The times of the timed runs, by operation; empty if the format did not run.
        fingerprint: The `runner.fingerprint` of the table after the last run.
        error: Why it did not run.
    """

    name: str
    title: str
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    fingerprint: tuple[str, ...] = ()
    error: str | None = None

    def median(self, operation: str) -> float:
        """Return the median time, in seconds."""
        return median(self.seconds[operation])

    @property
    def read_ratio(self) -> float:
        """The time of a read after the upsert divided by the time before it."""
        return self.median(AFTER) / self.median(PLAIN)

    def as_json(self) -> dict[str, object]:
        """Return the times, or why there are none."""
        named = {"name": self.name, "versions": self.versions}
        if self.error is not None:
            return {**named, "error": self.error}
        return {
            **named,
            "seconds": {operation: self.median(operation) for operation in OPERATIONS},
            "read_ratio": self.read_ratio,
            "run_seconds": {operation: list(self.seconds[operation]) for operation in OPERATIONS},
        }


@dataclass(frozen=True, kw_only=True)
class ReadPeersReport(Report[Side]):
    """The results of deltaweave, then those of the peers.

    Attributes:
        changed: The share of rows that were drawn for a change.
        rows: Rows of the base.
        changes: Rows of the batch.
    """

    benchmark = "read-peers"

    changed: float
    rows: int
    changes: int

    @property
    def rows_equal(self) -> bool:
        """Whether all measured tables hold the same rows at the end."""
        return len({side.fingerprint for side in self.results if side.error is None}) == 1

    def table(self) -> Table:
        """Return the medians, in seconds, of each side that ran."""
        caption = (
            f"Seconds; {self.changes:,} changes to {self.rows:,} rows; rows equal: "
            f"{'yes' if self.rows_equal else 'NO'}"
        )
        table = screen_table(("",), (*_HEADINGS, "times the\nread before"), caption)
        for side in self.results:
            if side.error is None:
                seconds = [f"{side.median(operation):.2f}" for operation in OPERATIONS]
                table.add_row(side.title, *seconds, f"{side.read_ratio:.2f}")
            else:
                table.add_row(side.title, "did not run")
        return table

    def content(self) -> Mapping[str, object]:
        """Return the results of each side."""
        return {
            "changed": self.changed,
            "rows": self.rows,
            "changes": self.changes,
            "rows_equal": self.rows_equal,
            "sides": [side.as_json() for side in self.results],
        }

    def problem(self) -> str | None:
        """Return which peers did not run, and whether rows differ."""
        problems = [side.error for side in self.results if side.error is not None]
        if not self.rows_equal:
            problems.append("The tables do not end with the same rows.")
        return "\n".join(problems) if problems else None


def measure_upserts(
    workspace: Workspace, *, changed: float, runs: int, announce: Callable[[str], object]
) -> ReadPeersReport:
    """Measure each format, deltaweave first: each operation `runs` times after one untimed run.

    Args:
        workspace: Where the tables are kept.
        changed: The share of rows that have a change; deletes are left out.
        runs: How many timed runs each format has.
        announce: Gets a line where a peer's environment is created.
    """
    changes = workspace.made_once(
        f"upserts-{changed:g}",
        lambda path: (
            drawn_changes(workspace, changed).where("op <> 'delete'").write.parquet(str(path))
        ),
    )
    ours = _measure_ours(workspace, changed, changes, runs)
    peers = [_measure_peer(workspace, peer, changes, runs, announce) for peer in PEERS]
    return ReadPeersReport(
        {"scale": workspace.scale, "runs": runs},
        environment_of(workspace.spark),
        (ours, *peers),
        changed=changed,
        rows=workspace.returns().count(),
        changes=workspace.spark.read.parquet(str(changes)).count(),
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
            found = fingerprint(table.read())
    return Side(
        OURS,
        OURS,
        {OURS: __version__, "spark": workspace.spark.version},
        {operation: times[1:] for operation, times in seconds.items()},
        found,
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
    peer: SparkPeer,
    changes: Path,
    runs: int,
    announce: Callable[[str], object],
) -> Side:
    columns = tpcds.schema().names
    files = sorted(changes.glob("*.parquet"))
    sql = peer.upsert(columns, tpcds.KEY)
    job = upsert_job(sql, columns, workspace.parts(), files, runs)
    try:
        peer.install(workspace.directory, announce)
        with peer.process(session_conf(workspace.spark), workspace.directory) as process:
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


def upsert_job(
    sql: SqlUpsert,
    columns: Sequence[str],
    base_files: Sequence[Path],
    change_files: Sequence[Path],
    runs: int,
) -> dict[str, Any]:
    """Return a job for a peer's process: each run creates the table and runs all operations on it.

    Args:
        sql: How the peer creates the table and upserts.
        columns: The columns of the table, all of which are read.
        base_files: Parquet files of the table's rows.
        change_files: Parquet files of the changes.
        runs: How many timed runs.
    """
    listed = ", ".join(columns)
    read_table = f"SELECT {listed} FROM {sql.table}"
    return {
        "kind": "steps",
        "views": {
            "base": [str(file) for file in base_files],
            "changes": [str(file) for file in change_files],
        },
        "make": list(sql.make),
        "steps": [
            {"name": PARQUET, "read": f"SELECT {listed} FROM base"},
            {"name": PLAIN, "read": read_table},
            {"name": UPSERT, "run": sql.statement},
            {"name": AFTER, "read": read_table},
        ],
        "checked": read_table,
        "checksums": checksums(columns),
        "runs": runs,
    }
