"""The report of the command `peers`: the times of the engine, Apache Iceberg and delta-rs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median

from rich import box
from rich.table import Table

from benchmarks.peers.iceberg import ICEBERG, MERGE_ON_READ, MODES

DELTA_RS = "delta-rs"
TITLES: Mapping[str, str] = {ICEBERG.name: ICEBERG.title, DELTA_RS: DELTA_RS}
"""The peers' names in tables, by their names on the command line and in JSON."""


@dataclass(frozen=True)
class PeerRuns:
    """The timed runs of one peer.

    Attributes:
        seconds: How long each run took.
        rows_equal: Whether its table holds the engine's rows after the last run.
    """

    seconds: Sequence[float]
    rows_equal: bool


@dataclass(frozen=True)
class PeerResult:
    """The results of one case.

    Attributes:
        name: The case's name in JSON.
        label: The case's name in tables.
        mode: How Iceberg's table writes; for merge-on-read, ours has deletion vectors. delta-rs
            has copy-on-write alone.
        engine_seconds: How long each timed run of the engine took.
        peers: The runs of each peer, by its name.
        is_deltas: Whether the case is one of Delta's, which the means cover.
    """

    name: str
    label: str
    mode: str
    engine_seconds: Sequence[float]
    peers: Mapping[str, PeerRuns]
    is_deltas: bool = True

    def ratio(self, peer: str) -> float | None:
        """Return a peer's median time divided by the engine's; None if the peer did not run."""
        if peer not in self.peers:
            return None
        return median(self.peers[peer].seconds) / median(self.engine_seconds)

    @property
    def differing(self) -> list[str]:
        """The titles of the peers whose rows are not the engine's."""
        return [TITLES[peer] for peer, runs in self.peers.items() if not runs.rows_equal]


@dataclass(frozen=True)
class PeersReport:
    """The results of all cases and their environment.

    Attributes:
        settings: The benchmark's settings by name, such as scale and runs.
        environment: Versions and the machine's size, by name; each peer's versions under its name.
        results: A result for each case and mode.
    """

    settings: Mapping[str, object]
    environment: Mapping[str, object]
    results: Sequence[PeerResult] = ()

    def with_result(self, result: PeerResult) -> PeersReport:
        """Return the report with one more result."""
        return replace(self, results=(*self.results, result))

    def geometric_means(self) -> dict[str, dict[str, float]]:
        """Return the geometric means of the ratios in Delta's cases, by peer and mode."""
        return {
            peer: {mode: geometric_mean(ratios) for mode, ratios in modes.items()}
            for peer, modes in self._ratios().items()
        }

    def lowest(self) -> dict[str, dict[str, float]]:
        """Return the lowest ratios in Delta's cases, by peer and mode."""
        return {
            peer: {mode: min(ratios) for mode, ratios in modes.items()}
            for peer, modes in self._ratios().items()
        }

    def write_json(self, path: Path) -> None:
        """Write all results as JSON."""
        content = {
            "benchmark": "peers",
            **self.settings,
            "environment": self.environment,
            "geometric_mean_of_ratios": self.geometric_means(),
            "lowest_ratio": self.lowest(),
            "cases": [_as_json(result) for result in self.results],
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def table(self) -> Table:
        """Lay out the results for a screen; a ratio above 1 says that the engine was faster."""
        table = Table(
            box=box.SIMPLE, padding=0, caption=self._means_in_words(), caption_justify="left"
        )
        table.add_column("case", vertical="bottom")
        table.add_column("mode", vertical="bottom")
        peers = self._peers()
        headings = [heading for peer in peers for heading in (f"{TITLES[peer]}\nseconds", "ratio")]
        for heading in ("deltaweave\nseconds", *headings, "rows\nequal"):
            table.add_column(heading, justify="right", vertical="bottom")
        for result in self.results:
            cells = [cell for peer in peers for cell in _cells(result, peer)]
            equal = "NO" if result.differing else "yes"
            seconds = f"{median(result.engine_seconds):.2f}"
            table.add_row(result.label, result.mode, seconds, *cells, equal)
        return table

    def _peers(self) -> list[str]:
        return [peer for peer in TITLES if any(peer in result.peers for result in self.results)]

    def _ratios(self) -> dict[str, dict[str, list[float]]]:
        ratios: dict[str, dict[str, list[float]]] = {}
        for peer in self._peers():
            for mode in MODES:
                found = [each.ratio(peer) for each in self.results if _counts(each, mode)]
                given = [ratio for ratio in found if ratio is not None]
                if given:
                    ratios.setdefault(peer, {})[mode] = given
        return ratios

    def _means_in_words(self) -> str | None:
        lowest = self.lowest()
        words = [
            f"{mean:.2f} (lowest {lowest[peer][mode]:.2f}) beside {TITLES[peer]}, {mode}"
            for peer, modes in self.geometric_means().items()
            for mode, mean in modes.items()
        ]
        return f"Geometric mean of the ratios: {'; '.join(words)}" if words else None


def has_deletion_vectors(mode: str) -> bool:
    """Return whether our table has deletion vectors when compared with Iceberg's of this mode."""
    return mode == MERGE_ON_READ


def _counts(result: PeerResult, mode: str) -> bool:
    return result.mode == mode and result.is_deltas


def _cells(result: PeerResult, peer: str) -> tuple[str, str]:
    ratio = result.ratio(peer)
    if ratio is None:
        return "-", "-"
    return f"{median(result.peers[peer].seconds):.2f}", f"{ratio:.2f}"


def _as_json(result: PeerResult) -> dict[str, object]:
    return {
        "name": result.name,
        "mode": result.mode,
        "deletion_vectors": has_deletion_vectors(result.mode),
        "in_geometric_mean": result.is_deltas,
        "engine_seconds": median(result.engine_seconds),
        "run_seconds": list(result.engine_seconds),
        "peers": {
            peer: {
                "seconds": median(runs.seconds),
                "ratio": result.ratio(peer),
                "run_seconds": list(runs.seconds),
                "rows_equal": runs.rows_equal,
            }
            for peer, runs in result.peers.items()
        },
    }
