"""What exceeds a limit of Spark or the machine is an error that says what to set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import deltaweave
from deltaweave.delta.jvm import translated
from deltaweave.delta.jvm.errors import exceeded_limit
from deltaweave.errors import (
    NOTHING_COMMITTED,
    LimitExceededError,
    MergeFailedError,
    SessionEndedError,
    Terminal,
)
from tests.builders import write_table

JOB = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: "


@pytest.mark.parametrize(
    ("name", "said", "setting"),
    [
        ("java.lang.OutOfMemoryError", "Java heap space", "spark.driver.memory"),
        ("java.lang.OutOfMemoryError", "GC overhead limit exceeded", "spark.driver.memory"),
        (
            "java.lang.RuntimeException",
            f"{JOB}java.lang.OutOfMemoryError: Java heap space\n\tat X",
            "spark.executor.memory",
        ),
        ("java.lang.RuntimeException", "Command exited with code 52", "spark.executor.memory"),
        ("java.lang.StackOverflowError", None, "spark.driver.extraJavaOptions"),
        (
            "java.lang.RuntimeException",
            f"{JOB}Total size of serialized results of 9 tasks (1.1 GiB) is bigger than "
            "spark.driver.maxResultSize (1024.0 MiB)",
            "spark.driver.maxResultSize",
        ),
        (
            "java.lang.RuntimeException",
            "Could not execute broadcast in 300 secs.",
            "spark.sql.broadcastTimeout",
        ),
        (
            "java.lang.RuntimeException",
            "Cannot broadcast the table over 512000000 rows: 600000000 rows.",
            "spark.sql.autoBroadcastJoinThreshold",
        ),
        ("java.io.IOException", "No space left on device", "spark.local.dir"),
        (
            "java.lang.RuntimeException",
            "Kryo serialization failed: Buffer overflow. Available: 0, required: 9.",
            "spark.kryoserializer.buffer.max",
        ),
        ("java.lang.RuntimeException", "Something else.", None),
    ],
)
@pytest.mark.parametrize("depth", [0, 2])
def test_an_exceeded_limit_says_what_to_set(
    spark: SparkSession, name: str, said: str | None, setting: str | None, depth: int
) -> None:
    java: Any = spark.sparkContext._jvm
    thrown = java
    for part in name.split("."):
        thrown = getattr(thrown, part)
    exception = thrown() if said is None else thrown(said)
    for _ in range(depth):
        exception = java.org.apache.spark.SparkException("Job aborted.", exception)
    error = PySparkException("…")
    error._origin = exception  # type: ignore[attr-defined]
    expected = MergeFailedError if setting is None else LimitExceededError
    with pytest.raises(expected) as raised, translated("orders", version=3):
        raise error
    assert isinstance(raised.value, Terminal)
    assert raised.value.state == NOTHING_COMMITTED
    if setting is not None:
        assert setting in raised.value.settings  # type: ignore[attr-defined]
        assert setting in str(raised.value)


# Spark's classes hide the messages from whoever looks for the words of a limit.
@pytest.mark.parametrize(
    ("error_class", "setting"),
    [
        ("UNABLE_TO_ACQUIRE_MEMORY", "spark.executor.memory"),
        ("AGGREGATE_OUT_OF_MEMORY", "spark.executor.memory"),
        ("POINTER_ARRAY_OUT_OF_MEMORY", "spark.executor.memory"),
        ("_LEGACY_ERROR_TEMP_2105", "spark.executor.memory"),  # to grow BytesToBytesMap
        ("_LEGACY_ERROR_TEMP_2106", "spark.executor.memory"),  # to build a hash relation
        ("_LEGACY_ERROR_TEMP_2107", "spark.executor.memory"),  # to build a hash map
        ("_LEGACY_ERROR_TEMP_2097", "spark.sql.broadcastTimeout"),
        ("_LEGACY_ERROR_TEMP_2248", "spark.sql.autoBroadcastJoinThreshold"),  # rows
        ("_LEGACY_ERROR_TEMP_2249", "spark.sql.autoBroadcastJoinThreshold"),  # bytes
        ("_LEGACY_ERROR_TEMP_2250", "spark.driver.memory"),  # to build and broadcast
        ("KRYO_BUFFER_OVERFLOW", "spark.kryoserializer.buffer.max"),
    ],
)
def test_error_classes_of_limits_name_what_to_set(error_class: str, setting: str) -> None:
    limit = exceeded_limit(error_class)
    assert limit is not None
    assert setting in limit.settings


def test_a_message_of_the_users_own_is_no_limit(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1,)], "k INT")
    with pytest.raises(MergeFailedError, match="No space left on device"):
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING delta.`{path}` s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET k = raise_error('No space left on device')",
        )


def test_a_statement_that_is_nested_too_deeply_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1,)], "k INT")
    deep = " + ".join(["1"] * 20_000)
    with pytest.raises(LimitExceededError, match="nested too deeply"):
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING delta.`{path}` s ON t.k = {deep} "
            "WHEN MATCHED THEN DELETE",
        )


class EndedProcess:
    """A JVM that has ended."""

    def __init__(self, code: int) -> None:
        self._code = code

    def wait(self, timeout: float) -> int:
        return self._code


@pytest.mark.parametrize(
    ("code", "expected"),
    [(52, LimitExceededError), (-9, LimitExceededError), (0, SessionEndedError)],
)
def test_a_jvm_that_ended_without_memory_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    class Gateway:
        proc = EndedProcess(code)

    monkeypatch.setattr(SparkContext, "_gateway", Gateway())
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(expected, match=r"has ended") as raised, translated("orders"):
        raise ConnectionRefusedError(111, "Connection refused")
    assert ("spark.driver.memory" in str(raised.value)) is (code != 0)
