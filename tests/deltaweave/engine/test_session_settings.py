"""Settings of a session mean for the engine what they mean for built-in MERGE."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.delta.commit import rewrite_files, without_session_transaction_id
from deltaweave.delta.jvm import IGNORING_FILES
from deltaweave.engine import run
from deltaweave.engine.merge_run import (
    MAX_COMMIT_ATTEMPTS,
    MAX_MARKED_FRACTION,
    ON_DRIVER,
    REWRITE_IN_PLACE,
)
from tests.builders import frame, write_table
from tests.deltaweave.delta.log.test_table_log import add_derby
from tests.merge_cases import CASES_BY_NAME
from tests.merge_cases.case import VECTORS_AND_FEED, Layout
from tests.support.big_source import keep_pairs_on_executors
from tests.support.oracles import (
    Stage,
    actions,
    assert_same_rows,
    commit_info,
    newest_version,
    rows_as_text,
)
from tests.support.settings import SETTINGS_OF_SPARK, WITHOUT_GROUPS, configured

APPLICATION = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
VECTORS = {"delta.enableDeletionVectors": "true"}
RESET = "spark.databricks.delta.write.txnVersion.autoReset.enabled"

# By case, the layout of its table and how the engine merges into it.
WAYS: tuple[tuple[str, Layout, dict[str, str]], ...] = (
    ("column_names_that_need_back_quotes", Layout(), {ON_DRIVER: "true"}),
    ("five_clauses_of_all_kinds", Layout(), {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}),
    ("five_clauses_of_all_kinds", VECTORS_AND_FEED, {ON_DRIVER: "false"}),
)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT")
    return Table(spark, path)


def upsert(table: Table, k: int, v: int) -> MergeResult:
    source = frame(table.spark, [(k, v)], "k INT, v INT")
    merge = table.merge(source, on="t.k = s.k")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def test_the_sessions_transaction_id_is_applied_once(table: Table) -> None:
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "3"}):
        first, again = upsert(table, 1, 100), upsert(table, 1, 101)
    assert (first.version, again.version, again.strategy) == (1, None, "already-applied")
    [pair] = [each["txn"] for each in actions(table.path_or_name, 1) if "txn" in each]
    assert (pair["appId"], pair["version"]) == ("nightly", 3)


def test_the_sessions_transaction_id_is_reset_after_its_use_if_asked(table: Table) -> None:
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "3", RESET: "true"}):
        upsert(table, 1, 100)
        assert table.spark.conf.get(VERSION, None) is None


@pytest.mark.minutes
def test_the_sessions_transaction_id_belongs_to_the_callers_writes(table: Table) -> None:
    """No commit that belongs to another write takes the pair, or is skipped for it."""
    rows = frame(table.spark, [(3, 30)], "k INT, v INT")
    index = f"{table.path_or_name}/_deltaweave_keys"
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "3", RESET: "true"}):
        table.index_keys("k")
        assert table.spark.conf.get(VERSION) == "3"
        assert upsert(table, 1, 100).version is not None
        assert table.spark.conf.get(VERSION, None) is None
    assert newest_version(index) == 1  # the merge's files, too
    assert Table(table.spark, index).last_applied("nightly") is None
    with configured(table.spark, {APPLICATION: "nightly", VERSION: "4"}):
        written = [table.write(rows, "append").version for _ in range(2)]
        table.write(rows.where("false"), "append", applied={"of another": 1})
        with without_session_transaction_id():
            table.delete("k = 2")
            table.write(rows.where("false"), "append")
    assert written == [table.version() - 3, None]
    committed = [
        each["txn"]["appId"]
        for at in range(table.version() + 1)
        for each in actions(table.path_or_name, at)
        if "txn" in each
    ]
    assert committed == ["nightly", "nightly", "of another"]
    assert rows_as_text(table.read().collect()) == ["(1, 100)", "(3, 30)"]


@pytest.mark.minutes
def test_back_quotes_enclose_names_where_a_session_takes_patterns(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, schema = str(tmp_path / "odd"), "`k.1` INT, k21 INT"
    properties = {"delta.columnMapping.mode": "name"}
    write_table(spark, path, [(1, 10), (2, 20)], schema, properties=properties)
    table, changes = Table(spark, path), frame(spark, [(1, 5), (3, 30)], schema)
    with configured(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}):
        merge = table.merge(changes, on="t.`k.1` = s.`k.1`")
        merge.when_matched_update({"k21": "t.k21 + s.`k.1`"}, "s.`k.1` = 1")
        merge.when_not_matched_insert({"`k.1`": "s.`k.1`", "k21": "s.k21"}).execute()
        newer = frame(spark, [(2, 22)], schema)
        table.write(newer, "overwrite", replace_where="`k.1` = 2")
    assert rows_as_text(table.read().collect()) == ["(1, 11)", "(2, 22)", "(3, 30)"]


def test_half_a_transaction_id_is_refused(table: Table) -> None:
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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MAX_COMMIT_ATTEMPTS, "many"),
        (MAX_COMMIT_ATTEMPTS, "1.5"),
        (MAX_MARKED_FRACTION, "half"),
        (MAX_MARKED_FRACTION, "-1"),
        (MAX_MARKED_FRACTION, "nan"),
    ],
)
def test_a_setting_that_is_no_number_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, key: str, value: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT", properties=VECTORS)
    with (
        configured(spark, {key: value}),
        pytest.raises(errors.SettingError, match=f"{key} is '{value}'"),
    ):
        upsert(Table(spark, path), 1, 100)
    assert newest_version(path) == 0


@pytest.mark.minutes
def test_rows_that_cannot_be_read_are_never_taken_as_not_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where Spark passes over files, a part of the table would be taken for the whole of it."""
    marked, copied = str(tmp_path / "marked"), str(tmp_path / "copied")
    for path, properties in ((marked, VECTORS), (copied, {})):
        write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT", properties=properties)
        with configured(spark, {"spark.databricks.delta.stats.collect": "false"}):
            frame(spark, [(3, 30)], "k INT, v INT").write.format("delta").mode("append").save(path)
        [add] = [each["add"] for each in actions(path, 1) if "add" in each]
        lost = Path(path, add["path"])
        if path == marked:
            lost.unlink()
        else:
            lost.write_bytes(b"x" * lost.stat().st_size)
    table = Table(spark, copied)
    every = table.merge(frame(spark, [(1, 1)], "k INT, v INT"), on="t.k = s.k")
    uses: dict[str, Callable[[], object]] = {
        "marks": lambda: upsert(Table(spark, marked), 3, 300),
        "rewrite": lambda: upsert(table, 3, 300),
        "whole": lambda: every.when_not_matched_by_source_update({"v": "t.v + 1"}).execute(),
        "read": lambda: table.read().count(),
        "read at a version": lambda: table.read(version=1).count(),
        "statistics": table.compute_missing_statistics,
        "index": lambda: table.index_keys("k"),
        "upkeep": lambda: rewrite_all(table),
        "compact": table.compact,
        "delete": lambda: table.delete("v = 10"),
        "replace": lambda: table.write(
            frame(spark, [(1, 1)], "k INT, v INT"), "overwrite", replace_where="k = 1"
        ),
    }
    succeeded = []
    with configured(spark, {**dict.fromkeys(IGNORING_FILES, "TRUE"), ON_DRIVER: "false"}):
        uses["on the driver"] = configured(spark, {ON_DRIVER: "true"})(uses["rewrite"])
        for name, use in uses.items():
            with suppress(Exception):
                use()
                succeeded.append(name)
    assert succeeded == []
    # Only the property of the index was set.
    assert (newest_version(marked), newest_version(copied)) == (1, 2)


