"""Measures merge on read: the methods to read a base with its changes, and to rematerialize it.

The base and its changes are those of web_returns in `tables`. Each measurement has its own session.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, get_args

from pyspark.sql import functions as F

from assets import tpcds
from benchmarks.data.tables import Workspace, clone, compute, sql_name
from benchmarks.merge.runner import builtin_merge, fingerprint
from benchmarks.merge_on_read.tables import changed_table, returns_table
from benchmarks.report import Report, environment_of, screen_table
from deltaweave.changes.merge_on_read import MergeOnReadTable, ViewMethod
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession
    from rich.table import Table

READ, WRITE = "read", "write"
PLAIN, BUILTIN = "plain_scan", "builtin_merge"
_PEERS = {PLAIN: "a plain scan of the base", BUILTIN: "built-in MERGE"}
METHODS: tuple[ViewMethod, ...] = get_args(ViewMethod)
STRATEGIES = ("merge", "overwrite")

Measurement = tuple[str, str, Callable[["SparkSession", Path], float]]
"""Operation, method, and the function that measures it, in seconds, in an empty directory."""


@dataclass(frozen=True)
class Timing:
    """The times of one method.

    Attributes:
        operation: `READ` or `WRITE`.
        method: How rows are read, or by what changes are written.
        seconds: The time of each timed run.
    """

    operation: str
    method: str
    seconds: Sequence[float]

    @property
    def label(self) -> str:
        """The method in words."""
        return _PEERS.get(self.method, self.method)


@dataclass(frozen=True, kw_only=True)
class ReadReport(Report[Timing]):
    """The times of all methods.

    Attributes:
        changed: The share of the base's rows that have a change.
        rows: Rows of the base.
        changes: Rows of the changeset.
        rows_equal: Whether all methods of reading and all strategies give the same rows.
    """

    benchmark = "read"

    changed: float
    rows: int
    changes: int
    rows_equal: bool

    def over(self, timing: Timing) -> float:
        """Return the ratio of a median to a plain scan of the base, or to built-in MERGE."""
        peer = PLAIN if timing.operation == READ else BUILTIN
        (other,) = (each for each in self.results if each.method == peer)
        return median(timing.seconds) / median(other.seconds)

    def table(self) -> Table:
        """Return the medians, and their ratios to a plain scan or to built-in MERGE."""
        caption = (
            f"{self.changes:,} changes to {self.rows:,} rows; rows equal: "
            f"{'yes' if self.rows_equal else 'NO'}"
        )
        table = screen_table(("operation", "method"), ("seconds", "times its peer"), caption)
        for each in self.results:
            numbers = (median(each.seconds), self.over(each))
            table.add_row(each.operation, each.label, *(f"{number:.2f}" for number in numbers))
        return table

    def content(self) -> Mapping[str, object]:
        """Return all times."""
        return {
            "changed": self.changed,
            "rows": self.rows,
            "changes": self.changes,
            "rows_equal": self.rows_equal,
            "measurements": [
                {
                    "operation": each.operation,
                    "method": each.method,
                    "seconds": median(each.seconds),
                    "over_peer": self.over(each),
                    "run_seconds": list(each.seconds),
                }
                for each in self.results
            ],
        }

    def problem(self) -> str | None:
        """Return whether methods disagree."""
        if self.rows_equal:
            return None
        return "The ways of reading and writing do not end with the same rows."

    def draw(self, figure: Figure) -> None:
        """Draw the medians as bars."""
        axes = figure.subplots()
        labels = [f"{each.operation}: {each.label}" for each in self.results]
        colors = ["C0" if each.operation == READ else "C1" for each in self.results]
        bars = axes.barh(labels, [median(each.seconds) for each in self.results], color=colors)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xlabel("seconds")
        axes.set_title(f"Merge on read, {self.changed:.0%} of {self.rows:,} rows changed")


def measure_reads(workspace: Workspace, *, changed: float, runs: int) -> ReadReport:
    """Measure each method and strategy `runs` times, in turn, after one untimed run.

    The times are also appended to the Delta table `timings` in the workspace's directory.

    Args:
        workspace: Where the tables are kept.
        changed: The share of rows that have a change.
        runs: How many timed runs each method and strategy has.
    """
    home = changed_table(workspace, changed)
    spark = workspace.spark
    table = returns_table(spark, home / "base", home / "changes")
    measurements = list(_measurements(home))
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(runs + 1):
        turned = measurements[number % len(measurements) :]
        for operation, method, measure in turned + measurements[: number % len(measurements)]:
            with tempfile.TemporaryDirectory(dir=workspace.directory, prefix=".clones-") as empty:
                took = measure(spark.newSession(), Path(empty))
            if number:
                seconds.setdefault((operation, method), []).append(took)
    timings = [Timing(*named, times) for named, times in seconds.items()]
    _append(timings, workspace, changed)
    return ReadReport(
        {"scale": workspace.scale, "runs": runs},
        environment_of(spark),
        timings,
        changed=changed,
        rows=table.base.row_count(),
        changes=table.pending().rows,
        rows_equal=_are_equal(table, home, workspace.directory),
    )


def _append(timings: Sequence[Timing], workspace: Workspace, changed: float) -> None:
    """Append the times to the Delta table `timings` in the workspace's directory."""
    rows = [
        (each.operation, each.method, number, seconds)
        for each in timings
        for number, seconds in enumerate(each.seconds, 1)
    ]
    measured = workspace.spark.createDataFrame(
        rows, "operation STRING, method STRING, run INT, seconds DOUBLE"
    ).withColumns(
        {
            "scale": F.lit(workspace.scale),
            "changed": F.lit(changed),
            "measured_at": F.lit(datetime.now(timezone.utc)),
        }
    )
    measured.write.format("delta").mode("append").save(str(workspace.directory / "timings"))


