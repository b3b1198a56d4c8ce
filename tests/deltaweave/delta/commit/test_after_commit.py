"""What fails after a commit, or within Delta's commit call, never makes of a commit a failure."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave.delta.commit import TableLock, commit_call
from deltaweave.delta.commit.commit_call import committed
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.jvm import Jvm
from deltaweave.delta.log import TableSnapshot
from deltaweave.engine import prune
from deltaweave.engine.pairs import Pairs
from deltaweave.log_store import STATE_UNKNOWN
from tests.builders import frame, write_table
from tests.support.oracles import newest_version, rows_as_text
from tests.support.settings import configured

MANIFEST = {"delta.compatibility.symlinkFormatManifest.enabled": "true"}


@pytest.fixture
def failing_hook(spark: SparkSession, tmp_path: Path) -> Table:
    """A table of (1, 10) whose commits are written, and then fail in a hook of Delta."""
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT", properties=MANIFEST)
    manifest = path / "_symlink_format_manifest"
    for file in manifest.iterdir():
        file.unlink()
    manifest.rmdir()
    manifest.touch()  # a file, where the hook wants to make a directory
    return Table(spark, str(path))


@pytest.mark.minutes
def test_a_merge_whose_post_commit_hook_fails_succeeds_with_a_warning(
    spark: SparkSession, failing_hook: Table, caplog: pytest.LogCaptureFixture
) -> None:
    merge = failing_hook.merge(frame(spark, [(1,)], "k INT"), on="t.k = s.k")
    with caplog.at_level(logging.WARNING, "deltaweave"):
        result = merge.when_matched_update({"v": "t.v + 1"}).execute()
    assert result.version == newest_version(failing_hook.path_or_name) == 1
    assert result.metrics["numTargetRowsUpdated"] == 1
    [warning] = result.warnings
    assert warning.startswith("version 1 is committed; ")
    assert warning in caplog.text
    assert rows_as_text(failing_hook.read().collect()) == ["(1, 11)"]


def test_an_append_whose_post_commit_hook_fails_succeeds_with_a_warning(
    spark: SparkSession, failing_hook: Table
) -> None:
    result = failing_hook.write(frame(spark, [(2, 20)], "k INT, v INT"), "append")
    assert result.version == newest_version(failing_hook.path_or_name) == 1
    assert len(result.warnings) == 1
    assert result.metrics["numOutputRows"] == 1
    assert rows_as_text(failing_hook.read().collect()) == ["(1, 10)", "(2, 20)"]


@pytest.mark.minutes
def test_a_cached_query_that_cannot_be_refreshed_is_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, other = str(tmp_path / "table"), str(tmp_path / "other")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    write_table(spark, other, [(1, 11)], "k INT, w INT")
    cached = Table(spark, path).read().join(Table(spark, other).read(), "k").cache()
    assert cached.count() == 1
    shutil.rmtree(other)  # so that the query cannot be planned again
    try:
        merge = Table(spark, path).merge(frame(spark, [(1, 12)], "k INT, v INT"), on="t.k = s.k")
        result = merge.when_matched_update_all().execute()
    finally:
        cached.unpersist()
    assert result.version == newest_version(path) == 1
    assert [warning.split(":")[0] for warning in result.warnings] == [
        "version 1 is committed; refreshing cached queries failed"
    ]


@pytest.mark.minutes
def test_a_key_index_that_cannot_be_kept_up_is_a_warning(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [(1, 10)], "k INT, v INT")
    table = Table(spark, str(path))
    table.index_keys("k")
    log = path / prune.KEY_INDEX_DIRECTORY / "_delta_log"
    (log / f"{1:020}.json").write_text("no JSON")
    version = table.version()
    merge = table.merge(frame(spark, [(2, 20)], "k INT, v INT"), on="t.k = s.k")
    result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert result.version == newest_version(str(path)) == version + 1
    assert ["updating the key index failed" in each for each in result.warnings] == [True]


def commit_of(
    table: Table, then: Callable[[Any], None] = lambda _: None
) -> tuple[Any, Any, Callable[[], int]]:
    """A table's version, a transaction of it, and a commit without files, after which more runs."""
    jvm, log = Jvm.of(table.spark), table._log().log
    nothing = jvm.option(None)
    transaction = log.startTransaction(nothing, nothing)
    operation = jvm.delta.DeltaOperations.ComputeStats(jvm.seq([]))

    def commit() -> int:
        version = int(transaction.commit(jvm.seq([]), operation))
        then(transaction)
        return version

    return TableSnapshot(table.spark, log, transaction.snapshot()), transaction, commit


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    return Table(spark, path)


def test_a_version_written_before_the_call_failed_is_found_in_the_log(
    table: Table,
) -> None:
    """As where storage wrote the file, and the answer to that got lost."""
    read, transaction, _ = commit_of(table)
    folder = Path(table.path_or_name, "_delta_log")

    def write_and_fail() -> int:
        other = '{"commitInfo":{"txnId":"of another writer"}}\n'
        own = f'{{"commitInfo":{{"txnId":"{transaction.txnId()}"}}}}\n'
        (folder / f"{1:020}.json").write_text(other)
        (folder / f"{2:020}.json").write_text(own)
        raise OSError("no answer")

    done = committed(transaction, write_and_fail, read, table="t")
    assert done.version == 2
    assert done.warnings == ("version 2 is committed; what Delta does then failed: no answer",)


def test_a_commit_that_failed_before_it_wrote_a_version_is_a_failure(table: Table) -> None:
    read, transaction, _ = commit_of(table)

    def fail() -> int:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        committed(transaction, fail, read, table="t")


