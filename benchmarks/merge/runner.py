"""Measures cases: the engine and its peers take turns, each run on a target as it was at first."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import unquote

from benchmarks.data.tables import MERGE_ON_READ, Workspace, clone, session_options, sql_name
from benchmarks.merge.case import Case, Merges
from deltaweave.identifiers import quoted
from deltaweave.statements import merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

ENGINE, BUILTIN, REWRITE = "engine", "builtin", "rewrite"
_ROWS_CHANGED = ("numTargetRowsUpdated", "numTargetRowsDeleted", "numTargetRowsInserted")
_PHASES = {
    "materialize_source": "materializeSourceTimeMs",
    "scan": "scanTimeMs",
    "rewrite": "rewriteTimeMs",
    "whole_merge": "executionTimeMs",
}


@dataclass(frozen=True)
class Run:
    """What one side did in one run.

    Attributes:
        merge_seconds: How long each merge took.
        metrics: The merges' metrics, added up, under Delta's names.
        strategies: The strategies by which the engine wrote changes, each once.
        touched: Paths of the target's files that the engine removed, relative to the target.
    """

    merge_seconds: tuple[float, ...]
    metrics: Mapping[str, int] = field(default_factory=dict)
    strategies: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The total time of the merges."""
        return sum(self.merge_seconds)


@dataclass(frozen=True)
class TableState:
    """What a side's table holds.

    Attributes:
        files: How many files it has.
        fingerprint: The `fingerprint` of its rows.
    """

    files: int
    fingerprint: tuple[str, ...]


class Side(Protocol):
    """Runs a case's statements, each time on the target as it was at first."""

    def run(self, merges: Merges, number: int) -> Run:
        """Run the statements; runs have different numbers."""

    def table_after(self, number: int) -> TableState:
        """Return what the table holds after the run of this number, the last one."""


@dataclass(frozen=True)
class CaseResult:
    """The results of one case.

    Attributes:
        case: The case.
        mode: How the target writes changes.
        runs: The timed runs of each side, in order.
        tables: What each side's table holds after the last run.
    """

    case: Case
    mode: str
    runs: Mapping[str, Sequence[Run]]
    tables: Mapping[str, TableState]

    @property
    def deletion_vectors(self) -> bool:
        """Whether the target has deletion vectors enabled."""
        return self.mode == MERGE_ON_READ

    def median_seconds(self, side: str) -> float | None:
        """Return the median time of a side's runs, or None if it did not run."""
        return median(run.seconds for run in self.runs[side]) if side in self.runs else None

    def ratio(self, side: str) -> float | None:
        """Return the median time of a side divided by the engine's, or None if it did not run."""
        engine, other = self.median_seconds(ENGINE), self.median_seconds(side)
        return other / engine if other is not None and engine else None

    def agrees(self, side: str) -> bool:
        """Return whether a side's table holds the engine's rows after the last run.

        If the side counts the rows that it changes, these numbers have to be the engine's, too.
        """
        ours, theirs = self.last.metrics, self.runs[side][-1].metrics
        counts_agree = all(theirs[name] == ours[name] for name in _ROWS_CHANGED if theirs)
        return counts_agree and (self.tables[side].fingerprint == self.tables[ENGINE].fingerprint)

    @property
    def differing(self) -> list[str]:
        """The sides that do not agree with the engine."""
        return [side for side in self.tables if not self.agrees(side)]

    @property
    def rows_equal(self) -> bool | None:
        """Whether all sides agree; None if the engine ran alone."""
        return not self.differing if len(self.tables) > 1 else None

    @property
    def last(self) -> Run:
        """The engine's last run."""
        return self.runs[ENGINE][-1]

    @property
    def phase_seconds(self) -> Mapping[str, float]:
        """The median time of each phase of the engine; a merge takes longer than their sum."""
        runs = self.runs[ENGINE]
        return {
            phase: median(run.metrics[name] for run in runs) / 1000
            for phase, name in _PHASES.items()
        }


def measure(
    case: Case,
    workspace: Workspace,
    *,
    runs: int,
    turn: int = 0,
    peers: Mapping[str, Callable[[Clones], Side]] = MappingProxyType({}),
) -> CaseResult:
    """Measure one case.

    Each side first runs one merge untimed, then all merges `runs` times. Only merges are timed.

    Args:
        case: The case.
        workspace: Where its tables are kept.
        runs: How many timed runs each side has.
        turn: Which side begins the first run; each later run begins with the next side.
        peers: Further sides that take turns with the engine, by their names.
    """
    with clones_of(case, workspace) as clones:
        sides: dict[str, Side] = {ENGINE: OnClones(ENGINE, clones, _run_engine)}
        if case.with_builtin:
            sides[BUILTIN] = OnClones(BUILTIN, clones, _run_builtin)
        sides.update({name: side(clones) for name, side in peers.items()})
        compared = tuple(sides)
        warm_up = {name: side.run(clones.first_merge, 0) for name, side in sides.items()}
        if case.with_rewrite:
            copying = _copying(warm_up[ENGINE].touched)
            sides[REWRITE] = OnClones(REWRITE, clones, copying)
            sides[REWRITE].run(clones.first_merge, 0)
        order = list(sides)
        done: dict[str, list[Run]] = {name: [] for name in order}
        for number in range(1, runs + 1):
            clones.clear()
            first = (turn + number) % len(order)
            for name in order[first:] + order[:first]:
                done[name].append(sides[name].run(clones.prepared, number))
        tables = {name: sides[name].table_after(runs) for name in compared}
        return CaseResult(case, workspace.mode, done, tables)


