"""Limits, tiny: the merges of all of them do what they are measured for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import deltaweave
from benchmarks.__main__ import app
from benchmarks.limits.catalog import LIMITS
from benchmarks.limits.limit import Limit
from benchmarks.limits.measure import Measured
from benchmarks.limits.measured_merge import heap_peaks_mib

TINY = {"add_files": 20, "partitions": 3, "pairs": 8_000, "rows": 2_000}
LIMIT = LIMITS[0]


# Spark takes seconds to plan each merge of a wide statement.
QUICK = {"add_files", "pairs"}


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(
            each, id=each.name, marks=() if each.name in QUICK else pytest.mark.full_matrix
        )
        for each in LIMITS
    ],
)
def test_a_limits_merge_does_what_it_is_measured_for(
    spark: SparkSession, tmp_path: Path, limit: Limit
) -> None:
    merge = limit.write(tmp_path, TINY.get(limit.name, limit.smallest))
    metrics = deltaweave.merge(spark, merge.statement).metrics
    assert {name: metrics[name] for name in merge.expected} == dict(merge.expected)


@pytest.mark.full_matrix
def test_the_command_measures_in_a_spark_of_its_own(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--scale", "0.00001", "--directory", str(tmp_path), "--json", str(report)]
    result = CliRunner().invoke(app, ["limits", "add_files", *arguments])

    assert result.exit_code == 0, result.output
    (measured,) = json.loads(report.read_text())["limits"]
    assert (measured["name"], measured["size"], measured["wrong"]) == ("add_files", 10, [])
    assert measured["driver_mib"] > measured["heap_peak_mib"] > measured["heap_after_gc_mib"] > 0
    assert measured["python_mib"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "limit-add_files.log"}


def test_an_unknown_limit_is_reported_in_one_line() -> None:
    result = CliRunner().invoke(app, ["limits", "everything"])

    assert result.exit_code == 2
    assert "No limit is named everything. There are: clauses, columns," in result.output


@pytest.mark.parametrize(
    ("found", "wrote", "expected"),
    [
        ({"metrics": {"numTargetRowsUpdated": 1}}, True, True),
        ({"metrics": {"numTargetRowsUpdated": 2}}, True, False),
        ({"metrics": {"numTargetRowsUpdated": 1}}, False, False),
        ({"error": "…", "error_class": "LimitExceededError"}, False, True),
        ({"error": "…", "error_class": "LimitExceededError"}, True, False),
        ({"error": "…", "error_class": "SessionEndedError"}, False, False),
        ({"error": "The process ended."}, False, False),
    ],
)
def test_a_limit_is_held_by_the_right_rows_or_a_clear_refusal(
    found: dict[str, object], wrote: bool, expected: bool
) -> None:
    measured = Measured(LIMIT, 1, 0.0, found, {"numTargetRowsUpdated": 1}, wrote)
    assert measured.is_good is expected
    assert (measured.outcome == "refused, wrote nothing") is (expected and "error" in found)


def test_heap_peaks_are_those_of_the_jvms_collections(tmp_path: Path) -> None:
    log = tmp_path / "gc.log"
    log.write_text(
        "[0.9s] Using G1\n"
        "[1.2s] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 512M->34M(2048M) 12.3ms\n"
        "[1.5s] GC(1) Pause Remark 900M->890M(2048M) 1.0ms\n"
        "[1.9s] GC(2) Pause Full (G1 Compaction Pause) 700M->310M(2048M) 99.0ms\n"
    )
    assert heap_peaks_mib(log) == (700, 310)
    assert heap_peaks_mib(tmp_path / "missing") == (0, 0)
