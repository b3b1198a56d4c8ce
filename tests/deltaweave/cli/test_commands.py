"""The commands of the command line, on real tables, by what they print and end with."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner, Result

import deltaweave
from deltaweave import errors
from deltaweave.cli import app, inspection, machine
from deltaweave.cli.inspection import commits_on_disk
from deltaweave.cli.options import UNKNOWN
from tests.builders import write_table
from tests.support.oracles import newest_version

pytestmark = pytest.mark.usefixtures("spark")

MERGE = (
    "MERGE INTO delta.`{path}` t USING (SELECT 2 AS k, 'B' AS v UNION ALL SELECT 3, 'C') s "
    "ON t.k = s.k WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    write_table(spark, str(tmp_path / "table"), [(1, "a"), (2, "b")], "k INT, v STRING")
    return str(tmp_path / "table")


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], input=text)


def printed(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.minutes
def test_a_merge_says_what_it_did(path: str) -> None:
    result = run("merge", MERGE.format(path=path))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "committed version 1"
    assert lines[2] == "rows: 1 updated, 1 inserted, 0 deleted, 1 copied; 2 in the source"
    assert "files: 1 before skipping, 1 after, 1 removed, " in lines[3]
    assert newest_version(path) == 1


@pytest.mark.minutes
@pytest.mark.parametrize("way", ["argument", "standard input", "file"])
def test_a_statement_comes_as_text_from_the_standard_input_or_a_file(
    way: str, path: str, tmp_path: Path
) -> None:
    text = MERGE.format(path=path)
    script = tmp_path / "merge.sql"
    script.write_text(f"-- nightly\n{text};\n")
    result = {
        "argument": lambda: run("merge", text, "--json"),
        "standard input": lambda: run("merge", "-", "--json", text=text),
        "file": lambda: run("merge", "--file", script, "--json"),
    }[way]()
    merged = printed(result)
    assert merged["version"] == 1
    assert merged["metrics"]["numTargetRowsUpdated"] == 1
    assert merged["warnings"] == []


def test_a_plan_is_json_for_programs(path: str) -> None:
    plan = printed(run("explain", MERGE.format(path=path), "--json"))
    assert (plan["version"], plan["source_rows"]) == (0, 2)
    assert plan["before_skipping"]["files"] == 1
    assert newest_version(path) == 0


@pytest.mark.minutes
def test_the_history_lists_merges_alone_the_newest_first(spark: SparkSession, path: str) -> None:
    for _ in range(2):
        deltaweave.merge(spark, MERGE.format(path=path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 1")
    assert [merge["version"] for merge in printed(run("history", path, "--json"))] == [2, 1]
    [newest] = printed(run("history", path, "--json", "--limit", 1))
    assert newest["metrics"]["numTargetRowsUpdated"] == 2
    shown = run("history", path).output
    assert shown.count("\n") > 4
    assert "updated" in shown


@pytest.mark.minutes
def test_the_history_of_a_disk_is_that_of_delta_and_takes_no_spark(
    spark: SparkSession, path: str
) -> None:
    deltaweave.merge(spark, MERGE.format(path=path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 1")
    of_delta = deltaweave.Table(spark, path).history().collect()
    for table in (path, f"file:{path}", f"delta.`{path}`"):
        found = list(commits_on_disk(table) or ())
        assert [
            (each.version, each.timestamp, each.operation, each.operationMetrics) for each in found
        ] == [(row.version, row.timestamp, row.operation, row.operationMetrics) for row in of_delta]
    assert commits_on_disk("sales.orders") is commits_on_disk("s3a://lake/orders") is None
    code = (
        "import sys; from deltaweave.cli import app; app(standalone_mode=False);"
        " sys.exit('pyspark' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "history", path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [merge["version"] for merge in json.loads(done.stdout)] == [1]


@pytest.mark.minutes
def test_an_inspection_of_a_disk_is_that_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    path, rows = str(tmp_path / "a table"), [(k, f"p{k % 2}", k / 2) for k in range(24)]
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    properties |= {"delta.checkpointInterval": "2"}
    schema = "k BIGINT, p STRING, x DOUBLE"
    write_table(spark, path, rows, schema, files=3, partition_by=["p"], properties=properties)
    for k in range(3):
        spark.sql(f"DELETE FROM delta.`{path}` WHERE k = {k}")
    for keys in ([], ["K"]):
        by_spark = inspection.inspected_by_spark(spark, path, keys, 1 << 24, plotted=True)
        assert by_spark.layout.deleted_rows == 3
        assert inspection.inspected_on_disk(path, keys, 1 << 24, []) == by_spark


def test_an_inspection_reports_files_rows_and_what_is_small(path: str) -> None:
    facts = printed(run("inspect", path, "--json"))
    expected = {"version": 0, "files": 1, "rows": 2, "deleted_rows": 0, "small_files": 0}
    assert {name: facts[name] for name in expected} == expected
    assert facts["mean_file_bytes"] == facts["size_in_bytes"] > 0
    # Both columns are looked at, as none is named.
    assert [each["column"] for each in facts["key_overlaps"]] == ["k", "v"]
    [of_keys] = printed(run("inspect", path, "--key", "k", "--json"))["key_overlaps"]
    assert (of_keys["files"], of_keys["overlapping_files"]) == (1, 0)
    shown = run("inspect", path).output
    assert "deleted rows" in shown
    assert "files that may hold a key" in shown


def test_a_doctor_finds_this_machine_well(spark: SparkSession) -> None:
    findings = printed(run("doctor", "--json"))
    assert [finding for finding in findings if not finding["is_good"]] == []
    found = {finding["about"]: finding["found"] for finding in findings}
    assert found["Spark and Delta"] == f"Spark {spark.version} with Delta {version('delta-spark')}"
    assert "pyarrow" in found["Python of the executors"]
    assert "delta-spark_" in found["Delta's jars"]
    assert "delta-storage" in found["Delta's jars"]
    assert found["ports"].startswith("the driver is at ")
    assert re.fullmatch(r"(17|21)\S* \(.*java\)", found["Java"])


@pytest.mark.minutes
def test_doctor_finds_jars_that_hide_each_other_and_an_unreachable_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def several(_: SparkSession, name: str) -> list[str]:
        return ["file:/one.jar", "file:/two.jar"] if name.endswith("LogStore") else ["file:/a.jar"]

    def closed(*_: object, **__: object) -> None:
        raise OSError("Connection refused")

    monkeypatch.setattr("deltaweave.delta.jvm.jars_with", several)
    monkeypatch.setattr("socket.create_connection", closed)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    wrong = {
        each["about"]: each["found"] for each in json.loads(result.stdout) if not each["is_good"]
    }
    assert sorted(wrong) == ["Delta's jars", "ports"]
    assert (
        "io.delta.storage.LogStore is in file:/one.jar and file:/two.jar" in wrong["Delta's jars"]
    )
    assert "Connection refused" in wrong["ports"]
    assert "spark.driver.host" in wrong["ports"]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"python": "2.7", "pyarrow": "18"}, "Python 2.7 there and 3."),
        (ModuleNotFoundError("No module named 'pyarrow'"), "No module named 'pyarrow'"),
    ],
    ids=["another Python", "no pyarrow"],
)
def test_a_doctor_reports_executors_that_cannot_run_its_python(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, there: Any, said: str
) -> None:
    def pythons(rows: DataFrame) -> DataFrame:
        if isinstance(there, Exception):
            raise there
        return spark.createDataFrame([there], "python STRING, pyarrow STRING")

    monkeypatch.setattr(machine, "python_of_tasks", pythons)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    [wrong] = [each for each in json.loads(result.stdout) if not each["is_good"]]
    assert wrong["about"] == "Python of the executors"
    assert said in wrong["found"]


def test_a_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "java_problem", lambda: "there is no Java: install one.")
    result = run("doctor")
    assert result.exit_code == 1
    assert "wrong" in result.output
    assert "there is no Java" in result.output
    assert "Python of the executors" not in result.output  # there is no session to look at


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["merge"], 2, "Give a statement"),
        (["merge", "MERGE", "--file", "x.sql"], 2, "Give a statement"),
        (
            ["merge", "--file", "/nowhere/x.sql"],
            2,
            "x.sql cannot be read: No such file or directory.",
        ),
        (["merge", "MERGE INTO t USING s"], 1, "MERGE into t failed"),
        (["merge", "SELECT 1"], 1, "the statement is not a MERGE"),
        (["explain", "MERGE INTO delta.`s3://k:secret@b/t` t"], 1, "credentials"),
        (["history", "/nowhere/table"], 1, "of /nowhere/table"),
        (["inspect", "/nowhere/table"], 1, "of /nowhere/table"),
        (["inspect", "no_such_table"], 1, "of no_such_table"),
        (["inspect", "{path}", "--key", "no_such"], 1, "no column 'no_such'"),
        (["merge", "SELECT 1", "--conf", "spark.x"], 2, "--conf spark.x: give it as"),
        (["merge", "SELECT 1", "--conf", "x=1"], 2, "--conf x: give it as"),
        (["doctor", "--conf", "spark.hadoop.fs.s3a.secret.key=x"], 2, "can read the command line"),
    ],
)
def test_what_is_wrong_is_written_to_the_standard_error(
    arguments: list[str], code: int, said: str, path: str
) -> None:
    result = run(*[path if each == "{path}" else each for each in arguments])
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_a_merge_in_an_unknown_state_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise errors.CommitStateUnknownError(
            "the answer was lost.", table="t", operation="MERGE", version=3, transaction_id="x"
        )

    monkeypatch.setattr(deltaweave, "merge", unknown)
    assert run("merge", "MERGE").exit_code == UNKNOWN == 3


def test_a_doctor_reports_a_spark_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # as in a process of its own

    def fails(**_: str) -> None:
        raise RuntimeError("gateway exited")

    monkeypatch.setattr("deltaweave._session.local_session", fails)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    findings = {each["about"]: each["is_good"] for each in json.loads(result.stdout)}
    assert (findings["Java"], findings["Spark"]) == (True, False)


def test_a_command_leaves_a_session_that_others_started(spark: SparkSession, path: str) -> None:
    spark._jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()
    result = run("explain", MERGE.format(path=path))
    assert result.exit_code == 0, result.output
    assert not spark.sparkContext._jsc.sc().isStopped()


def test_a_result_is_three_lines_and_in_a_notebook_a_table(spark: SparkSession, path: str) -> None:
    result = deltaweave.merge(spark, MERGE.format(path=path))
    first, rows, files = repr(result).splitlines()
    assert re.fullmatch(r"delta\.`.*/table`: committed version 1 \([a-z-]+, [\d.]+ s\)", first)
    assert rows.startswith("  rows: 1 updated, 1 inserted")
    assert files.startswith("  files: 1 before skipping")
    html = result._repr_html_()
    assert f"<caption>delta.`{path}`</caption>" in html
    assert "<tr><td>strategy</td><td>" in html
    assert html.count("<tr>") == len(html.split("</tr>")) - 1


def test_the_version_is_printed_without_spark() -> None:
    code = (
        "import sys; sys.argv = ['deltaweave', '--version']; from deltaweave.cli import app; app()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"deltaweave {deltaweave.__version__}\n"


@pytest.mark.minutes
def test_a_terminal_shows_the_steps_of_a_merge_while_it_runs(path: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "deltaweave", "merge", MERGE.format(path=path), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm-256color"}
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # a terminal that nobody writes to any more
            while some := os.read(ours, 65536):
                shown += some
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["version"] == 1
    os.close(ours)
    steps = [shown.find(step) for step in (b"Starting Spark", b"Merging", b"Committing")]
    assert -1 < steps[0] < steps[1] < steps[2], shown.decode()
    # The lines go away: the cursor is up again, and each line is erased.
    assert shown.rstrip().endswith(b"\x1b[2K"), shown[-80:]


@pytest.mark.minutes
def test_commands_leave_no_file_and_no_line_of_spark(path: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    events = tmp_path / "events"
    events.mkdir()
    (events / "1.json").write_text('{"k": 2, "v": "B", "n": 1}\n')
    schema = ["--format", "json", "--schema", "k INT, v STRING, n INT"]
    keys = ["--key", "k", "--sequence-by", "n", "--except-column", "n"]
    commands = [
        ["merge", MERGE.format(path=path), "--json"],
        ["explain", MERGE.format(path=path)],
        ["history", path],
        ["inspect", path],
        ["apply-changes", f"{tmp_path}/applied", str(events), *schema, *keys],
        ["maintain", path],
        ["doctor"],
    ]
    code = "import sys, json; from deltaweave.cli import app\n"
    code += "for each in json.loads(sys.argv[1]): app(each, standalone_mode=False)"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert list(here.iterdir()) == []
    for said in ('"version": 1', "updated", "deleted rows", "1 inserted", "optimize", "ports"):
        assert said in done.stdout


def test_without_java_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # as in a process of its own
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("merge", MERGE.format(path=tmp_path))
    assert result.exit_code == 1
    assert "needs Java 17 or 21 and found none" in result.stderr.splitlines()[-1]


def test_a_spark_that_does_not_start_is_reported_with_its_last_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # as in a process of its own

    def fails(**_: str) -> None:
        subprocess.run(["sh", "-c", "echo no memory is left >&2"], check=True)
        raise RuntimeError("gateway exited")

    monkeypatch.setattr("deltaweave._session.local_session", fails)
    monkeypatch.setattr("deltaweave.cli.options.check_java", lambda: None)
    result = run("history", "no_such_table", "--conf", "spark.app.name=x")
    assert result.exit_code == 1
    assert "Spark did not start (RuntimeError)." in result.stderr
    assert "no memory is left" in result.stderr
