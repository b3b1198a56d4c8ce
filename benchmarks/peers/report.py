"""The report of peers: the times of the engine, Apache Iceberg and delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

from benchmarks.data.tables import MODES
from benchmarks.merge.runner import ENGINE, CaseResult
from benchmarks.peers.delta_rs import DELTA_RS
from benchmarks.peers.iceberg import ICEBERG
from benchmarks.peers.peer import Peer
from benchmarks.report import Report, cell, screen_table

if TYPE_CHECKING:
    from rich.table import Table

PEERS: Mapping[str, Peer] = {peer.name: peer for peer in (ICEBERG, DELTA_RS)}
"""The peers of MERGE by their names, in the order of the columns."""

_ByPeerAndMode = dict[str, dict[str, float]]


class PeersReport(Report[CaseResult]):
    """A result for each case and mode."""

    benchmark = "peers"

    def geometric_means(self) -> _ByPeerAndMode:
        """Return the geometric means of the ratios in Delta's cases, by peer and mode."""
        return self._of_ratios(geometric_mean)

    def lowest(self) -> _ByPeerAndMode:
        """Return the lowest ratios in Delta's cases, by peer and mode."""
        return self._of_ratios(min)

    def content(self) -> Mapping[str, object]:
        """Return the results, and what the ratios are in all."""
        return {
            "geometric_mean_of_ratios": self.geometric_means(),
            "lowest_ratio": self.lowest(),
            "cases": [_as_json(result) for result in self.results],
        }

    def problem(self) -> str | None:
        """Return which peers differ from the engine in which cases."""
        differing = [
            f"{PEERS[peer].title}, {result.case.name} ({result.mode})"
            for result in self.results
            for peer in result.differing
        ]
        return f"Rows differ from the engine's: {', '.join(differing)}." if differing else None

    def table(self) -> Table:
        """Return the results for a screen; a ratio above 1 says that the engine was faster."""
        peers = self._peers()
        headings = [
            heading for peer in peers for heading in (f"{PEERS[peer].title}\nseconds", "ratio")
        ]
        table = screen_table(
            ("case", "mode"),
            ("deltaweave\nseconds", *headings, "rows\nequal"),
            self._means_in_words(),
        )
        for result in self.results:
            numbers = [
                number
                for peer in peers
                for number in (result.median_seconds(peer), result.ratio(peer))
            ]
            table.add_row(
                result.case.label,
                result.mode,
                *map(cell, (result.median_seconds(ENGINE), *numbers)),
                "NO" if result.differing else "yes",
            )
        return table

    def _peers(self) -> list[str]:
        return [peer for peer in PEERS if any(peer in result.runs for result in self.results)]

    def _of_ratios(self, function: Callable[[Sequence[float]], float]) -> _ByPeerAndMode:
        """Return what a function gives for the ratios in Delta's cases, by peer and mode."""
        found: _ByPeerAndMode = {}
        for peer in self._peers():
            for mode in MODES:
                ratios = [
                    ratio
                    for result in self.results
                    if result.mode == mode and result.case.is_deltas
                    if (ratio := result.ratio(peer)) is not None
                ]
                if ratios:
                    found.setdefault(peer, {})[mode] = function(ratios)
        return found

    def _means_in_words(self) -> str | None:
        lowest = self.lowest()
        words = [
            f"{mean:.2f} (lowest {lowest[peer][mode]:.2f}) beside {PEERS[peer].title}, {mode}"
            for peer, modes in self.geometric_means().items()
            for mode, mean in modes.items()
        ]
        return f"Geometric mean of the ratios: {'; '.join(words)}" if words else None


def _as_json(result: CaseResult) -> dict[str, object]:
    seconds = {side: [run.seconds for run in runs] for side, runs in result.runs.items()}
    return {
        "name": result.case.name,
        "mode": result.mode,
        "deletion_vectors": result.deletion_vectors,
        "in_geometric_mean": result.case.is_deltas,
        "engine_seconds": result.median_seconds(ENGINE),
        "run_seconds": seconds.pop(ENGINE),
        "peers": {
            peer: {
                "seconds": result.median_seconds(peer),
                "ratio": result.ratio(peer),
                "run_seconds": runs,
                "rows_equal": result.agrees(peer),
            }
            for peer, runs in seconds.items()
        },
    }
