"""Counts the calls of the JVM that a block makes, and notes when each began and ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RELEASE = "m\n"  # how a command begins by which Python lets go of an object, whenever it collects

Interval = tuple[float, float]
"""Begin and end, in seconds since the epoch, which the JVM's clock counts as well."""


@contextmanager
def noted_calls(spark: SparkSession) -> Iterator[list[Interval]]:
    """Yield the JVM calls of all threads in the block, except those that release objects."""
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client
    send = client.send_command
    calls: list[Interval] = []

    def noted(command: str, *arguments: Any, **options: Any) -> Any:
        began = time.time()
        try:
            return send(command, *arguments, **options)
        finally:
            if not command.startswith(_RELEASE):
                calls.append((began, time.time()))

    client.send_command = noted  # in front of the method of the class, which stays as it is
    try:
        yield calls
    finally:
        del client.send_command
