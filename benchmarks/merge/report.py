"""The report of the cases of MERGE: the engine beside Delta's own."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from benchmarks.data.tables import Workspace
from benchmarks.merge.runner import BUILTIN, ENGINE, REWRITE, CaseResult
from benchmarks.report import Report, cell, screen_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

# By whether the table has deletion vectors: how the legend calls it, and its color.
_WAYS = {True: ("with deletion vectors", "#5b3fd6"), False: ("copy on write", "#0b7285")}


class MergeReport(Report[CaseResult]):
    """A result for each case, with and without deletion vectors."""

    benchmark = "merge"

    def geometric_means(self) -> dict[str, float]:
        """Return the mean ratios of Delta's cases, with deletion vectors `on` and `off`."""
        means = {}
        for vectors in (True, False):
            ratios = [
                ratio
                for result in self.results
                if result.case.is_deltas and result.deletion_vectors is vectors
                if (ratio := result.ratio(BUILTIN)) is not None
            ]
            if ratios:
                means[_on_or_off(vectors)] = geometric_mean(ratios)
        return means

    def content(self) -> Mapping[str, object]:
        """Return the results, and the means of the ratios."""
        return {
            "geometric_mean_of_ratios": self.geometric_means(),
            "cases": [_as_json(result) for result in self.results],
        }

    def problem(self) -> str | None:
        """Return the names of the cases whose rows differ."""
        differing = [each.case.name for each in self.results if each.differing]
        return f"Rows differ from built-in MERGE's: {', '.join(differing)}." if differing else None

    def table(self) -> Table:
        """Return the results for a screen; a ratio above 1 says that the engine was faster."""
        table = screen_table(
            ("case",),
            (
                "deletion\nvectors",
                "deltaweave\nseconds",
                "built-in\nseconds",
                "ratio",
                "files\ntouched/\nread/all",
                "rows\nequal",
            ),
            self._means_in_words(),
        )
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
                cell(result.median_seconds(ENGINE)),
                cell(result.median_seconds(BUILTIN)),
                cell(result.ratio(BUILTIN)),
                "/".join(f"{count:,}" for count in files),
                {True: "yes", False: "NO", None: "-"}[result.rows_equal],
            )
        return table

    def _means_in_words(self) -> str | None:
        means = self.geometric_means().items()
        words = [f"{mean:.2f} with deletion vectors {vectors}" for vectors, mean in means]
        return f"Geometric mean of Delta's cases: {', '.join(words)}" if words else None

    def draw(self, figure: Figure) -> None:
        """Draw how many times as fast the engine was in each case."""
        ratios = {
            (result.case.title or result.case.label, result.deletion_vectors): ratio
            for result in self.results
            if (ratio := result.ratio(BUILTIN)) is not None
        }
        cases = list(dict.fromkeys(title for title, _ in ratios))
        ways = [vectors for vectors in (True, False) if any(each is vectors for _, each in ratios)]
        thickness = 0.8 / max(len(ways), 1)
        figure.set_size_inches(9, 1.6 + 0.45 * len(cases))
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


def settings_of(workspace: Workspace, runs: int) -> dict[str, object]:
    """Return what the numbers depend on beside the environment.

    Args:
        workspace: Where the tables are kept.
        runs: How many timed runs each side has.
    """
    return {"scale": workspace.scale, "runs": runs, "key_type": workspace.key_type}


def _as_json(result: CaseResult) -> dict[str, Any]:
    metrics = result.last.metrics
    content: dict[str, Any] = {
        "name": result.case.name,
        "deletion_vectors": result.deletion_vectors,
        "in_geometric_mean": result.case.is_deltas,
        "engine_seconds": result.median_seconds(ENGINE),
        "builtin_seconds": result.median_seconds(BUILTIN),
        "ratio": result.ratio(BUILTIN),
        "run_seconds": {side: [run.seconds for run in runs] for side, runs in result.runs.items()},
        "phase_seconds": result.phase_seconds,
        "strategy": ", ".join(result.last.strategies),
        "files_before_skipping": metrics["numTargetFilesBeforeSkipping"],
        "files_after_skipping": metrics["numTargetFilesAfterSkipping"],
        "files_touched": len(result.last.touched),
        "files_at_end": {side: table.files for side, table in result.tables.items()},
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


def _on_or_off(vectors: bool) -> str:
    return "on" if vectors else "off"
