"""The results of a benchmark: a table for the screen, JSON, and a chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from benchmarks.data import Workspace
from benchmarks.merge.runner import BUILTIN, ENGINE, REWRITE, CaseResult
from deltaweave import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Report:
    """The results of one benchmark and its environment.

    Attributes:
        settings: The benchmark's settings by name, such as scale and runs.
        environment: Versions and the machine's size, by name.
        results: A result for each case, with and without deletion vectors.
    """

    settings: Mapping[str, object]
    environment: Mapping[str, object]
    results: Sequence[CaseResult]

    def with_result(self, result: CaseResult) -> Report:
        """Return the report with one more result."""
        return replace(self, results=(*self.results, result))

    def geometric_means(self) -> dict[str, float]:
        """Return the geometric mean ratio of Delta's cases, by deletion vectors `on` and `off`."""
        means = {}
        for vectors in (True, False):
            ratios = [
                result.ratio
                for result in self.results
                if result.case.is_deltas and result.deletion_vectors is vectors and result.ratio
            ]
            if ratios:
                means[_on_or_off(vectors)] = geometric_mean(ratios)
        return means

    def write_json(self, path: Path) -> None:
        """Write all results as JSON."""
        content = {
            "benchmark": "merge",
            **self.settings,
            "environment": self.environment,
            "geometric_mean_of_ratios": self.geometric_means(),
            "cases": [_as_json(result) for result in self.results],
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def table(self) -> Table:
        """Lay out the results for a screen; a ratio above 1 says that the engine was faster."""
        table = Table(
            box=box.SIMPLE, padding=0, caption=self._means_in_words(), caption_justify="left"
        )
        table.add_column("case", vertical="bottom")
        for heading in (
            "deletion\nvectors",
            "deltaweave\nseconds",
            "built-in\nseconds",
            "ratio",
            "files\ntouched/\nread/all",
            "rows\nequal",
        ):
            table.add_column(heading, justify="right", vertical="bottom")
        for result in self.results:
            metrics = result.last.metrics
            files = (
                len(result.last.touched),
                metrics["numTargetFilesAfterSkipping"],
                metrics["numTargetFilesBeforeSkipping"],
            )
            table.add_row(
                _label(result),
                _on_or_off(result.deletion_vectors),
                _cell(result.median_seconds(ENGINE)),
                _cell(result.median_seconds(BUILTIN)),
                _cell(result.ratio),
                "/".join(f"{count:,}" for count in files),
                {True: "yes", False: "NO", None: "-"}[result.rows_equal],
            )
        return table

    def _means_in_words(self) -> str | None:
        means = self.geometric_means().items()
        words = [f"{mean:.2f} with deletion vectors {vectors}" for vectors, mean in means]
        return f"Geometric mean of Delta's cases: {', '.join(words)}" if words else None

    def plot(self, path: Path) -> None:
        """Draw how many times as fast the engine was in each case, in the format of the suffix."""
        from matplotlib.figure import Figure  # not pyplot, which wants a screen

        ratios = {
            (result.case.title or result.case.label, result.deletion_vectors): result.ratio
            for result in self.results
            if result.ratio is not None
        }
        cases = list(dict.fromkeys(title for title, _ in ratios))
        ways = [vectors for vectors in (True, False) if any(each is vectors for _, each in ratios)]
        thickness = 0.8 / max(len(ways), 1)
        figure = Figure(figsize=(9, 1.6 + 0.45 * len(cases)), layout="constrained")
        axes = figure.subplots()
        for number, vectors in enumerate(ways):
            lengths = [ratios.get((case, vectors), 0) for case in cases]
            places = [place + number * thickness for place in range(len(cases))]
            name, color = _WAYS[vectors]
            bars = axes.barh(places, lengths, thickness * 0.92, label=name, color=color)
            axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        middle = (len(ways) - 1) * thickness / 2
        axes.set_yticks([place + middle for place in range(len(cases))], cases)
        axes.axvline(1, color="0.3", linewidth=0.8)
        axes.invert_yaxis()
        axes.margins(x=0.08, y=0.02)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower right", frameon=False)
        axes.set_xlabel("times as fast as Delta's own MERGE (1: as fast)")
        axes.set_title(f"MERGE into web_returns, scale {self.settings['scale']:g}", loc="left")
        figure.savefig(path, dpi=120)


# By whether the table has deletion vectors: how the legend calls it, and its color.
_WAYS = {True: ("with deletion vectors", "#5b3fd6"), False: ("copy on write", "#0b7285")}


def empty_report(workspace: Workspace, runs: int) -> Report:
    """Build the report of a benchmark that is about to begin.

    It contains what the numbers depend on, but nothing that identifies the machine.

    Args:
        workspace: The workspace of the tables, with or without deletion vectors.
        runs: How many timed runs each side will have.
    """
    settings = {
        "scale": workspace.scale,
        "runs": runs,
        "key_type": workspace.key_type,
        "log_files": workspace.log_files,
    }
    return Report(settings, environment_of(workspace.spark), ())


def environment_of(spark: SparkSession) -> dict[str, object]:
    """Return versions and the machine's size, by name."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session has a JVM"
    return {
        "deltaweave": __version__,
        "spark": spark.version,
        "delta": version("delta-spark"),
        "java": jvm.java.lang.System.getProperty("java.version"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "spark_master": spark.sparkContext.master,
        "driver_memory": spark.sparkContext.getConf().get("spark.driver.memory"),
    }


def _as_json(result: CaseResult) -> dict[str, Any]:
    metrics = result.last.metrics
    content: dict[str, Any] = {
        "name": result.case.name,
        "deletion_vectors": result.deletion_vectors,
        "in_geometric_mean": result.case.is_deltas,
        "engine_seconds": result.median_seconds(ENGINE),
        "builtin_seconds": result.median_seconds(BUILTIN),
        "ratio": result.ratio,
        "run_seconds": {side: [run.seconds for run in runs] for side, runs in result.runs.items()},
        "phase_seconds": result.phase_seconds,
        "strategy": ", ".join(result.last.strategies),
        "files_before_skipping": metrics["numTargetFilesBeforeSkipping"],
        "files_after_skipping": metrics["numTargetFilesAfterSkipping"],
        "files_touched": len(result.last.touched),
        "files_at_end": dict(result.files_at_end),
        "rows": {
            "source": metrics["numSourceRows"],
            "updated": metrics["numTargetRowsUpdated"],
            "deleted": metrics["numTargetRowsDeleted"],
            "inserted": metrics["numTargetRowsInserted"],
            "copied": metrics["numTargetRowsCopied"],
        },
        "rows_equal": result.rows_equal,
    }
    if REWRITE in result.runs:
        content["rewrite_seconds"] = result.median_seconds(REWRITE)
    if len(result.last.merge_seconds) > 1:
        content["merge_seconds_of_last_run"] = {
            side: runs[-1].merge_seconds for side, runs in result.runs.items()
        }
    return content


def _label(result: CaseResult) -> str:
    copied = result.median_seconds(REWRITE)
    return result.case.label + (f" ({copied:.2f} s)" if copied is not None else "")


def _cell(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _on_or_off(vectors: bool) -> str:
    return "on" if vectors else "off"