@dataclass(frozen=True)
class Clones:
    """Where a case's target is cloned.

    Attributes:
        workspace: Where the tables are kept.
        prepared: The case's tables and statements.
        directory: Where the clones are.
    """

    workspace: Workspace
    prepared: Merges
    directory: Path

    @property
    def first_merge(self) -> Merges:
        """The case's tables and its first statement alone."""
        return replace(self.prepared, statements=self.prepared.statements[:1])

    def clear(self) -> None:
        """Remove all clones."""
        for table in self.directory.iterdir():
            shutil.rmtree(table)


@contextmanager
def clones_of(case: Case, workspace: Workspace) -> Iterator[Clones]:
    """Prepare a case, and make room for clones of its target until the context ends."""
    prepared = case.prepare(workspace)
    persistent = str(workspace.deletion_vectors).lower()
    with (
        session_options(
            workspace.spark,
            {"spark.databricks.delta.merge.deletionVectors.persistent": persistent},
        ),
        tempfile.TemporaryDirectory(dir=workspace.directory, prefix=".clones-") as directory,
    ):
        yield Clones(workspace, prepared, Path(directory))


@dataclass(frozen=True)
class OnClones:
    """A side that runs on fresh clones of a case's target.

    Attributes:
        name: The name of the side, and of its clones.
        clones: Where the clones are.
        do: Runs the statements on a clone.
    """

    name: str
    clones: Clones
    do: Callable[[SparkSession, Merges, Path], Run]

    def run(self, merges: Merges, number: int) -> Run:
        """Run the statements on a new clone."""
        table = self._clone(number)
        clone(merges.target, table)
        self._file_count(table)  # reads the log, so that each run starts with a cached snapshot
        return self.do(self.clones.workspace.spark, merges, table)

    def table_after(self, number: int) -> TableState:
        """Return what the clone of this number holds; rows that a case leaves out do not count."""
        table, compared = self._clone(number), self.clones.prepared.compared
        rows = self.clones.workspace.spark.read.format("delta").load(str(table))
        rows = rows if compared is None else rows.where(compared)
        return TableState(self._file_count(table), fingerprint(rows))

    def _clone(self, number: int) -> Path:
        # Each clone has a path of its own, because Delta caches the tables it saw by their paths.
        return self.clones.directory / f"{self.name}-{number}"

    def _file_count(self, table: Path) -> int:
        (detail,) = self.clones.workspace.spark.sql(f"DESCRIBE DETAIL {sql_name(table)}").collect()
        return int(detail["numFiles"])


def _run_engine(spark: SparkSession, merges: Merges, table: Path) -> Run:
    seconds, results = _timed(merge, spark, merges, table)
    return Run(
        seconds,
        _sum(result.metrics for result in results),
        tuple(sorted({result.strategy for result in results})),
        tuple(path for result in results for path in result.touched_files.removed),
    )


def _run_builtin(spark: SparkSession, merges: Merges, table: Path) -> Run:
    seconds, counts = _timed(builtin_merge, spark, merges, table)
    return Run(seconds, _sum(counts))


def builtin_merge(spark: SparkSession, statement: str) -> Mapping[str, int]:
    """Run a MERGE statement as Spark runs it.

    Returns:
        The numbers of rows it updated, deleted and inserted, under the names of Delta's metrics.
    """
    (counts,) = spark.sql(statement).collect()
    return {
        "numTargetRowsUpdated": counts["num_updated_rows"],
        "numTargetRowsDeleted": counts["num_deleted_rows"],
        "numTargetRowsInserted": counts["num_inserted_rows"],
    }


def _timed(
    run: Callable[[SparkSession, str], T], spark: SparkSession, merges: Merges, table: Path
) -> tuple[tuple[float, ...], list[T]]:
    """Return the time of each statement, in seconds, and its result."""
    seconds, given = [], []
    for statement in merges.statements:
        text = statement.into(table)
        began = time.perf_counter()
        given.append(run(spark, text))
        seconds.append(time.perf_counter() - began)
    return tuple(seconds), given


def _copying(touched: Sequence[str]) -> Callable[[SparkSession, Merges, Path], Run]:
    """Return a run that reads these files of the target and writes their rows as plain Parquet."""

    def run(spark: SparkSession, merges: Merges, table: Path) -> Run:
        files = [str(merges.target / unquote(path)) for path in touched]
        began = time.perf_counter()
        spark.read.parquet(*files).write.parquet(str(table / "copied"))
        return Run((time.perf_counter() - began,))

    return run


def _sum(metrics: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for each in metrics:
        total.update(each)
    return total


def fingerprint(rows: DataFrame) -> tuple[str, ...]:
    """Return the number of rows and two checksums over all columns; rows may be in any order."""
    (found,) = rows.selectExpr(*checksums(rows.columns)).collect()
    return tuple(map(str, found))


def checksums(columns: Sequence[str]) -> list[str]:
    """Return the SQL of a fingerprint, which every Spark release evaluates to the same values."""
    # The hash skips nulls, so IS NULL is hashed too: else (1, null) would equal (null, 1).
    hashed = ", ".join(f"{quoted(name)}, {quoted(name)} IS NULL" for name in sorted(columns))
    row = f"xxhash64({hashed})"
    return ["count(*)", f"sum(CAST({row} AS DECIMAL(20, 0)))", f"bit_xor({row})"]
