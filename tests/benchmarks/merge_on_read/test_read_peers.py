from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.merge_on_read.read_peers import ReadPeersReport, Side


def seconds(upsert: float, after: float) -> dict[str, tuple[float, ...]]:
    return {
        "parquet_scan": (1.0,),
        "plain_scan": (2.0, 1.0, 9.0),
        "upsert": (upsert,),
        "read_after_upsert": (after,),
    }


ROWS = ("718", "12", "34")
OURS = Side("deltaweave", "deltaweave", {"spark": "4.2.0"}, seconds(1, 4), ROWS)
PEER = Side("fast", "Fast", {"fast": "1.2.0"}, seconds(8, 3), ROWS)
FAILED = Side("gone", "Gone", {"gone": "1.0"}, error="Gone failed: no bundle")
REPORT = ReadPeersReport(
    {"scale": 1}, {"spark": "4.2.0"}, (OURS, PEER, FAILED), changed=0.01, rows=718, changes=7
)


def test_rows_are_equal_where_those_of_all_sides_that_ran_are() -> None:
    differing = replace(PEER, fingerprint=("718", "12", "35"))

    assert REPORT.rows_equal
    assert REPORT.problem() == "Gone failed: no bundle"
    wrong = replace(REPORT, results=(OURS, differing))
    assert wrong.problem() == "The tables do not end with the same rows."


def test_the_table_has_a_row_for_each_side_and_says_which_did_not_run() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(REPORT.table())

    lines = [line.split() for line in captured.get().splitlines()]
    assert ["deltaweave", "1.00", "2.00", "1.00", "4.00", "2.00"] in lines
    assert ["Fast", "1.00", "2.00", "8.00", "3.00", "1.50"] in lines
    assert ["Gone", "did", "not", "run"] in lines
    assert "7 changes to 718 rows; rows equal: yes" in captured.get()


def test_the_json_has_all_that_was_measured_and_why_a_side_did_not_run(tmp_path: Path) -> None:
    REPORT.write_json(tmp_path / "peers.json")

    written = json.loads((tmp_path / "peers.json").read_text())
    assert (written["benchmark"], written["scale"], written["rows"]) == ("read-peers", 1, 718)
    assert (written["changes"], written["rows_equal"]) == (7, True)
    _, fast, gone = written["sides"]
    assert fast == {
        "name": "fast",
        "versions": {"fast": "1.2.0"},
        "seconds": {
            "parquet_scan": 1.0,
            "plain_scan": 2.0,
            "upsert": 8,
            "read_after_upsert": 3,
        },
        "read_ratio": 1.5,
        "run_seconds": {name: list(runs) for name, runs in seconds(8, 3).items()},
    }
    assert gone == {
        "name": "gone",
        "versions": {"gone": "1.0"},
        "error": "Gone failed: no bundle",
    }
