"""`inspect` of a table on a disk, whose log is read without Spark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import SparkContext
from typer.testing import CliRunner, Result

from deltaweave.cli import app, inspection
from deltaweave.delta.log import snapshot


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("deltaweave.cli.options.quiet_session", never)
    for name in CONFIGURING:
        monkeypatch.delenv(name, raising=False)


CONFIGURING = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def inspected(table: Path, *arguments: str) -> dict[str, Any]:
    result = run("inspect", table, *arguments, "--json")
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def write(table: Path, *keys: int) -> None:
    rows = pa.table({"k": pa.array(keys, pa.int64()), "p": [f"p{k % 2}" for k in keys]})
    write_deltalake(table, rows, mode="append", partition_by=["p"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two files of 1 and 3, one of 2; 1 was deleted."""
    table = tmp_path / "table"
    write(table, 1, 2)
    write(table, 3)
    DeltaTable(table).delete("k = 1")
    write(table, 5)
    return table


@pytest.mark.parametrize("checkpoint", [False, True])
def test_files_rows_and_ranges_are_read_from_the_log(table: Path, checkpoint: bool) -> None:
    if checkpoint:
        DeltaTable(table).create_checkpoint()
        write(table, 7)
        DeltaTable(table).delete("k = 7")
    facts = inspected(table, "--key", "K")
    expected = {
        "location": f"file:{table}",
        "partition_columns": ["p"],
        "files": 3,
        "small_files": 2,  # of p1
        "rows": 3,
        "files_without_statistics": 0,
        "files_with_floating_bounds": 0,
        "key_overlaps": [
            {
                "column": "k",
                "files": 3,
                "files_without_bounds": 0,
                "overlapping_files": 0,
                "mean_files_per_key": 1.0,
                "most_files_per_key": 1,
            }
        ],
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["version"] == DeltaTable(table).version()


def test_a_history_without_merges_says_so(table: Path) -> None:
    result = run("history", table)
    assert result.stderr == f"No merge is in the history of {table}.\n"
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(run("history", table, "--json").stdout) == []


@pytest.mark.parametrize("command", ["history", "inspect"])
def test_a_chart_that_cannot_be_saved_is_one_line(
    command: str, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "chart.svg").mkdir()
    result = run(command, table, "--plot", tmp_path / "chart.svg")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{tmp_path}/chart.svg cannot be written: Is a directory.\n"


def test_an_inspection_and_an_error_start_no_jvm(table: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from deltaweave.cli import app; app(sys.argv[1:], standalone_mode=False);"
        " from pyspark import SparkContext; sys.exit(SparkContext._gateway is not None)"
    )
    command = [sys.executable, "-c", code, "inspect", str(table), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["files"] == 3
    for arguments in (["inspect"], ["history"], ["maintain"]):
        result = run(*arguments, tmp_path / "missing")
        assert result.exit_code == 1
        assert "there is no Delta table here" in result.stderr
    wrong = run("inspect", table, "--key", "no_such")
    assert wrong.exit_code == 1
    assert "no column 'no_such'" in wrong.stderr


@pytest.mark.parametrize("command", ["inspect", "history", "maintain"])
@pytest.mark.parametrize("name", ["ordrs", "sales.ordrs"])
def test_a_name_is_refused_without_spark_where_no_catalog_is_configured(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # of another test
    result = run(command, name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no table has this name, because no catalog is configured here" in result.stderr
    assert f"./{name}" in result.stderr


@pytest.mark.parametrize("variable", [*CONFIGURING, "PYSPARK_SUBMIT_ARGS"])
def test_a_name_is_left_to_spark_where_a_catalog_may_be_configured(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert inspection.commits_on_disk("ordrs", ["spark.sql.catalogImplementation=hive"]) is None
    assert inspection.commits_on_disk("ordrs", catalog="other") is None
    monkeypatch.setenv(variable, "--conf spark.sql.catalogImplementation=hive pyspark-shell")
    assert inspection.commits_on_disk("ordrs") is None


@pytest.mark.parametrize("damage", ["gap", "broken", "checksum", "feature", "checkpoint"])
def test_a_log_of_another_form_is_left_to_spark(table: Path, damage: str) -> None:
    log = table / "_delta_log"
    newest = log / f"{3:020}.json"
    if damage == "gap":
        (log / f"{1:020}.json").unlink()
    elif damage == "broken":
        newest.write_text(newest.read_text()[:-20])
    elif damage == "checksum":
        (log / f"{3:020}.crc").write_text('{"numFiles": 9, "tableSizeBytes": 1}')
    elif damage == "feature":
        protocol = {"minReaderVersion": 3, "readerFeatures": ["unheard-of"]}
        newest.write_text(newest.read_text() + json.dumps({"protocol": protocol}) + "\n")
    else:
        (log / f"{3:020}.checkpoint.0-0-0.json").write_text("{}")
    assert inspection.inspected_on_disk(str(table), [], 1, []) is None


def test_a_checkpoint_that_is_long_once_decoded_is_left_to_spark(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaTable(table).create_checkpoint()
    [checkpoint] = (table / "_delta_log").glob("*.parquet")
    few = pq.read_table(checkpoint)
    # Each file again and again: Parquet holds values that repeat once.
    pq.write_table(pa.concat_tables([few] * 500), checkpoint)
    monkeypatch.setattr(snapshot, "MAX_LOG_BYTES", 2 * checkpoint.stat().st_size)
    assert inspection.inspected_on_disk(str(table), [], 1, []) is None


@pytest.mark.parametrize("given", [{"conf": ["spark.hadoop.fs.defaultFS=hdfs://host"]}, {}])
def test_what_may_be_a_path_elsewhere_is_left_to_spark(
    given: dict[str, list[str]], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not given:
        monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    conf = given.get("conf", [])
    for path in (table, table / "missing"):
        assert inspection.inspected_on_disk(str(path), [], 1, conf) is None
    assert inspection.inspected_on_disk(f"file:{table}", [], 1, conf) is not None
    assert inspection.inspected_on_disk("s3a://lake/orders", [], 1, []) is None


def test_the_history_has_the_counts_of_merges_by_delta_rs(tmp_path: Path) -> None:
    """delta-rs writes Delta's metrics in snake_case; they are shown under Delta's names."""
    table = tmp_path / "table"
    write(table, 1, 2)
    source = pa.table({"k": pa.array([2, 3, 4], pa.int64()), "p": ["p0", "p1", "p0"]})
    merge = DeltaTable(table).merge(source, "t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()

    [merged] = json.loads(run("history", table, "--json").stdout)
    shown = run("history", table).stdout

    counts = ("numTargetRowsUpdated", "numTargetRowsInserted", "numTargetRowsDeleted")
    assert [merged["metrics"][name] for name in counts] == [1, 2, 0]
    assert re.search(r"1 +\d{4}-\d\d-\d\d \d\d:\d\d +1 +2 +0 ", shown)
    assert "removed" in shown  # no heading is cut
    assert "…" not in shown