@pytest.mark.parametrize("key", IGNORING_FILES)
def test_where_delta_reads_the_settings_are_refused(table: Table, key: str) -> None:
    rows = frame(table.spark, [(1, 1)], "k INT, v INT")
    uses: list[Callable[[], object]] = [
        table.compact,
        lambda: table.delete("v = 10"),
        lambda: table.write(rows, "overwrite", replace_where="k = 1"),
        lambda: table.snapshot().read_change_feed(0),
    ]
    with configured(table.spark, {key: "TRUE"}):
        for use in uses:
            with pytest.raises(errors.SettingError, match=key):
                use()
    assert newest_version(table.path_or_name) == 0


@pytest.mark.minutes
def test_delta_does_not_compact_where_it_passes_over_files(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "table")
    rows = [(k, 0) for k in range(4)]
    write_table(
        spark,
        path,
        rows,
        "k INT, v INT",
        files=4,
        setup=(
            "ALTER TABLE {target} SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",
        ),
    )
    adds = [each["add"] for each in actions(path, 0) + actions(path, 1) if "add" in each]
    [lost] = [add["path"] for add in adds if json.loads(add["stats"])["minValues"]["k"] == 3]
    Path(path, lost).unlink()
    table = Table(spark, path)
    few = {"spark.databricks.delta.autoCompact.minNumFiles": "2", IGNORING_FILES[1]: "true"}
    writes: list[Callable[[], object]] = [
        configured(spark, {ON_DRIVER: "true"})(lambda: upsert(table, 1, 100)),
        configured(spark, {ON_DRIVER: "false"})(lambda: upsert(table, 2, 100)),
        lambda: table.write(frame(spark, [(4, 0)], "k INT, v INT"), "append"),
    ]
    began = newest_version(path)
    with configured(spark, few), caplog.at_level("WARNING", "deltaweave"):
        for write in writes:
            write()
    assert newest_version(path) == began + len(writes)  # no OPTIMIZE
    told = [each for each in caplog.messages if "not compacted" in each]
    assert len(told) == len(writes)


