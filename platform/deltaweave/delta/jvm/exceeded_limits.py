"""Limits of JVMs, Spark and the machine: which one an error is about, and what sets it."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

_HEAP = ("spark.driver.memory", "spark.executor.memory")


@dataclass(frozen=True)
class ExceededLimit:
    """A limit that was exceeded.

    Attributes:
        said: A pattern of what errors say then.
        limit: What was not enough, or too much.
        settings: What sets it.
        hint: What to do.
    """

    said: str
    limit: str
    settings: tuple[str, ...]
    hint: str

    def about(self, said: str) -> dict[str, Any]:
        """Return the arguments of a LimitExceededError for an error's message."""
        problem = f"{self.limit}: {said}"
        return {"problem": problem, "hint": self.hint, "settings": self.settings}


_MEMORY = ExceededLimit(
    r"java\.lang\.OutOfMemoryError|SparkOutOfMemoryError"
    r"|UNABLE_TO_ACQUIRE_MEMORY|(AGGREGATE|POINTER_ARRAY)_OUT_OF_MEMORY"
    # Could not allocate for a map, a hash relation, a hash map.
    r"|_LEGACY_ERROR_TEMP_(2105|2106|2107)"
    r"|[Cc]ommand exited with code 52|exceeding (physical|virtual)? ?memory limits",
    "a JVM has too little memory",
    _HEAP,
    "Raise spark.driver.memory before Spark starts (with a local master, it is the executors', "
    "too), on a cluster also spark.executor.memory; or merge fewer rows or files at once.",
)
_LIMITS = (
    _MEMORY,
    ExceededLimit(
        r"java\.lang\.StackOverflowError|FAILED_TO_PARSE_TOO_COMPLEX",
        "the statement is nested too deeply for the stack of a thread",
        ("spark.driver.extraJavaOptions",),
        "Set spark.driver.extraJavaOptions=-Xss64m before Spark starts, or split the statement's "
        "conditions and expressions.",
    ),
    ExceededLimit(
        r"spark\.driver\.maxResultSize",
        "more comes to the driver than it takes",
        ("spark.driver.maxResultSize",),
        "Raise spark.driver.maxResultSize (and spark.driver.memory) before Spark starts.",
    ),
    ExceededLimit(
        r"Could not execute broadcast in|_LEGACY_ERROR_TEMP_2097",
        "a broadcast took too long",
        ("spark.sql.broadcastTimeout",),
        "Raise spark.sql.broadcastTimeout, or set spark.sql.autoBroadcastJoinThreshold to -1.",
    ),
    ExceededLimit(
        r"Not enough memory to build and broadcast|_LEGACY_ERROR_TEMP_2250",
        "the driver has too little memory for a broadcast",
        ("spark.driver.memory", "spark.sql.autoBroadcastJoinThreshold"),
        "Raise spark.driver.memory before Spark starts, or set "
        "spark.sql.autoBroadcastJoinThreshold to -1.",
    ),
    ExceededLimit(
        r"Cannot broadcast the table|_LEGACY_ERROR_TEMP_(2248|2249)",
        "a side of a join is too large for a broadcast",
        ("spark.sql.autoBroadcastJoinThreshold",),
        "Set spark.sql.autoBroadcastJoinThreshold to -1, and drop hints to broadcast.",
    ),
    ExceededLimit(
        r"Kryo serialization failed: Buffer overflow|KRYO_BUFFER_OVERFLOW",
        "a row or a task is too large for the serializer",
        ("spark.kryoserializer.buffer.max",),
        "Raise spark.kryoserializer.buffer.max before Spark starts.",
    ),
    ExceededLimit(
        r"No space left on device",
        "a disk is full",
        ("spark.local.dir",),
        "Free space where the table is, or set spark.local.dir, where Spark keeps materialized "
        "sources and shuffled rows, to a larger disk.",
    ),
)

_OUT_OF_MEMORY = 52  # Spark's exit code for a JVM without memory (SparkExitCode.OOM)
_KILLED = -9  # as the machine does with the largest process if its memory runs out
_DYING_SECONDS = 5


def exceeded_limit(said: str) -> ExceededLimit | None:
    """Return the limit that a Java exception's class and message are about, or None."""
    return next((limit for limit in _LIMITS if re.search(limit.said, said)), None)


def limit_that_ended_the_jvm() -> ExceededLimit | None:
    """Return the limit for which the JVM that this process started ended; None if none did.

    Call it if the JVM cannot be reached: it may be about to end.
    """
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return _MEMORY if code in (_OUT_OF_MEMORY, _KILLED) else None
