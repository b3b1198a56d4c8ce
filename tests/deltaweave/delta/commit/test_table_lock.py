"""On a local disk, a commit waits for that of another process: no version is written twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave.delta.commit.table_lock import LOCK_TIMEOUT
from tests.builders import frame, write_table
from tests.support.locks import (
    Waits,
    held_by_another_process,
    is_free,
    lock_file,
    lock_file_of_creation,
    waits_for_locks,
)
from tests.support.oracles import newest_version
from tests.support.settings import configured


@pytest.fixture
def waits() -> Iterator[Waits]:
    with waits_for_locks() as handler:
        yield handler


def begun(waits: Waits, pool: ThreadPoolExecutor, work: object) -> Future[object]:
    """Begin some work that commits, and return when it waits for the lock."""
    future: Future[object] = pool.submit(work)  # type: ignore[arg-type]
    while not waits.began.wait(0.1):
        assert not future.done(), "it did not wait"
    return future


@pytest.mark.minutes
def test_a_commit_waits_for_the_lock_of_its_table_and_of_no_other(
    spark: SparkSession, tmp_path: Path, waits: Waits
) -> None:
    path, other = tmp_path / "table", tmp_path / "other"
    for each in (path, other):
        write_table(spark, str(each), [(1, 10)], "k INT, v INT")
    rows = frame(spark, [(2, 20)], "k INT, v INT")
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_process(lock_file(path)):
            merge = Table(spark, str(path)).merge(rows, on="t.k = s.k")
            future = begun(waits, pool, merge.when_not_matched_insert_all().execute)
            assert newest_version(str(path)) == 0
            assert Table(spark, str(other)).write(rows, "append").version == 1
        future.result()  # the other process was killed
    assert newest_version(str(path)) == 1
    assert waits.waited_for == [str(path / "_delta_log")]
    assert is_free(path)


def test_creating_a_table_waits_for_another_creator(
    spark: SparkSession, tmp_path: Path, waits: Waits
) -> None:
    path = tmp_path / "lake" / "table"
    path.mkdir(parents=True)
    table = Table(spark, str(path))
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_process(lock_file_of_creation(path)):
            future = begun(waits, pool, lambda: table.create_if_missing("k INT"))
            assert not (path / "_delta_log").exists()
        future.result()
    assert table.version() == 0
    assert is_free(path)
    assert not lock_file_of_creation(path).exists()


def test_a_table_of_the_catalog_is_created_under_the_lock_of_its_directory(
    spark: SparkSession, waits: Waits
) -> None:
    spark.sql("CREATE DATABASE local_disk")
    try:
        place = spark.sql("DESCRIBE DATABASE local_disk").where("info_name = 'Location'")
        path = Path(str(place.first()["info_value"]).removeprefix("file:"), "t")  # type: ignore[index]
        path.mkdir(parents=True)
        table = Table(spark, "local_disk.t")
        with ThreadPoolExecutor(1) as pool:
            with held_by_another_process(lock_file_of_creation(path)):
                future = begun(waits, pool, lambda: table.create_if_missing("k INT"))
            future.result()
        assert table.location() == f"file:{path}"
    finally:
        spark.sql("DROP DATABASE local_disk CASCADE")


def test_a_table_that_cannot_be_created_leaves_no_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "lake" / "table"
    with pytest.raises(errors.DeltaweaveError):
        Table(spark, str(path)).create_if_missing("k INT", partition_by=["no_column"])
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_fails_releases_the_lock(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT")
    table, rows = Table(spark, str(path)), frame(spark, [(2, 20)], "k INT, v INT")
    table.write(rows, "append")
    with pytest.raises(errors.CommitConflictError):
        table.write(rows, "overwrite", computed_from=0)
    assert is_free(path)


# A time limit, and what runs under the lock.
@pytest.mark.parametrize("operation", ["MERGE", "append", "DELETE", "indexing keys"])
def test_a_lock_that_stays_held_ends_the_wait_with_who_holds_it(
    spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT")
    table, rows = Table(spark, str(path)), frame(spark, [(2, 20)], "k INT, v INT")
    merge = table.merge(rows, on="t.k = s.k").when_not_matched_insert_all()
    calls = {
        "MERGE": lambda: merge.execute(),
        "append": lambda: table.write(rows, "append"),
        "DELETE": lambda: table.delete("k = 1"),
        "indexing keys": lambda: table.index_keys("k"),
    }
    before = files_in(path)
    with (
        configured(spark, {LOCK_TIMEOUT: "0.2"}),
        held_by_another_process(lock_file(path)) as holder,
        pytest.raises(errors.TableLockedError) as raised,
    ):
        calls[operation]()
    error = raised.value
    assert (error.table, error.operation) == (str(path), operation)
    assert str(holder.pid) in error.holder
    assert errors.NOTHING_COMMITTED in str(error)
    assert 0.2 <= error.waited_seconds < 10
    assert isinstance(error, errors.Transient)
    assert files_in(path) == before  # what was written is deleted
    calls[operation]()  # the other process was killed


def files_in(path: Path) -> set[Path]:
    return {each for each in path.rglob("*") if each.is_file() and each != lock_file(path)}


def test_a_limit_that_is_no_number_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT")
    with (
        configured(spark, {LOCK_TIMEOUT: "soon"}),
        held_by_another_process(lock_file(path)),
        pytest.raises(errors.StatementError, match="'soon'"),
    ):
        Table(spark, str(path)).delete("k = 1")


@pytest.mark.minutes
def test_all_that_reads_or_tidies_a_table_ignores_its_lock_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, clone = tmp_path / "table", tmp_path / "clone"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT")
    table = Table(spark, str(path))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for k in range(2, 4):  # which checkpoints, and cleans the log up
        table.write(frame(spark, [(k, 10)], "k INT, v INT"), "append")
    assert lock_file(path).exists()
    rows = {(k, 10) for k in range(1, 4)}
    assert set(map(tuple, table.read().collect())) == rows
    assert set(DeltaTable(str(path)).to_pyarrow_table()["k"].to_pylist()) == set(range(1, 4))
    DeltaTable(str(path)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    with configured(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    assert lock_file(path).exists()
    assert spark.read.parquet(str(path)).count() == 3
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{path}`")
    assert not lock_file(clone).exists()
    assert set(map(tuple, Table(spark, str(clone)).read().collect())) == rows
