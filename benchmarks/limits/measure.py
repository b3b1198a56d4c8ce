"""Measures limits: writes the table of each, and runs its merge in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.limits.limit import Limit, LimitMerge
from benchmarks.report import Report, screen_table

if TYPE_CHECKING:
    from rich.table import Table

_PROGRAM = "benchmarks.limits.measured_merge"
_MEMORY = {
    "heap, MiB": "heap_peak_mib",
    "after GC": "heap_after_gc_mib",
    "driver, MiB": "driver_mib",
    "executors": "executors_mib",
    "Python": "python_mib",
}


@dataclass(frozen=True)
class Measured:
    """What was measured of the merge of a limit.

    Attributes:
        limit: The limit.
        size: The size that was measured.
        write_seconds: The time to write the table and the source.
        found: The output of `measured_merge`.
        expected: The values that the merge's metrics must have.
        wrote: Whether the merge added a version to the table.
    """

    limit: Limit
    size: int
    write_seconds: float
    found: Mapping[str, Any]
    expected: Mapping[str, int]
    wrote: bool

    @property
    def error(self) -> str | None:
        """Why the merge failed, or None."""
        return self.found.get("error")

    @property
    def wrong(self) -> list[str]:
        """The metrics that do not have the expected values."""
        metrics = self.found.get("metrics", {})
        return [name for name, count in self.expected.items() if metrics.get(name) != count]

    @property
    def is_good(self) -> bool:
        """Whether the merge gave the expected result, or was refused before it wrote."""
        if self.error is None:
            return not self.wrong and self.wrote
        return self.is_refused

    @property
    def is_refused(self) -> bool:
        """Whether the merge failed before it wrote, with an error that names the limit."""
        return self.found.get("error_class") == "LimitExceededError" and not self.wrote

    @property
    def outcome(self) -> str:
        """The outcome of the merge in a few words."""
        if self.error is not None:
            written = "wrote a version" if self.wrote else "wrote nothing"
            return f"refused, {written}" if self.is_refused else f"FAILED, {written}"
        return f"WRONG: {', '.join(self.wrong)}" if self.wrong else self._rows()

    def _rows(self) -> str:
        counts = {
            word: self.found["metrics"].get(f"numTargetRows{word.title()}")
            for word in ("updated", "deleted", "inserted")
        }
        return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


class LimitsReport(Report[Measured]):
    """Time and memory of the merge of each limit."""

    benchmark = "limits"

    def table(self) -> Table:
        """Return a row for each limit."""
        caption = (
            "heap: peaks in the driver's JVM before and after a garbage collection; "
            "driver, executors, Python: peaks of resident memory"
        )
        table = screen_table(("limit",), ("of", "writing, s", "merge, s", *_MEMORY), caption)
        table.add_column("result")
        for each in self.results:
            memory = [f"{each.found.get(name, 0):,}" for name in _MEMORY.values()]
            seconds = [f"{each.write_seconds:.1f}", f"{each.found.get('merge_seconds', 0):.1f}"]
            table.add_row(each.limit.name, f"{each.size:,}", *seconds, *memory, each.outcome)
        return table

    def content(self) -> Mapping[str, object]:
        """Return all that was measured."""
        limits = [
            {
                "name": each.limit.name,
                "of": each.limit.title,
                "size": each.size,
                "write_seconds": each.write_seconds,
                "wrote": each.wrote,
                "wrong": each.wrong,
                **each.found,
            }
            for each in self.results
        ]
        return {"limits": limits}

    def problem(self) -> str | None:
        """Return the limits whose merges neither completed nor were refused as expected."""
        bad = [each.limit.name for each in self.results if not each.is_good]
        return f"Neither completed nor refused as expected: {', '.join(bad)}." if bad else None


def measured_limit(
    limit: Limit, directory: Path, *, scale: float, driver_memory: str, log: Path
) -> Measured:
    """Measure a limit in a directory that is removed afterwards.

    Args:
        limit: The limit.
        directory: The directory for the tables and Spark's files.
        scale: The fraction of the limit's size.
        driver_memory: The size of the driver's heap, as Spark spells it.
        log: A file for Spark's output.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=f".limit-{limit.name}-") as home:
        started = time.perf_counter()
        size = limit.scaled(scale)
        merge = limit.write(Path(home), size)
        write_seconds = round(time.perf_counter() - started, 1)
        before = _versions(merge.target)
        found = _run(merge, Path(home), driver_memory, log)
        wrote = _versions(merge.target) != before
        return Measured(limit, size, write_seconds, found, merge.expected, wrote)


def _run(merge: LimitMerge, home: Path, driver_memory: str, log: Path) -> Mapping[str, Any]:
    gc_log = home / "gc.log"
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": f"-Xlog:gc:file={gc_log}:uptime:filecount=0",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        **merge.conf,
    }
    job = {"statement": merge.statement, "conf": conf, "gc_log": str(gc_log)}
    with log.open("a", encoding="utf-8") as printed:
        ran = subprocess.run(
            [sys.executable, "-m", _PROGRAM],
            input=json.dumps(job),
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            cwd=home,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        )
    if ran.returncode == 0 and ran.stdout:
        found: Mapping[str, Any] = json.loads(ran.stdout)
        return found
    return {"error": f"The process ended with exit code {ran.returncode}; its output is in {log}."}


def _versions(table: Path) -> set[str]:
    return {file.name for file in (table / "_delta_log").glob("*.json")}