@pytest.mark.minutes
def test_partitions_are_replaced_also_where_spark_passes_over_files(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT", partition_by=["k"])
    with configured(spark, dict.fromkeys(IGNORING_FILES, "true")):
        rows = frame(spark, [(1, 11)], "k INT, v INT")
        with caplog.at_level("WARNING", "deltaweave"):
            Table(spark, path).write(rows, "overwrite", replace_where="K = 1")
    assert "compacted" not in caplog.text  # which this table does not ask for
    assert rows_as_text(Table(spark, path).read().collect()) == ["(1, 11)", "(2, 20)"]


OF_REPLACING = "spark.databricks.delta.replaceWhere."
# Settings without which Delta does not do what `Table.write` promises.
NEEDED_TO_REPLACE = (
    f"{OF_REPLACING}constraintCheck.enabled",
    f"{OF_REPLACING}dataColumnsWithCDF.enabled",
)


@pytest.mark.minutes
@pytest.mark.parametrize("predicate", ["k = 1", "k = 1 AND v > 0"])
@pytest.mark.parametrize("key", NEEDED_TO_REPLACE)
def test_rows_are_replaced_as_promised_whatever_a_session_switches_off(
    spark: SparkSession, tmp_path: Path, key: str, predicate: str
) -> None:
    path, schema = str(tmp_path / "table"), "k INT, v INT"
    feed = {"delta.enableChangeDataFeed": "true"}
    write_table(spark, path, [(1, 10), (2, 20)], schema, partition_by=["k"], properties=feed)
    table, others = Table(spark, path), frame(spark, [(2, 21)], schema)
    with configured(spark, {key: "false"}):
        with pytest.raises(errors.DeltaweaveError, match=r"(?s)k = 1"):
            table.write(others, "overwrite", replace_where=predicate)
        table.write(frame(spark, [(1, 11)], schema), "overwrite", replace_where=predicate)
    assert rows_as_text(table.read().collect()) == ["(1, 11)", "(2, 20)"]
    changes = table.snapshot().read_change_feed(1).select("_change_type", *schema.split()[::2])
    assert rows_as_text(changes.collect()) == ["('delete', 1, 10)", "('insert', 1, 11)"]


def rewrite_all(table: Table) -> int:
    paths = table.snapshot().files.select("path")
    return rewrite_files(table.spark, table.snapshot().log, paths)


def test_the_materialization_of_the_source_is_reported(table: Table) -> None:
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
    assert "had 1 row, then 2" in str(raised.value)
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


@pytest.mark.minutes
@pytest.mark.parametrize("settings", SETTINGS_OF_SPARK)
def test_no_setting_of_spark_changes_what_queries_of_the_engine_mean(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    keep_pairs_on_executors(monkeypatch)
    for name, layout, way in WAYS:
        conf = dict(SETTINGS_OF_SPARK[settings])
        also = {key: conf.pop(key) for key in WITHOUT_GROUPS if key in conf}
        case = replace(CASES_BY_NAME[name], conf=conf)
        stage = Stage(spark, case, tmp_path / f"{name}_{layout}", layout)
        theirs = stage.by_oracle()
        with configured(spark, {**way, **also}):
            ours = stage.by_sql()
        assert_same_rows(case, ours, theirs)
        assert ours.changes == theirs.changes


def test_settings_that_queries_of_the_engine_lack_stay_in_the_session(table: Table) -> None:
    last = "spark.databricks.delta.lastCommitVersionInSession"
    settings = SETTINGS_OF_SPARK["names and groups"]
    with configured(table.spark, {**settings, last: "7", ON_DRIVER: "false"}):
        result = upsert(table, 1, 100)
        assert {key: table.spark.conf.get(key) for key in settings} == settings
        assert table.spark.conf.get(last) == str(result.version)
        active = table.spark.getActiveSession()
    assert active is None or active._jsparkSession.equals(table.spark._jsparkSession)
    assert rows_as_text(table.read().collect()) == ["(1, 100)", "(2, 20)"]


@pytest.mark.parametrize("settings", [{}, WITHOUT_GROUPS])
def test_a_source_names_the_catalog_that_is_current(table: Table, settings: dict[str, str]) -> None:
    """Spark puts the name in when it plans a query, in the session that runs it."""
    session = table.spark.newSession()
    add_derby(session)
    session.sql("USE derby")
    text = (
        f"MERGE INTO spark_catalog.delta.`{table.path_or_name}` t "
        "USING (SELECT 1 AS k, length(current_catalog()) AS v) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    with configured(session, settings):
        deltaweave.merge(session, text)
    assert rows_as_text(table.read().collect()) == [f"(1, {len('derby')})", "(2, 20)"]
