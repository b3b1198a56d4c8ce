from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from assets import tpcds
from benchmarks.__main__ import app
from benchmarks.merge_on_read.read_peers import OPERATIONS
from benchmarks.peers.hudi import HUDI
from benchmarks.peers.iceberg import ICEBERG
from tests.benchmarks.fake_python import write_python
from tests.benchmarks.generated import write_returns

UPSERT = "upsert_fileMatchedFraction_0.5_rowMatchedFraction_0.01_rowNotMatchedFraction_0.001"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the generator, which starts a JVM: as many rows as it gives at scale 0.01."""
    monkeypatch.setattr(
        tpcds, "generate", lambda directory, scale: write_returns(directory / "returns.dat", 718)
    )


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def only_line(result: Result) -> str:
    (line,) = result.output.splitlines()
    return line


@pytest.mark.minutes
@pytest.mark.usefixtures("spark", "generator")
def test_a_benchmark_checks_rows_and_reports(tmp_path: Path) -> None:
    report, chart = tmp_path / "report.json", tmp_path / "chart.png"

    result = run(
        "merge",
        *("--scale", 0.01, "--runs", 1, "--deletion-vectors", "on", "--case", UPSERT),
        *("--directory", tmp_path / "kept", "--json", report, "--plot", chart),
    )

    assert result.exit_code == 0, result.output
    written = json.loads(report.read_text())
    (upsert,) = written["cases"]
    assert upsert["name"] == UPSERT
    assert upsert["deletion_vectors"] is True
    assert upsert["strategy"] == "deletion-vectors"
    assert upsert["rows_equal"] is True
    assert upsert["rows"] == {"source": 4, "updated": 4, "deleted": 0, "inserted": 0, "copied": 0}
    assert upsert["files_before_skipping"] == 28
    assert 1 <= upsert["files_touched"] <= 4
    assert upsert["ratio"] == upsert["builtin_seconds"] / upsert["engine_seconds"]
    assert [len(upsert["run_seconds"][side]) for side in ("engine", "builtin")] == [1, 1]
    assert set(upsert["phase_seconds"]) == {"materialize_source", "scan", "rewrite", "whole_merge"}
    assert written["geometric_mean_of_ratios"] == {"on": pytest.approx(upsert["ratio"])}
    assert written["scale"] == 0.01
    assert written["environment"]["spark"] == "4.2.0"
    assert str(tmp_path) not in report.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert "Geometric mean" in result.output
    left = {path.name for path in (tmp_path / "kept").iterdir()}
    assert left == {"scale-0.01"}


@pytest.mark.minutes
@pytest.mark.usefixtures("spark", "generator")
def test_a_profile_shows_where_the_time_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.data.tables.TARGET_FILES", 2)
    report = tmp_path / "profile.json"

    result = run(
        "merge",
        *("--profile", "--scale", 0.01, "--runs", 1, "--deletion-vectors", "on"),
        *("--case", UPSERT, "--directory", tmp_path / "kept", "--json", report),
    )

    assert result.exit_code == 0, result.output
    (upsert,) = json.loads(report.read_text())["cases"]
    assert (upsert["name"], upsert["strategy"]) == (UPSERT, "deletion-vectors")
    assert upsert["times_limit"] > 0
    assert "upsert" in result.output
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"scale-0.01"}


def test_a_profile_has_no_chart(tmp_path: Path) -> None:
    result = run(
        "merge", "--profile", "--plot", tmp_path / "chart.png", "--directory", tmp_path / "kept"
    )

    assert result.exit_code == 2
    assert "--profile has none" in only_line(result)


def test_the_list_names_every_case() -> None:
    names = run("merge", "--list").output.splitlines()

    assert len(names) > 16
    assert UPSERT in names
    assert "hundred_merges" in names


def test_an_unknown_case_is_reported_in_one_line(tmp_path: Path) -> None:
    result = run("merge", "--case", "upsert_all", "--directory", tmp_path)

    assert result.exit_code == 2
    assert "No case is named upsert_all" in only_line(result)


@pytest.mark.parametrize("name", ["upsert_all", "hundred_merges"])
def test_iceberg_runs_deltas_cases_alone(name: str, tmp_path: Path) -> None:
    result = run("peers", "--case", name, "--directory", tmp_path)

    assert result.exit_code == 2
    assert f"No case is named {name}. Iceberg runs Delta's 16:" in only_line(result)


@pytest.mark.minutes
@pytest.mark.usefixtures("spark", "generator")
def test_delta_rs_runs_without_an_environment_and_its_rows_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.data.tables.TARGET_FILES", 2)
    kept, report = tmp_path / "kept", tmp_path / "report.json"

    result = run(
        "peers",
        *("--peer", "delta-rs", "--scale", 0.01, "--runs", 1, "--case", UPSERT),
        *("--keys", "integer", "--directory", kept, "--json", report),
    )

    assert result.exit_code == 0, result.output
    written = json.loads(report.read_text())
    (upsert,) = written["cases"]
    assert (upsert["name"], upsert["mode"]) == (UPSERT, "copy-on-write")
    measured = upsert["peers"]["delta-rs"]
    assert measured["rows_equal"] is True
    assert measured["ratio"] == measured["seconds"] / upsert["engine_seconds"]
    assert list(upsert["peers"]) == ["delta-rs"]
    assert written["key_type"] == "integer"
    assert written["environment"]["delta-rs"]["deltalake"].startswith("1.")
    assert {path.name for path in kept.iterdir()} == {"scale-0.01"}


@pytest.mark.minutes
@pytest.mark.usefixtures("spark", "generator")
def test_both_peers_are_measured_and_the_one_whose_rows_differ_is_named(tmp_path: Path) -> None:
    kept, report = tmp_path / "kept", tmp_path / "report.json"
    answer = '{"seconds": 2.0, "files_before": 28, "files": 28, "checksums": ["1", "2", "3"]}'
    write_python(
        ICEBERG,
        kept,
        f"echo '{{\"spark\": \"4.1.1\"}}'; while read job; do echo '{answer}'; done",
    )

    result = run(
        "peers",
        *("--scale", 0.01, "--runs", 1, "--case", UPSERT, "--directory", kept, "--json", report),
    )

    assert result.exit_code == 1
    last = " ".join(result.output.splitlines()[-1].split())
    assert last == (
        f"Rows differ from the engine's: Iceberg, {UPSERT} (merge-on-read), "
        f"Iceberg, {UPSERT} (copy-on-write)."
    )
    written = json.loads(report.read_text())
    with_vectors, without = (case["peers"] for case in written["cases"])
    assert {peer: runs["rows_equal"] for peer, runs in with_vectors.items()} == {"iceberg": False}
    assert {peer: runs["rows_equal"] for peer, runs in without.items()} == {
        "iceberg": False,
        "delta-rs": True,
    }
    assert with_vectors["iceberg"]["seconds"] == 2.0
    assert set(written["geometric_mean_of_ratios"]) == {"iceberg", "delta-rs"}
    assert written["environment"]["iceberg"]["spark"] == "4.1.1"


def test_an_environment_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "iceberg-env").touch()

    result = run("peers", "--directory", tmp_path)

    assert result.exit_code == 1
    first, last = result.output.splitlines()
    assert first.startswith("Installing pyspark==4.1")
    assert f"{tmp_path / 'iceberg-env'} with pyspark==4.1.1 cannot be made: Error" in last


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_reported_before_anything_runs(
    option: str, tmp_path: Path
) -> None:
    result = run(
        "merge", option, tmp_path / "missing" / "file.png", "--directory", tmp_path / "kept"
    )

    assert result.exit_code == 2
    assert "cannot be written" in only_line(result)
    assert not (tmp_path / "kept").exists()


def test_a_directory_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = run("merge", "--directory", tmp_path / "file" / "kept")

    assert result.exit_code == 1
    assert "cannot be made: Not a directory" in only_line(result)


@pytest.mark.usefixtures("spark")
def test_a_failing_generator_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path, scale: float) -> Path:
        raise tpcds.GeneratorError("The TPC-DS generator failed (exit 1):\na\nunresolved: tpcds")

    monkeypatch.setattr(tpcds, "generate", fail)

    result = run("merge", "--scale", 0.01, "--directory", tmp_path)

    assert result.exit_code == 1
    assert only_line(result) == "The TPC-DS generator failed (exit 1): unresolved: tpcds"
    assert not list(tmp_path.rglob("parts"))


@pytest.mark.parametrize(
    ("python", "said"),
    [
        # -S: no installed package is found.
        (("-S", "-m"), "The benchmarks need typer: pip install -e '.[benchmarks]'."),
        (("-m",), "--deletion-vectors"),
    ],
)
def test_the_commands_run_from_a_clone_with_their_extra(python: tuple[str, ...], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, *python, "benchmarks", "merge", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert said in ran.stdout + ran.stderr


@pytest.mark.full_matrix
@pytest.mark.usefixtures("spark", "generator")
def test_the_benchmark_of_merge_on_read_compares_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.data.tables.TARGET_FILES", 2)
    report, chart = tmp_path / "report.json", tmp_path / "chart.png"
    arguments = ("--scale", 0.01, "--runs", 1, "--changed", 0.1, "--json", report, "--plot", chart)

    result = run("read", *arguments, "--directory", tmp_path / "kept")

    assert result.exit_code == 0, result.output
    written = json.loads(report.read_text())
    assert written["rows_equal"] is True
    assert (written["rows"], 20 <= written["changes"] <= 150) == (718, True)
    measured = [(each["operation"], each["method"]) for each in written["measurements"]]
    reads = ["plain_scan", "double_rank", "full_outer_join"]
    reads += ["left_join_anti_join", "left_join_inserts", "anti_join"]
    assert set(measured) == {
        *(("read", method) for method in reads),
        *(("write", method) for method in ("builtin_merge", "merge", "overwrite")),
    }
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"scale-0.01", "timings"}


@pytest.mark.minutes
@pytest.mark.usefixtures("spark", "generator")
def test_the_report_of_peers_has_those_that_did_not_run_or_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.data.tables.TARGET_FILES", 2)
    kept, report = tmp_path / "kept", tmp_path / "report.json"
    write_python(ICEBERG, kept, "exit 1")
    times = json.dumps({operation: [2.0] for operation in OPERATIONS})
    answer = f'{{"run_seconds": {times}, "checksums": ["1", "2", "3"]}}'
    write_python(HUDI, kept, f"echo '{{\"spark\": \"3.5.5\"}}'; read job; echo '{answer}'")
    arguments = ("--scale", 0.01, "--runs", 1, "--changed", 0.1, "--json", report)

    result = run("read-peers", *arguments, "--directory", kept)

    assert result.exit_code == 1
    *_, ended, differ = result.output.splitlines()
    assert ended.startswith("Iceberg's process ended early; its output is in ")
    assert differ == "The tables do not end with the same rows."
    written = json.loads(report.read_text())
    ours, iceberg, hudi = written["sides"]
    assert (written["rows"], 20 <= written["changes"] <= 150) == (718, True)
    assert [len(ours["run_seconds"][operation]) for operation in OPERATIONS] == [1, 1, 1, 1]
    assert (iceberg["name"], "ended early" in iceberg["error"]) == ("iceberg", True)
    assert (hudi["seconds"]["upsert"], hudi["versions"]["spark"]) == (2.0, "3.5.5")


@pytest.mark.minutes
def test_ingestion_loses_no_change_and_reports_how_fresh_the_table_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.merge_on_read.ingestion.WARM_UP_SECONDS", 1)
    report = tmp_path / "report.json"
    arguments = ("--rows", 100, "--per-minute", 6_000, "--seconds", 4, "--every", "1 second")

    result = run("ingest", *arguments, "--json", report, "--directory", tmp_path)

    assert result.exit_code == 0, result.output
    [rate] = json.loads(report.read_text())["rates"]
    assert (rate["changes_a_minute"], rate["rows_equal"], rate["appended"] > 0) == (
        6_000,
        True,
        True,
    )
    assert rate["holds"] is (max(rate["behind_seconds"], *rate["staleness_seconds"]) < 60)


@pytest.mark.full_matrix
def test_the_benchmark_of_decay_reads_as_changes_pile_up_and_are_taken_up(tmp_path: Path) -> None:
    report, chart = tmp_path / "report.json", tmp_path / "chart.png"
    sizes = ("--rows", 100, "--batch-rows", 10, "--batches", 2, "--trigger-rows", 20)
    files = ("--json", report, "--plot", chart, "--directory", tmp_path)

    result = run("decay", *sizes, "--runs", 1, *files)

    assert result.exit_code == 0, result.output
    left, kept = json.loads(report.read_text())["tables"]
    # After no batch, one, two: the second is taken up where there is a trigger.
    assert (left["pending"], kept["pending"]) == ([0, 10, 20], [0, 10, 0])
    assert len(left["read_seconds"]) == len(kept["read_seconds"]) == 3
    assert (len(left["rematerialize_seconds"]), len(kept["rematerialize_seconds"])) == (0, 1)
    assert chart.read_bytes().startswith(b"\x89PNG")
