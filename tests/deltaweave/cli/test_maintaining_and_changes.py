"""apply-changes, maintain, and the charts of history and inspect."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from deltaweave import Table
from deltaweave.cli import app, inspection
from deltaweave.engine.merge_run import ON_DRIVER
from tests.builders import frame, write_table
from tests.support.readers import give_floating_bounds
from tests.support.settings import configured


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def printed(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.minutes
def test_change_events_in_files_keep_a_table_in_any_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "id INT, state STRING, op STRING, n INT"
    older = [(1, "open", "u", 1), (2, "open", "u", 1), (3, "open", "u", 1)]
    newer = [(1, "sent", "u", 2), (2, None, "d", 2)]
    for name, rows in (("older", older), ("newer", newer)):
        spark.createDataFrame(rows, schema).write.json(str(tmp_path / name))
    of_events = ["--key", "id", "--sequence-by", "n", "--deletes", "op = 'd'"]
    of_events += ["--except-column", "op", "--except-column", "n"]
    of_files = ["--format", "json", "--schema", schema, "--option", "mode=FAILFAST"]
    path = tmp_path / "orders"
    for name in ("newer", "older", "older"):  # too late, and again
        result = run("apply-changes", path, tmp_path / name, *of_events, *of_files, "--json")
        merged = printed(result)
        assert merged["warnings"] == []
    table = Table(spark, str(path)).read()
    # 1 keeps its newer state, 2 stays deleted, 3 has come once.
    assert sorted((row.id, row.state) for row in table.collect()) == [(1, "sent"), (3, "open")]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "--key"),
        (["--key", "id"], 2, "--sequence-by"),
        (["--key", "id", "--sequence-by", "n", "--scd-type", 3], 2, "--scd-type"),
        (["--key", "id", "--sequence-by", "n", "--option", "x"], 2, "--option x: give it as"),
        (["--key", "id", "--sequence-by", "n", "--option", "password=x"], 2, "can read the comm"),
        (["--key", "id", "--sequence-by", "n"], 1, "of /nowhere/orders"),
    ],
)
@pytest.mark.usefixtures("spark")
def test_change_events_that_cannot_be_applied_are_reported(
    arguments: list[object], code: int, said: str
) -> None:
    result = run("apply-changes", "/nowhere/orders", "/nowhere/events", *arguments)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("spark")
def test_a_value_of_another_type_is_refused_with_file_record_and_column(
    tmp_path: Path,
) -> None:
    path, schema = tmp_path / "orders", "id INT, state STRING, n INT"
    of_events = ["--key", "id", "--sequence-by", "coalesce(n, 0)", "--schema", schema]
    for format, text in (
        ("csv", "id,state,n\n1,open,1\n2,sent,two\n"),
        ("json", '{"id": 1, "n": 1}\n{"id": 2, "state": "sent", "n": "two"}\n'),
    ):
        events = tmp_path / f"events.{format}"
        events.write_text(text)
        of_file = ["--format", format, "--option", "header=true"]
        result = run("apply-changes", path, events, *of_events, *of_file)
        assert result.exit_code == 1, result.output
        for said in (str(path), events.name, "The record is", "sent"):
            assert said in result.stderr
        assert "Column n is declared as INT, and 'two' cannot be read as one." in result.stderr
        assert "mode=PERMISSIVE" in result.stderr


@pytest.mark.minutes
def test_events_of_a_table_at_a_path_are_its_rows_and_not_all_of_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, path = str(tmp_path / "events"), tmp_path / "orders"
    write_table(spark, events, [(1, "wrong", 2), (1, "open", 1)], "id INT, state STRING, n INT")
    spark.sql(f"DELETE FROM delta.`{events}` WHERE state = 'wrong'")
    of_events = ["--key", "id", "--sequence-by", "n", "--json"]
    # What is here is a path, also without a slash; what is not is a name, and no place for a table.
    monkeypatch.chdir(tmp_path)
    unknown = run("apply-changes", "orders", "events", *of_events)
    assert unknown.exit_code == 1
    assert "as ./orders" in unknown.stderr
    printed(run("apply-changes", path, "events", *of_events))
    assert printed(run("history", "orders", "--json"))
    assert [row.state for row in Table(spark, str(path)).read().collect()] == ["open"]


@pytest.mark.usefixtures("spark")
def test_no_table_is_made_by_a_name_and_no_credentials_are_taken(tmp_path: Path) -> None:
    of_events = ["--key", "id", "--sequence-by", "n"]
    by_name = run("apply-changes", "no_such_table", tmp_path, *of_events)
    assert by_name.exit_code == 1
    assert "creates tables at paths alone" in by_name.stderr
    option = ["--option", "url=s3a://key:hidden@bucket/events"]
    with_key = run("apply-changes", tmp_path / "orders", tmp_path, *of_events, *option)
    assert with_key.exit_code == 1
    assert "hidden" not in with_key.output


@pytest.fixture
def small_files(spark: SparkSession, tmp_path: Path) -> str:
    """A table of nine files of a row, each well below the size that counts as small."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k,) for k in range(9)], "k INT", files=9)
    return path


