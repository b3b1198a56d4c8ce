"""What the engine does beyond built-in MERGE, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deltaweave import MergeResult, Table, TouchedFiles, errors
from tests.builders import Rows, frame, write_table
from tests.support.oracles import actions, newest_version, rows_as_text
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

SCHEMA = "k INT, v INT"
PARTITIONED = "k INT, v INT, p STRING"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    """Keys 0 to 7 in four files of two, each with a value of ten times the key."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, k * 10) for k in range(8)], SCHEMA, files=4)
    return Table(spark, path)


def upsert(table: Table, rows: Rows, schema: str = SCHEMA, **arguments: Any) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, schema), on="t.k = s.k", **arguments)
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def file_of_each_key(table: Table) -> dict[int, str]:
    rows = table.read().selectExpr("k", "_metadata.file_name AS file").collect()
    return {row.k: row.file for row in rows}


def test_a_merge_that_changes_nothing_commits_nothing(table: Table) -> None:
    source = frame(table.spark, [(1, 100), (99, 990)], SCHEMA)
    result = (
        table.merge(source, on="t.k = s.k")
        .when_matched_update_all(condition="s.v < 0")
        .when_not_matched_insert_all(condition="s.v < 0")
        .when_not_matched_by_source_delete(condition="t.v < 0")
        .execute()
    )
    assert (result.version, result.strategy) == (None, "none")
    assert result.touched_files == TouchedFiles()
    assert result.metrics.num_source_rows == 2
    assert newest_version(table.path_or_name) == 0


def test_an_insert_only_merge_that_inserts_nothing_commits_nothing(table: Table) -> None:
    source = frame(table.spark, [(1, 100)], SCHEMA)
    result = table.merge(source, on="t.k = s.k").when_not_matched_insert_all().execute()
    assert (result.version, result.touched_files) == (None, TouchedFiles())
    assert newest_version(table.path_or_name) == 0


@pytest.mark.minutes
def test_a_file_in_which_no_row_changes_is_not_rewritten(table: Table) -> None:
    """Keys of three files match, but a clause takes a row of one file alone."""
    files = file_of_each_key(table)
    source = frame(table.spark, [(0, -1), (2, 100), (5, 1)], SCHEMA)
    merge = table.merge(source, on="t.k = s.k").when_matched_update_all(condition="s.v > t.v")
    result = merge.execute()
    assert result.touched_files.removed == (files[2],)
    assert result.metrics.num_target_rows_copied == 1
    after = file_of_each_key(table)
    assert {k for k in after if after[k] != files[k]} == {2, 3}


@pytest.mark.minutes
def test_touched_files_are_those_of_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "a b")
    rows = [(1, 10, "x y"), (2, 20, "50%"), (3, 30, "é/=")]
    write_table(spark, path, rows, PARTITIONED, partition_by=["p"])
    table = Table(spark, path)
    before = set(DeltaTable(path).file_uris())
    result = upsert(table, [(1, 100, "x y"), (2, 200, "50%"), (4, 400, "n w")], PARTITIONED)

    assert result.version == 1
    logged = actions(path, 1)
    removed = {action["remove"]["path"] for action in logged if "remove" in action}
    added = {action["add"]["path"] for action in logged if "add" in action}
    assert set(result.touched_files.removed) == removed
    assert set(result.touched_files.added) == added
    assert (len(removed), len(added)) == (2, 3)
    assert all((Path(path) / unquote(file)).is_file() for file in removed | added)
    after = set(DeltaTable(path).file_uris())
    assert len(before - after) == len(removed)
    assert len(after - before) == len(added)


@pytest.mark.minutes
def test_written_files_hold_the_tables_columns_alone(table: Table) -> None:
    source = frame(table.spark, [(1, 100), (99, 990)], SCHEMA)
    result = (
        table.merge(source, on="t.k = s.k")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_update({"v": "0"}, condition="t.k = 6")
        .execute()
    )
    files = [Path(table.path_or_name) / unquote(file) for file in result.touched_files.added]
    assert files
    assert {tuple(pq.read_schema(file).names) for file in files} == {("k", "v")}


def test_a_transaction_id_is_applied_once(table: Table) -> None:
    first = upsert(table, [(1, 100)], idempotency=("loader", 7))
    again = upsert(table, [(1, 101)], idempotency=("loader", 7))
    older = upsert(table, [(1, 102)], idempotency=("loader", 6))
    newer = upsert(table, [(2, 200)], idempotency=("loader", 8))
    other = upsert(table, [(3, 300)], idempotency=("another loader", 1))

    assert [first.version, newer.version, other.version] == [1, 2, 3]
    assert [again.strategy, older.strategy] == ["already-applied"] * 2
    assert [again.version, older.version] == [None, None]
    assert [table.last_applied(name) for name in ("loader", "another loader", "none")] == [
        8,
        1,
        None,
    ]
    assert rows_as_text(table.read().where("k BETWEEN 1 AND 3").collect()) == [
        "(1, 100)",
        "(2, 200)",
        "(3, 300)",
    ]


def test_a_transaction_id_is_in_the_commit_of_its_merge(table: Table) -> None:
    result = upsert(table, [(1, 100)], idempotency=("loader", 7))
    assert result.version is not None
    [pair] = [each["txn"] for each in actions(table.path_or_name, result.version) if "txn" in each]
    assert (pair["appId"], pair["version"]) == ("loader", 7)


def test_a_transaction_id_is_kept_though_nothing_changes(table: Table) -> None:
    upsert(table, [], idempotency=("loader", 7))
    assert table.last_applied("loader") == 7


