"""On a local disk, a commit waits for that of another process: no version is written twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave.delta.commit import local_disk
from deltaweave.delta.commit.local_disk import alone_on_local_disk
from tests.builders import frame, write_table
from tests.locks import Waits, is_free, waits_for_locks
from tests.oracles import newest_version

HOLDER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold a directory's lock in another process, which is killed when the block ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


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


def test_a_commit_waits_for_the_lock_of_its_table_and_of_no_other(
    spark: SparkSession, tmp_path: Path, waits: Waits
) -> None:
    path, other = tmp_path / "table", tmp_path / "other"
    for each in (path, other):
        write_table(spark, str(each), [(1, 10)], "k INT, v INT")
    rows = frame(spark, [(2, 20)], "k INT, v INT")
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_process(path):
            merge = Table(spark, str(path)).merge(rows, on="t.k = s.k")
            future = begun(waits, pool, merge.when_not_matched_insert_all().execute)
            assert newest_version(str(path)) == 0
            assert Table(spark, str(other)).write(rows, "append").version == 1
        future.result()  # the other process was killed
    assert newest_version(str(path)) == 1
    assert waits.waited_for == [str(path)]
    assert is_free(path)


def test_creating_a_table_waits_for_another_creator(
    spark: SparkSession, tmp_path: Path, waits: Waits
) -> None:
    path = tmp_path / "lake" / "table"
    path.mkdir(parents=True)
    table = Table(spark, str(path))
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_process(path):
            future = begun(waits, pool, lambda: table.create_if_missing("k INT"))
            assert not (path / "_delta_log").exists()
        future.result()
    assert table.version() == 0
    assert is_free(path)


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
            with held_by_another_process(path):
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


def test_threads_take_turns_and_an_error_releases_the_lock(tmp_path: Path) -> None:
    inside: list[int] = []

    def alone(number: int) -> None:
        with alone_on_local_disk(f"file:{tmp_path}"):
            inside.append(number)
            assert inside == [number]
            inside.clear()
            raise ValueError

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(alone, number) for number in range(64)]
    assert {type(future.exception()) for future in futures} == {ValueError}
    assert is_free(tmp_path)


def test_a_directory_that_takes_the_place_of_a_locked_one_is_locked_in_turn(
    tmp_path: Path, waits: Waits
) -> None:
    directory = tmp_path / "table"
    directory.mkdir()

    def alone() -> bool:
        with alone_on_local_disk(f"file:{directory}"):
            return is_free(directory)

    with ThreadPoolExecutor(1) as pool:
        with held_by_another_process(directory):
            future = begun(waits, pool, alone)
            directory.rename(tmp_path / "old")
            directory.mkdir()
        assert future.result() is False


@pytest.mark.parametrize("location", ["s3a://bucket/table", "file:/there/is/no/such/directory"])
def test_elsewhere_there_is_no_lock(location: str) -> None:
    with alone_on_local_disk(location):
        pass


def test_a_file_system_without_locks_is_written_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(local_disk.fcntl, "flock", refuse)
    with alone_on_local_disk(f"file:{tmp_path}"):
        pass