def _measurements(home: Path) -> Iterator[Measurement]:
    base, changes = home / "base", home / "changes"

    def read(method: ViewMethod | None) -> Callable[[SparkSession, Path], float]:
        def measure(spark: SparkSession, _: Path) -> float:
            table = returns_table(spark, base, changes)
            began = time.perf_counter()
            rows = table.read_optimized() if method is None else table.read(method)
            compute(rows)
            return time.perf_counter() - began

        return measure

    def rematerialize(strategy: str) -> Callable[[SparkSession, Path], float]:
        def measure(spark: SparkSession, empty: Path) -> float:
            clone(base, empty / "base")
            table = returns_table(spark, empty / "base", changes)
            began = time.perf_counter()
            table.rematerialize(strategy)  # type: ignore[arg-type]
            return time.perf_counter() - began

        return measure

    def by_builtin(spark: SparkSession, empty: Path) -> float:
        clone(base, empty / "base")
        return _builtin(spark, empty / "base", changes)

    yield READ, PLAIN, read(None)
    for method in METHODS:
        yield READ, method, read(method)
    yield WRITE, BUILTIN, by_builtin
    for strategy in STRATEGIES:
        yield WRITE, strategy, rematerialize(strategy)


def _builtin(spark: SparkSession, base: Path, changes: Path) -> float:
    """Return the time of Delta's own MERGE of the same changes, in seconds."""
    newest = spark.read.format("delta").load(str(changes)).where("_cdc_batch > 1")
    values = [
        F.col("_cdc_values")[name].alias(name)
        for name in tpcds.schema().names
        if name not in tpcds.KEY
    ]
    newest = newest.select(
        *tpcds.KEY, *values, F.col("_cdc_sequence"), F.col("_cdc_operation").alias("op")
    )
    newest.createOrReplaceTempView("bench_changes")
    names = [*tpcds.schema().names, "_cdc_sequence"]
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in tpcds.KEY)
    assigned = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
    columns, given = (", ".join(f"{side}{quoted(name)}" for name in names) for side in ("", "s."))
    text = (
        f"MERGE INTO {sql_name(base)} t USING bench_changes s ON {same} "
        "WHEN MATCHED AND s.op = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assigned} "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({given})"
    )
    began = time.perf_counter()
    builtin_merge(spark, text)
    return time.perf_counter() - began


def _are_equal(table: MergeOnReadTable, home: Path, directory: Path) -> bool:
    """Return whether all methods, all strategies and built-in MERGE give the same rows."""
    found = [fingerprint(table.read(method)) for method in METHODS]
    with tempfile.TemporaryDirectory(dir=directory, prefix=".clones-") as clones:
        for strategy in STRATEGIES:
            copy = Path(clones) / strategy
            clone(home / "base", copy)
            rematerialized = returns_table(table.spark, copy, home / "changes")
            rematerialized.rematerialize(strategy)  # type: ignore[arg-type]
            found.append(fingerprint(rematerialized.read_optimized()))
        copy = Path(clones) / BUILTIN
        clone(home / "base", copy)
        _builtin(table.spark, copy, home / "changes")
        merged = returns_table(table.spark, copy, home / "changes")
        found.append(fingerprint(merged.read_optimized()))
    return all(each == found[0] for each in found)