@pytest.mark.minutes
@pytest.mark.parametrize("description", ["nightly load", None])
def test_the_users_job_description_is_as_it_was(table: Table, description: str | None) -> None:
    context = table.spark.sparkContext
    context.setLocalProperty("spark.job.description", description)  # type: ignore[arg-type]
    try:
        upsert(table, [(1, 100), (99, 990)])
        assert context.getLocalProperty("spark.job.description") == description
        with pytest.raises(errors.AmbiguousMatchError):
            upsert(table, [(1, 100), (1, 101)])
        assert context.getLocalProperty("spark.job.description") == description
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def test_no_session_configuration_is_changed(table: Table) -> None:
    def configuration() -> dict[str, str]:
        # Delta itself notes each commit's version here.
        noted = "spark.databricks.delta.lastCommitVersionInSession"
        return {key: value for key, value in table.spark.conf.getAll.items() if key != noted}

    before = configuration()
    upsert(table, [(1, 100, 5), (99, 990, 6)], "k INT, v INT, w INT", with_schema_evolution=True)
    assert configuration() == before


def test_no_view_or_cached_data_is_left_behind(table: Table) -> None:
    spark = table.spark

    def cached() -> set[int]:
        return set(spark.sparkContext._jsc.getPersistentRDDs())

    views = set(spark.sql("SHOW VIEWS").collect())
    before = cached()
    upsert(table, [(1, 100), (99, 990)])
    assert set(spark.sql("SHOW VIEWS").collect()) == views
    # No equality: Spark forgets what others cached as soon as nothing refers to it.
    assert cached() <= before


@pytest.mark.minutes
def test_a_cached_frame_over_the_target_shows_the_merged_rows(table: Table) -> None:
    def total() -> int:
        return table.read().selectExpr("sum(v)").first()[0]

    cached = table.read().cache()
    try:
        assert cached.count() == 8
        before = total()
        upsert(table, [(1, 1010), (99, 5)])
        assert total() == before + 1000 + 5
    finally:
        cached.unpersist()


def test_another_engine_reads_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "a b")
    write_table(
        spark,
        path,
        [(1, 10, "x y"), (2, 20, "50%"), (3, 30, None)],
        PARTITIONED,
        partition_by=["p"],
    )
    upsert(Table(spark, path), [(1, 100, "x y"), (3, 300, "é/="), (4, 400, None)], PARTITIONED)
    read = DeltaTable(path).to_pyarrow_table(columns=["k", "v", "p"]).to_pylist()
    assert rows_as_text(tuple(row.values()) for row in read) == rows_as_text(
        [(1, 100, "x y"), (2, 20, "50%"), (3, 300, "é/="), (4, 400, None)]
    )


def test_statistics_of_written_files_count_every_row_and_bound_every_key(table: Table) -> None:
    upsert(table, [(1, 100), (99, 990)])
    added = DeltaTable(table.path_or_name).get_add_actions(flatten=True)
    added = pa.table(added).to_pydict()
    assert sum(added["num_records"]) == 9
    for file, low, high in zip(added["path"], added["min.k"], added["max.k"], strict=True):
        keys = pq.read_table(Path(table.path_or_name) / file)["k"].to_pylist()
        assert (low, high) == (min(keys), max(keys))


# The files by which versions differ are found in the versions' checksums, or by a query. A file
# whose rows were marked as deleted is another one.
@pytest.mark.minutes
@pytest.mark.parametrize(("in_checksum", "vectors"), [("true", "true"), ("false", "false")])
def test_touched_rows_give_the_change_of_a_sum_over_several_merges(
    table: Table, in_checksum: str, vectors: str
) -> None:
    def total(frame: Any) -> int:
        return frame.selectExpr("coalesce(sum(v), 0)").first()[0]

    table.spark.sql(
        f"ALTER TABLE delta.`{table.path_or_name}` "
        f"SET TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')"
    )
    sums = {1: total(table.read())}
    with configured(table.spark, {"spark.databricks.delta.allFilesInCrc.enabled": in_checksum}):
        for rows in ([(1, 100), (50, 5)], [(50, 6), (2, -7)], [(0, 1), (60, 60)]):
            version = upsert(table, rows).version
            assert version is not None
            sums[version] = total(table.read())

        for after, until in ((1, 2), (2, 4), (1, None), (3, 3)):
            touched = table.touched_rows(after, until)
            change = total(touched.added) - total(touched.removed)
            assert change == sums[touched.until] - sums[after]
        everything = table.touched_rows(None)
        jobs = jobs_of(table.spark, in_checksum, lambda: table.touched_rows(2, 3))
        assert (jobs == 0) == (in_checksum == "true")
    assert (total(everything.added), everything.removed_files) == (sums[4], 0)


def test_a_cast_that_a_condition_guards_does_not_fail(table: Table) -> None:
    """Values of rows that no clause takes are never computed."""
    source = frame(table.spark, [(1, "100"), (2, "none"), (99, "x")], "k INT, v STRING")
    result = (
        table.merge(source, on="t.k = s.k")
        .when_matched_update({"v": "CAST(s.v AS INT)"}, condition="s.v <> 'none'")
        .when_not_matched_insert(
            {"k": "s.k", "v": "CAST(s.v AS INT)"}, condition="try_cast(s.v AS INT) IS NOT NULL"
        )
        .execute()
    )
    assert result.metrics.num_target_rows_updated == 1
    assert result.metrics.num_target_rows_inserted == 0
