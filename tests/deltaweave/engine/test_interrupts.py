"""Interrupts while a source is evaluated, and the errors of Spark that could take their place."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaweave import Table, errors
from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import raise_hidden_interrupts
from deltaweave.engine.backends import spark as spark_backend
from deltaweave.engine.merge_run import ON_DRIVER
from tests.builders import frame, write_table
from tests.support.oracles import newest_version
from tests.support.settings import configured

SCHEMA = "k INT, v INT"


def fail(cause: BaseException | None = None) -> None:
    raise OSError("of the block") from cause


def fail_while_interrupted() -> None:
    try:
        raise KeyboardInterrupt
    finally:
        fail(ValueError("another cause"))


def test_an_interrupt_is_raised_instead_of_the_error_that_took_its_place() -> None:
    with pytest.raises(KeyboardInterrupt), raise_hidden_interrupts():
        fail_while_interrupted()
    with pytest.raises(OSError, match="of the block"), raise_hidden_interrupts():
        fail()


def in_a_circle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize("handled", [KeyboardInterrupt(), in_a_circle()], ids=["one", "circle"])
def test_what_the_caller_handles_is_not_raised_again(handled: BaseException) -> None:
    try:
        raise handled
    except BaseException:
        with pytest.raises(OSError, match="of the block"), raise_hidden_interrupts():
            fail()


@pytest.mark.parametrize("setting", ["auto", "false"])
@pytest.mark.parametrize("handler", ["of pyspark", "of python"])
def test_an_interrupt_while_the_source_is_evaluated_ends_the_merge(
    spark: SparkSession, tmp_path: Path, handler: str, setting: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    begun, of_pyspark = tmp_path / "begun", signal.getsignal(signal.SIGINT)

    def slow(k):  # type: ignore[no-untyped-def]  # with hints of Python's types, pyspark warns
        begun.touch()
        time.sleep(0.5)
        return k

    rows = frame(spark, [(k, 1) for k in range(4)], SCHEMA)
    rows = rows.withColumn("k", F.udf(slow, "INT")("k"))

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    if handler == "of python":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        assert of_pyspark is not signal.default_int_handler
    try:
        interrupting.start()
        with configured(spark, {ON_DRIVER: setting}), pytest.raises(KeyboardInterrupt):
            Table(spark, path).merge(rows, on="t.k = s.k").when_matched_delete().execute()
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, of_pyspark)
    assert newest_version(path) == 0


def lose_the_source_while_interrupted(*arguments: Any, **named: Any) -> Any:
    try:
        raise KeyboardInterrupt
    finally:
        raise errors.SourceLostError("the stream was closed")


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("where", "version"),
    [
        ((spark_backend, "touched_files_of_pairs"), 0),
        ((Transaction, "write"), 0),
        ((Transaction, "recache"), 1),
    ],
    ids=["scan", "write", "after the commit"],
)
def test_an_interrupt_that_an_error_hides_ends_the_merge(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[Any, str],
    version: int,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    monkeypatch.setattr(*where, lose_the_source_while_interrupted)
    rows = frame(spark, [(1, 11), (3, 30)], SCHEMA)
    merge = Table(spark, path).merge(rows, on="t.k = s.k").when_matched_update_all()
    with pytest.raises(KeyboardInterrupt):
        merge.when_not_matched_insert_all().execute()
    assert newest_version(path) == version