@pytest.mark.minutes
def test_a_table_is_maintained_where_its_log_says_so(spark: SparkSession, small_files: str) -> None:
    only = ["--only", "optimize", "--only", "statistics"]
    done = printed(run("maintain", small_files, *only, "--json"))
    assert list(done) == ["optimize", "statistics"]
    assert done["optimize"]["description"] == (
        "OPTIMIZE compacted 9 files into 1: 9 of 9 files were small"
    )
    assert (done["optimize"]["files_removed"], done["optimize"]["files_added"]) == (9, 1)
    again = run("maintain", small_files, *only)
    assert again.exit_code == 0, again.output
    assert "Nothing to optimize" in again.stdout
    assert Table(spark, small_files).read().count() == 9


@pytest.mark.minutes
def test_commands_take_relative_paths(spark: SparkSession, small_files: str) -> None:
    here = os.path.relpath(small_files)
    assert "vacuum" in printed(run("maintain", here, "--json"))
    orders = os.path.relpath(f"{small_files}/../orders")
    events = ["--key", "k", "--sequence-by", "k"]
    printed(run("apply-changes", orders, here, *events, "--json"))
    assert Table(spark, orders).read().count() == 9


@pytest.mark.minutes
def test_files_with_floating_bounds_are_counted_and_rewritten(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 1.0), (2, 2.0)], "k INT, d DOUBLE")
    source = frame(spark, [(1, float("nan"))], "k INT, d DOUBLE")
    merge = Table(spark, str(path)).merge(source, on="t.k = s.k").when_matched_update_all()
    with configured(spark, {ON_DRIVER: "true"}):
        merge.execute()
    [file] = Table(spark, str(path)).read().where("k = 1").inputFiles()
    give_floating_bounds(Path(file.removeprefix("file://")))
    assert printed(run("inspect", path, "--json"))["files_with_floating_bounds"] == 1
    result = run("maintain", path, "--only", "floating_bounds", "--json")
    assert result.exit_code == 0, result.output
    assert printed(run("inspect", path, "--json"))["files_with_floating_bounds"] == 0
    assert Table(spark, str(path)).read().where("d > 100").count() == 1


def test_what_was_done_before_an_error_is_printed(spark: SparkSession, small_files: str) -> None:
    spark.sql(
        f"ALTER TABLE delta.`{small_files}` SET TBLPROPERTIES "
        "(delta.deletedFileRetentionDuration = 'interval 1 hour')"
    )
    only = ["--only", "statistics", "--only", "vacuum"]
    result = run("maintain", small_files, *only, "--json")
    assert result.exit_code == 1
    assert "less than the 7 days" in result.stderr
    assert list(json.loads(result.stdout)) == ["statistics"]


@pytest.mark.usefixtures("spark")
def test_an_unknown_operation_and_a_missing_table_are_refused() -> None:
    unknown = run("maintain", "/nowhere/table", "--only", "compact")
    assert unknown.exit_code == 2
    assert "--only compact: there are optimize, purge" in unknown.stderr
    missing = run("maintain", "/nowhere/table")
    assert missing.exit_code == 1
    assert "of /nowhere/table" in missing.stderr
    assert missing.stdout == ""


def test_charts_are_drawn_of_merges_and_of_files(
    spark: SparkSession, small_files: str, tmp_path: Path
) -> None:
    table = Table(spark, small_files)
    changes = spark.createDataFrame([(1,), (20,)], "k INT")
    merge = table.merge(changes, on="t.k = s.k").when_matched_delete()
    merge.when_not_matched_insert_all().execute()

    merges = tmp_path / "merges.svg"
    assert run("history", small_files, "--plot", merges).exit_code == 0
    assert f"Merges into {small_files}" in written(merges)
    files = tmp_path / "files.svg"
    assert printed(run("inspect", small_files, "--plot", files, "--json"))["rows"] == 9
    assert f"Files of {small_files}" in written(files)


def written(svg: Path) -> str:
    """The texts of a drawing; matplotlib leaves each in a comment beside its shapes."""
    return svg.read_text().replace("<!-- ", "")


@pytest.mark.parametrize(
    ("file", "said"),
    [("chart.xyz", "its suffix must be one of"), ("missing/chart.png", "cannot be written")],
)
def test_a_chart_that_cannot_be_written_is_refused_before_spark_starts(
    file: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("deltaweave.cli.options.quiet_session", never)
    for command in ("history", "inspect"):
        result = run(command, "/nowhere/table", "--plot", tmp_path / file)
        assert result.exit_code == 2
        assert said in result.stderr


@pytest.mark.minutes
def test_charts_of_nothing_and_of_much_are_drawn(tmp_path: Path) -> None:
    metrics = {"numTargetRowsUpdated": 3, "executionTimeMs": 1500}
    merges = [{"version": version, "metrics": metrics} for version in range(100, 0, -1)]
    for name, some in (("none", []), ("much", merges)):
        inspection.plot_merges(some, "orders", tmp_path / f"{name}.png")
    for name, files in (("no_files", {}), ("files", {0: 1, 17: 1_000_000, 40: 2})):
        inspection.plot_files(files, 1 << 24, "orders", tmp_path / f"{name}.png")
    assert len(list(tmp_path.glob("*.png"))) == 4
    assert [
        inspection.size_label(size) for size in (0, 1, 1 << 10, 64 << 10, 3 << 30, 1 << 50)
    ] == [
        "0 B",
        "1 B",
        "1 KiB",
        "64 KiB",
        "3 GiB",
        "1024 TiB",
    ]
