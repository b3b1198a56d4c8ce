"""Measures merge on read: the methods to read a base with its changes, and to rematerialize it.

The base and its changes are those of `changed_returns`. Each measurement has its own session.
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
from benchmarks.data import Workspace, changed_table, clone, returns_table, sql_name
from benchmarks.merge import builtin_merge, fingerprint
from deltaweave.changes.merge_on_read import MergeOnReadTable, ViewMethod
from deltaweave.delta.jvm import compute
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ, WRITE = "read", "write"
PLAIN, BUILTIN = "plain_scan", "builtin_merge"
METHODS: tuple[ViewMethod, ...] = get_args(ViewMethod)
STRATEGIES = ("merge", "overwrite")

Measurement = tuple[str, str, Callable[["SparkSession", Path], float]]
"""Operation, method, and the function that measures it, in seconds, in an empty directory."""


@dataclass(frozen=True)
class Timings:
    """The results.

    Attributes:
        changed: The share of the base's rows that have a change.
        rows: Rows of the base.
        changes: Rows of the changeset.
        seconds: The times of the runs, by operation and method.
        rows_equal: Whether all methods of reading and all strategies give the same rows.
    """

    changed: float
    rows: int
    changes: int
    seconds: Mapping[tuple[str, str], Sequence[float]]
    rows_equal: bool

    def median(self, operation: str, method: str) -> float:
        """Return the median time of an operation by a method, in seconds."""
        return median(self.seconds[operation, method])

    def over(self, operation: str, method: str) -> float:
        """Return the ratio of the method's median to a plain scan, or to built-in MERGE."""
        peer = PLAIN if operation == READ else BUILTIN
        return self.median(operation, method) / self.median(operation, peer)

    def rows_of_table(self) -> list[tuple[str, str, int, float]]:
        """Return operation, method, run and seconds of each run."""
        return [
            (operation, method, number, seconds)
            for (operation, method), runs in self.seconds.items()
            for number, seconds in enumerate(runs, 1)
        ]


def measure_reads(workspace: Workspace, *, changed: float, runs: int) -> Timings:
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
    timings = Timings(
        changed,
        table.base.row_count(),
        table.pending().rows,
        seconds,
        _are_equal(table, home, workspace.directory),
    )
    measured = spark.createDataFrame(
        timings.rows_of_table(), "operation STRING, method STRING, run INT, seconds DOUBLE"
    ).withColumns(
        {
            "scale": F.lit(workspace.scale),
            "changed": F.lit(changed),
            "measured_at": F.lit(datetime.now(timezone.utc)),
        }
    )
    measured.write.format("delta").mode("append").save(str(workspace.directory / "timings"))
    return timings


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
