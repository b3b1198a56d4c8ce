"""Delta's settings of a session mean for the engine what they mean for built-in MERGE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.engine import run
from tests.builders import frame, write_table
from tests.oracles import actions, commit_info, configured, newest_version

APPLICATION = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
RESET = "spark.databricks.delta.write.txnVersion.autoReset.enabled"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT")
    return Table(spark, path)


def upsert(table: Table, k: int, v: int) -> MergeResult:
    source = frame(table.spark, [(k, v)], "k INT, v INT")
    merge = table.merge(source, on="t.k = s.k")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def test_the_sessions_idempotency_pair_is_applied_once(table: Table) -> None:
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "3"}):
        first, again = upsert(table, 1, 100), upsert(table, 1, 101)
    assert (first.version, again.version, again.strategy) == (1, None, "already-applied")
    [pair] = [each["txn"] for each in actions(table.path_or_name, 1) if "txn" in each]
    assert (pair["appId"], pair["version"]) == ("nightly", 3)


def test_the_sessions_pair_is_reset_after_its_use_where_asked(table: Table) -> None:
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "3", RESET: "true"}):
        upsert(table, 1, 100)
        assert table.spark.conf.get(VERSION, None) is None


def test_half_an_idempotency_pair_is_refused(table: Table) -> None:
    with (
        configured(table.spark, {APPLICATION: "nightly"}),
        pytest.raises(errors.StatementError, match="txnVersion"),
    ):
        upsert(table, 1, 100)
    assert newest_version(table.path_or_name) == 0


def test_the_sessions_user_metadata_is_in_the_commit(table: Table) -> None:
    key = "spark.databricks.delta.commitInfo.userMetadata"
    with configured(table.spark, {key: "release 7"}):
        upsert(table, 1, 100)
    assert commit_info(table.path_or_name, 1)["userMetadata"] == "release 7"


def test_the_materialization_of_the_source_is_told(table: Table) -> None:
    result = upsert(table, 1, 100)
    assert result.source_materialization == "NON_DETERMINISTIC_SOURCE_NON_DELTA"
    assert result.attempts == 1


@pytest.mark.parametrize("asked", ["true", "false"])
def test_a_source_that_changes_meanwhile_is_an_error_where_asked(
    table: Table, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The source is not materialized, and has a row more once the merge counted its rows."""
    changed = Path(f"{table.path_or_name}_changed")
    is_there = F.udf(lambda k: k == 1 or changed.exists(), BooleanType())
    source = frame(table.spark, [(1, 100), (3, 300)], "k INT, v INT").where(is_there("k"))
    source.createOrReplaceTempView("changing_source")
    write_changes = run.write_changes

    def change_and_write(*arguments: Any) -> Any:
        changed.touch()
        return write_changes(*arguments)

    monkeypatch.setattr(run, "write_changes", change_and_write)
    statement = (
        f"MERGE INTO delta.`{table.path_or_name}` t USING changing_source s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    settings = {
        "spark.databricks.delta.merge.materializeSource": "none",
        "spark.databricks.delta.merge.failIfSourceChanged": asked,
    }
    with configured(table.spark, settings):
        if asked == "false":
            assert deltaweave.merge(table.spark, statement).version == 1
            return
        with pytest.raises(errors.SourceError, match="not deterministic") as raised:
            deltaweave.merge(table.spark, statement)
    assert "had 1 rows, then 2" in str(raised.value)
    assert newest_version(table.path_or_name) == 0


def test_in_commit_timestamps_rise_with_the_versions(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "stamped")
    stamped = {"delta.enableInCommitTimestamps": "true"}
    write_table(spark, path, [(1, 10)], "k INT, v INT", properties=stamped)
    for value in (100, 101):
        upsert(Table(spark, path), 1, value)
    stamps = [commit_info(path, version)["inCommitTimestamp"] for version in range(3)]
    assert stamps == sorted(set(stamps))


@pytest.mark.minutes
def test_a_checkpoint_is_written_when_one_is_due(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpointed")
    often = {"delta.checkpointInterval": "2"}
    write_table(spark, path, [(1, 10)], "k INT, v INT", properties=often)
    for value in (100, 101):
        upsert(Table(spark, path), 1, value)
    checkpoints = (Path(path) / "_delta_log").glob("[0-9]*.checkpoint*")
    assert [file.name[:20] for file in checkpoints] == [f"{2:020}"]