def test_a_commit_that_the_log_may_lack_is_of_unknown_state(table: Table) -> None:
    read, transaction, _ = commit_of(table)
    unreadable = Path(table.path_or_name, "_delta_log", f"{1:020}.json")

    def fail() -> int:
        unreadable.mkdir()
        raise OSError("no answer")

    with pytest.raises(errors.CommitStateUnknownError) as raised:
        committed(transaction, fail, read, table="t", operation="append")
    error = raised.value
    assert isinstance(error, errors.Terminal)
    assert error.transaction_id == transaction.txnId()
    assert (error.table, error.operation, error.version) == ("t", "append", 0)
    assert errors.NOTHING_COMMITTED not in str(error)
    assert "not known whether it was committed" in str(error)
    assert error.transaction_id in str(error)
    assert isinstance(error.__cause__, OSError)


def test_a_commit_that_a_store_may_write_yet_is_of_unknown_state(table: Table) -> None:
    read, transaction, _ = commit_of(table)

    def fail() -> int:
        raise OSError(f"{STATE_UNKNOWN}: It is not known whether 1.json was written")

    with pytest.raises(errors.CommitStateUnknownError, match="may write the version yet"):
        committed(transaction, fail, read, table="t")


def test_an_interrupt_waits_for_the_commit_and_the_log_shows_its_outcome(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    read, transaction, commit = commit_of(table)

    def interrupted() -> int:
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C, in the thread that waits
        time.sleep(0.2)
        return commit()

    with caplog.at_level(logging.WARNING, "deltaweave"), pytest.raises(KeyboardInterrupt):
        committed(transaction, interrupted, read, table="t")
    assert newest_version(table.path_or_name) == 1
    assert "t: interrupted in its commit: version 1 is committed" in caplog.text
    assert table.spark.range(3).count() == 3  # the session still works


@pytest.fixture(params=[False, True], ids=["free", "held"])
def held(table: Table, request: pytest.FixtureRequest) -> TableLock:
    """The table's lock, which the caller of the commit may hold already."""
    lock = TableLock(table.spark, table.location(), table="t")
    if request.param:
        lock.take()
    return lock


def test_an_interrupt_before_the_commit_ends_it_and_releases_the_lock(
    table: Table, held: TableLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, transaction, commit = commit_of(table)
    threads = []

    def interrupted(*arguments: Any) -> Any:
        threads.append(started(*arguments).future)
        raise KeyboardInterrupt

    started = commit_call.started
    monkeypatch.setattr(commit_call, "started", interrupted)
    with pytest.raises(KeyboardInterrupt):
        committed(transaction, commit, read, table="t", held=held)
    monkeypatch.setattr(commit_call, "started", started)
    assert threads[0].result(timeout=60) is None
    assert newest_version(table.path_or_name) == 0
    assert committed(transaction, commit, read, table="t").version == 1


def test_a_thread_that_fails_before_the_commit_is_an_error(
    table: Table, held: TableLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed thread releases the lock."""
    read, transaction, commit = commit_of(table)

    def no_socket(thread: Any) -> None:
        raise OSError("Too many open files")  # as PySpark, which opens one for each thread

    with monkeypatch.context() as patch:
        patch.setattr(InheritableThread, "run", no_socket)
        with pytest.raises(OSError, match="Too many open files"):
            committed(transaction, commit, read, table="t", held=held)
    assert newest_version(table.path_or_name) == 0
    assert committed(transaction, commit, read, table="t").version == 1


def test_a_conflict_is_no_unknown_state(table: Table) -> None:
    read, transaction, commit = commit_of(table)
    table.spark.sql(f"ALTER TABLE delta.`{table.path_or_name}` ADD COLUMNS (w INT)")
    with pytest.raises(errors.CommitConflictError) as raised:
        committed(transaction, commit, read, table="t")
    assert errors.NOTHING_COMMITTED in str(raised.value)


@pytest.mark.minutes
def test_a_merge_whose_jobs_are_cancelled_after_its_commit_is_committed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.index_keys("k")
    before, commit, context = table.version(), Transaction.commit, table.spark.sparkContext

    def commit_and_cancel(transaction: Transaction, **arguments: Any) -> Any:
        done = commit(transaction, **arguments)
        context._jsc.sc().cancelJobGroupAndFutureJobs("cancelled after the commit")
        return done

    monkeypatch.setattr(Transaction, "commit", commit_and_cancel)
    rows = frame(table.spark, [(2, 20)], "k INT, v INT")
    merge = table.merge(rows, on="t.k = s.k").when_matched_update_all()
    context.setJobGroup("cancelled after the commit", "")
    try:
        result = merge.when_not_matched_insert_all().execute()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    assert result.version == newest_version(table.path_or_name) == before + 1
    assert ["updating the key index failed" in each for each in result.warnings] == [True]


def test_the_first_error_is_not_hidden_by_a_failing_release(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the session ends: letting go of things fails, too."""

    def refuse(*_: object) -> None:
        raise RuntimeError("cannot let go")

    failing = frame(table.spark, [(1, 0)], "k INT, v INT").selectExpr("k", "100 / v AS v")
    merge = table.merge(failing, on="t.k = s.k").when_matched_update_all()
    monkeypatch.setattr(Pairs, "unpersist", refuse)
    evaluated_twice = {"spark.databricks.delta.merge.materializeSource": "none"}
    with configured(table.spark, evaluated_twice), pytest.raises(errors.DeltaweaveError) as raised:
        merge.when_not_matched_insert_all().execute()
    assert raised.value.error_class == "DIVIDE_BY_ZERO"
