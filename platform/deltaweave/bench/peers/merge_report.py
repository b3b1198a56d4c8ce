"""The report of `deltaweave bench peers`: the engine's times and Apache Iceberg's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median

from rich import box
from rich.table import Table

from deltaweave.bench.data import TARGET_FILES, Workspace
from deltaweave.bench.merge import ENGINE, Case, measure
from deltaweave.bench.peers import iceberg
from deltaweave.bench.peers.iceberg import MERGE_ON_READ, MODES
from deltaweave.bench.peers.peer_process import PeerProcess


@dataclass(frozen=True)
class PeerResult:
    """The results of one case.

    Attributes:
        name: The case's name in JSON.
        label: The case's name in tables.
        mode: How Iceberg's table writes; for merge-on-read, ours has deletion vectors.
        engine_seconds: How long each timed run of the engine took.
        iceberg_seconds: How long each timed run of Iceberg took.
        rows_equal: Whether both tables hold the same rows after the last run.
    """

    name: str
    label: str
    mode: str
    engine_seconds: Sequence[float]
    iceberg_seconds: Sequence[float]
    rows_equal: bool

    @property
    def ratio(self) -> float:
        """The median time of Iceberg divided by the median time of the engine."""
        return median(self.iceberg_seconds) / median(self.engine_seconds)


@dataclass(frozen=True)
class PeersReport:
    """The results of all cases and their environment.

    Attributes:
        settings: The benchmark's settings by name, such as scale and runs.
        environment: Versions and the machine's size, by name; Iceberg's versions under `iceberg`.
        results: A result for each case and mode.
    """

    settings: Mapping[str, object]
    environment: Mapping[str, object]
    results: Sequence[PeerResult] = ()

    def with_result(self, result: PeerResult) -> PeersReport:
        """The report with one more result."""
        return replace(self, results=(*self.results, result))

    def geometric_means(self) -> dict[str, float]:
        """The geometric means of the ratios, by mode."""
        ratios = {
            mode: [result.ratio for result in self.results if result.mode == mode] for mode in MODES
        }
        return {mode: geometric_mean(found) for mode, found in ratios.items() if found}

    def write_json(self, path: Path) -> None:
        """Write all results as JSON."""
        content = {
            "benchmark": "peers",
            **self.settings,
            "environment": self.environment,
            "geometric_mean_of_ratios": self.geometric_means(),
            "cases": [
                {
                    "name": result.name,
                    "mode": result.mode,
                    "deletion_vectors": has_deletion_vectors(result.mode),
                    "engine_seconds": median(result.engine_seconds),
                    "iceberg_seconds": median(result.iceberg_seconds),
                    "ratio": result.ratio,
                    "run_seconds": {
                        "engine": list(result.engine_seconds),
                        "iceberg": list(result.iceberg_seconds),
                    },
                    "rows_equal": result.rows_equal,
                }
                for result in self.results
            ],
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def table(self) -> Table:
        """The results for a screen; a ratio above 1 says that the engine was faster."""
        table = Table(
            box=box.SIMPLE, padding=0, caption=self._means_in_words(), caption_justify="left"
        )
        table.add_column("case", vertical="bottom")
        table.add_column("mode", vertical="bottom")
        for heading in ("deltaweave\nseconds", "Iceberg\nseconds", "ratio", "rows\nequal"):
            table.add_column(heading, justify="right", vertical="bottom")
        for result in self.results:
            table.add_row(
                result.label,
                result.mode,
                f"{median(result.engine_seconds):.2f}",
                f"{median(result.iceberg_seconds):.2f}",
                f"{result.ratio:.2f}",
                "yes" if result.rows_equal else "NO",
            )
        return table

    def _means_in_words(self) -> str | None:
        means = self.geometric_means().items()
        words = [f"{mean:.2f} beside {mode}" for mode, mean in means]
        return f"Geometric mean of the ratios: {', '.join(words)}" if words else None


def has_deletion_vectors(mode: str) -> bool:
    """Whether our table has deletion vectors when it is compared with Iceberg's of this mode."""
    return mode == MERGE_ON_READ


def compare(
    case: Case, mode: str, workspace: Workspace, process: PeerProcess, *, runs: int
) -> PeerResult:
    """Measure one of Delta's cases on the engine, then on Iceberg.

    Both tables have the same rows in the same number of files.

    Args:
        case: The case.
        mode: How Iceberg's table writes.
        workspace: Where our tables are kept; with deletion vectors if the mode needs them.
        process: The process that runs Iceberg.
        runs: How many timed runs each side has, after an untimed one.

    Raises:
        PeerError: Iceberg failed.
    """
    ours = measure(replace(case, with_builtin=False), workspace, runs=runs)
    merges = case.prepare(workspace)
    job = iceberg.merge_job(workspace.spark, merges, workspace.parts(), mode, runs)
    theirs = iceberg.measure(process, job)
    assert theirs.files_before == TARGET_FILES, "a task for each part wrote a file"
    return PeerResult(
        case.name,
        case.label,
        mode,
        [run.seconds for run in ours.runs[ENGINE]],
        theirs.seconds,
        tuple(map(str, ours.fingerprints[ENGINE])) == theirs.checksums,
    )
