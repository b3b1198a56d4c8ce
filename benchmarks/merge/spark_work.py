"""Notes what a block does in the JVM: Spark's jobs and tasks, and the calls of Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from deltaweave.delta.jvm import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RELEASE = "m\n"  # how a command begins by which Python lets go of an object, whenever it collects

Interval = tuple[float, float]
"""Begin and end, in seconds since the epoch, which the JVM's clock counts as well."""

_EVERY_STATUS = None


@dataclass
class SparkWork:
    """What Spark did.

    Attributes:
        jobs: When each job began and ended.
        tasks: How many tasks ran.
        task_seconds: The time of all tasks, added up.
    """

    jobs: list[Interval] = field(default_factory=list)
    tasks: int = 0
    task_seconds: float = 0


@contextmanager
def noted_work(spark: SparkSession) -> Iterator[SparkWork]:
    """Note what all threads let Spark do in the block; it is complete when the block has ended.

    Jobs that still run then, as Delta starts some in the background, do not count.
    """
    work = SparkWork()
    newest = max((job.jobId() for job in islice(_newest_jobs(spark), 1)), default=-1)
    yield work
    stages: set[int] = set()
    for job in takewhile(lambda job: job.jobId() > newest, _newest_jobs(spark)):
        if job.completionTime().isDefined():
            work.jobs.append((_seconds(job.submissionTime()), _seconds(job.completionTime())))
            stages.update(Jvm.iterate(job.stageIds()))
    store = _store(spark)
    for number in stages:
        stage = store.lastStageAttempt(number)
        work.tasks += int(stage.numCompleteTasks())
        work.task_seconds += int(stage.executorRunTime()) / 1000


@contextmanager
def noted_calls(spark: SparkSession) -> Iterator[list[Interval]]:
    """Note the calls of all threads in the block, but not those that release objects."""
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


def _newest_jobs(spark: SparkSession) -> Iterator[Any]:
    """Yield the jobs that Spark remembers, the newest first; it forgets the oldest of many."""
    # Spark notes what happens in a thread of its own.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return Jvm.iterate(_store(spark).jobsList(_EVERY_STATUS))


def _store(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusStore()


def _seconds(time: Any) -> float:
    """Return a Scala Option of a Java date as seconds since the epoch."""
    return int(time.get().getTime()) / 1000
