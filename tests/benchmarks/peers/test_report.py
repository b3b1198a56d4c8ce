from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from rich.console import Console

from benchmarks.merge.case import Case, Merges
from benchmarks.merge.runner import CaseResult, Run, TableState
from benchmarks.peers.report import PeersReport

ROWS, OTHER_ROWS = TableState(28, ("1", "2", "3")), TableState(28, ("1", "2", "4"))


def result(
    name: str,
    mode: str,
    engine: Sequence[float],
    peers: Mapping[str, Sequence[float]],
    tables: Mapping[str, TableState] = MappingProxyType({}),
    *,
    is_deltas: bool = True,
) -> CaseResult:
    """A result of a case whose peers hold the engine's rows, unless `tables` says otherwise."""
    runs = {
        side: [Run((each,)) for each in seconds]
        for side, seconds in {"engine": engine, **peers}.items()
    }
    case = Case(name, name.replace("_only", ""), lambda _: Merges(Path(), ()), is_deltas)
    return CaseResult(case, mode, runs, {**dict.fromkeys(runs, ROWS), **tables})


REPORT = PeersReport(
    {"scale": 1, "runs": 3, "key_type": "double"},
    {"deltaweave": "0.1.0", "iceberg": {"iceberg": "1.11.0", "spark": "4.1.1"}},
    (
        # Medians 2 and 3; 2 and 12; 4, 2 and 1.
        result("delete_only", "merge-on-read", (1.0, 2.0, 9.0), {"iceberg": (3.0, 3.0, 1.0)}),
        result("upsert", "merge-on-read", (2.0,), {"iceberg": (12.0,)}),
        result(
            "upsert",
            "copy-on-write",
            (4.0,),
            {"iceberg": (2.0,), "delta-rs": (1.0,)},
            {"delta-rs": OTHER_ROWS},
        ),
        result("small", "copy-on-write", (1.0,), {"delta-rs": (8.0,)}, is_deltas=False),
    ),
)


def test_ratios_are_of_medians_and_each_peer_and_mode_has_its_mean() -> None:
    assert [result.ratio("iceberg") for result in REPORT.results] == [1.5, 6.0, 0.5, None]
    assert [result.ratio("delta-rs") for result in REPORT.results] == [None, None, 0.25, 8.0]
    assert REPORT.geometric_means() == {
        "iceberg": {
            "merge-on-read": pytest.approx(3.0),  # the root of 1.5 * 6
            "copy-on-write": pytest.approx(0.5),
        },
        "delta-rs": {"copy-on-write": pytest.approx(0.25)},
    }
    assert REPORT.lowest()["iceberg"] == {"merge-on-read": 1.5, "copy-on-write": 0.5}


def test_the_table_has_a_row_for_each_case_and_mode() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(REPORT.table())

    lines = [line.split() for line in captured.get().splitlines()]
    assert ["delete", "merge-on-read", "2.00", "3.00", "1.50", "-", "-", "yes"] in lines
    assert ["upsert", "merge-on-read", "2.00", "12.00", "6.00", "-", "-", "yes"] in lines
    assert ["upsert", "copy-on-write", "4.00", "2.00", "0.50", "1.00", "0.25", "NO"] in lines
    words = " ".join(captured.get().split())
    assert "ratios: 3.00 (lowest 1.50) beside Iceberg, merge-on-read; 0.50 (lowest 0.50)" in words
    assert words.endswith("0.25 (lowest 0.25) beside delta-rs, copy-on-write")


def test_the_table_has_no_columns_of_a_peer_that_did_not_run() -> None:
    of_iceberg = PeersReport(REPORT.settings, REPORT.environment, REPORT.results[:2])
    console = Console(width=120)
    with console.capture() as captured:
        console.print(of_iceberg.table())

    assert "Iceberg" in captured.get()
    assert "delta-rs" not in captured.get()


def test_the_json_has_all_that_was_measured(tmp_path: Path) -> None:
    REPORT.write_json(tmp_path / "peers.json")

    written = json.loads((tmp_path / "peers.json").read_text())
    assert (written["benchmark"], written["scale"], written["runs"]) == ("peers", 1, 3)
    assert written["environment"]["iceberg"] == {"iceberg": "1.11.0", "spark": "4.1.1"}
    assert written["geometric_mean_of_ratios"] == REPORT.geometric_means()
    assert written["lowest_ratio"] == REPORT.lowest()
    assert written["cases"][0] == {
        "name": "delete_only",
        "mode": "merge-on-read",
        "deletion_vectors": True,
        "in_geometric_mean": True,
        "engine_seconds": 2.0,
        "run_seconds": [1.0, 2.0, 9.0],
        "peers": {
            "iceberg": {
                "seconds": 3.0,
                "ratio": 1.5,
                "run_seconds": [3.0, 3.0, 1.0],
                "rows_equal": True,
            }
        },
    }
    assert written["cases"][2]["deletion_vectors"] is False
    assert written["cases"][2]["peers"]["delta-rs"]["rows_equal"] is False
    assert written["cases"][3]["in_geometric_mean"] is False


def test_peers_whose_rows_differ_are_named() -> None:
    assert REPORT.problem() == "Rows differ from the engine's: delta-rs, upsert (copy-on-write)."


def test_a_report_without_results_has_no_means() -> None:
    report = PeersReport(REPORT.settings, REPORT.environment)

    assert report.geometric_means() == {}
    assert report.table().caption is None
