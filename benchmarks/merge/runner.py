"""Measures cases: the engine and its peers take turns, each run on a fresh clone of the target."""

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
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from benchmarks.data import Workspace, clone, session_options, sql_name
from benchmarks.merge.built_in import builtin_merge
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


Side = Callable[["SparkSession", Merges, Path], Run]
"""Runs a case's statements, or a substitute for them, on a clone of its target."""


@dataclass(frozen=True)
class CaseResult:
    """What was measured of one case.

    Attributes:
        case: The case.
        deletion_vectors: Whether the target has deletion vectors enabled.
        runs: The timed runs of each side, in order.
        files_at_end: How many files each side's table has after the last run.
        fingerprints: The `fingerprint` of each side's table after the last run.
        rows_equal: Whether all sides' tables hold the same rows after the last run and all report
            the same numbers of changed rows; None if the engine ran alone.
    """

    case: Case
    deletion_vectors: bool
    runs: Mapping[str, Sequence[Run]]
    files_at_end: Mapping[str, int]
    fingerprints: Mapping[str, tuple[object, ...]]
    rows_equal: bool | None

    def median_seconds(self, side: str) -> float | None:
        """Return the median time of a side's runs, or None if it did not run."""
        return median(run.seconds for run in self.runs[side]) if side in self.runs else None

    @property
    def ratio(self) -> float | None:
        """The median time of built-in MERGE divided by the median time of the engine."""
        engine, builtin = self.median_seconds(ENGINE), self.median_seconds(BUILTIN)
        return builtin / engine if builtin is not None and engine else None

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
    peers: Mapping[str, Side] = MappingProxyType({}),
) -> CaseResult:
    """Measure one case.

    Each side first runs one merge untimed, then all merges `runs` times, each time on a fresh
    clone. Only merges are timed.

    Args:
        case: The case.
        workspace: Where its tables are kept.
        runs: How many timed runs each side has.
        turn: Which side begins the first run; each later run begins with the next side.
        peers: Further sides that take turns with the engine, by their names.
    """
    with clones_of(case, workspace) as clones:
        prepared = clones.prepared
        sides: dict[str, Side] = {ENGINE: _run_engine}
        if case.with_builtin:
            sides[BUILTIN] = _run_builtin
        sides.update(peers)
        one = replace(prepared, statements=prepared.statements[:1])
        warm_up = {name: clones.run(side, one, f"{name}-0") for name, side in sides.items()}
        if case.with_rewrite:
            sides[REWRITE] = _copying(warm_up[ENGINE].touched)
            clones.run(sides[REWRITE], one, f"{REWRITE}-0")
        order = list(sides)
        done: dict[str, list[Run]] = {name: [] for name in order}
        for number in range(1, runs + 1):
            clones.clear()
            first = (turn + number) % len(order)
            for name in order[first:] + order[:first]:
                done[name].append(clones.run(sides[name], prepared, f"{name}-{number}"))
        merged = [name for name in order if name != REWRITE]
        last = {name: clones.directory / f"{name}-{runs}" for name in merged}
        spark = workspace.spark
        held = {name: fingerprint(_compared(spark, prepared, last[name])) for name in merged}
        return CaseResult(
            case,
            workspace.deletion_vectors,
            done,
            {name: _files_of(spark, table) for name, table in last.items()},
            held,
            _are_equal(done, held) if len(held) > 1 else None,
        )


@dataclass(frozen=True)
class Clones:
    """Clones of a case's target.

    Attributes:
        spark: The session.
        prepared: The case's tables and statements.
        directory: Where the clones are.
    """

    spark: SparkSession
    prepared: Merges
    directory: Path

    def run(self, side: Side, merges: Merges, name: str) -> Run:
        """Run a side on a new clone of this name."""
        table = self.directory / name
        clone(self.prepared.target, table)
        _files_of(
            self.spark, table
        )  # reads the log, so that each run starts with a cached snapshot
        return side(self.spark, merges, table)

    def clear(self) -> None:
        """Remove the clones that are left."""
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
        yield Clones(workspace.spark, prepared, Path(directory))


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


def _timed(
    run: Callable[[SparkSession, str], T], spark: SparkSession, merges: Merges, table: Path
) -> tuple[tuple[float, ...], list[T]]:
    """Run each statement; return its time, in seconds, and its result."""
    seconds, given = [], []
    for statement in merges.statements:
        text = statement.into(table)
        began = time.perf_counter()
        given.append(run(spark, text))
        seconds.append(time.perf_counter() - began)
    return tuple(seconds), given


def _copying(touched: Sequence[str]) -> Side:
    """Return a side that reads these files of the target and writes their rows as plain Parquet."""

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


def _files_of(spark: SparkSession, table: Path) -> int:
    (detail,) = spark.sql(f"DESCRIBE DETAIL {sql_name(table)}").collect()
    return int(detail["numFiles"])


def _compared(spark: SparkSession, merges: Merges, table: Path) -> DataFrame:
    rows = spark.read.format("delta").load(str(table))
    return rows if merges.compared is None else rows.where(merges.compared)


def _are_equal(
    runs: Mapping[str, Sequence[Run]], fingerprints: Mapping[str, tuple[object, ...]]
) -> bool:
    """Return whether all sides' tables hold the same rows, and all report the same changes."""
    seen = [
        (held, [runs[side][-1].metrics[name] for name in _ROWS_CHANGED])
        for side, held in fingerprints.items()
    ]
    return all(each == seen[0] for each in seen)


def fingerprint(rows: DataFrame) -> tuple[object, ...]:
    """Count the rows and compute two checksums over all columns, whatever the rows' order."""
    (found,) = rows.selectExpr(*checksums(rows.columns)).collect()
    return tuple(found)


def checksums(columns: Sequence[str]) -> list[str]:
    """Return the SQL of a fingerprint, which every Spark release evaluates to the same values."""
    # The hash skips nulls, so IS NULL is hashed too: else (1, null) would equal (null, 1).
    hashed = ", ".join(f"{quoted(name)}, {quoted(name)} IS NULL" for name in sorted(columns))
    row = f"xxhash64({hashed})"
    return ["count(*)", f"sum(CAST({row} AS DECIMAL(20, 0)))", f"bit_xor({row})"]
