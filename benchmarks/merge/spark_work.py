"""What Spark did in a block: its jobs, and the tasks of their stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from benchmarks.merge.jvm_calls import Interval
from deltaweave.delta.jvm import iterate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """Yield the work that all threads give Spark in the block; it is complete at the block's end.

    Jobs that still run then, as Delta starts some in the background, do not count.
    """
    work = SparkWork()
    newest = max((job.jobId() for job in islice(_newest_jobs(spark), 1)), default=-1)
    yield work
    stages: set[int] = set()
    for job in takewhile(lambda job: job.jobId() > newest, _newest_jobs(spark)):
        if job.completionTime().isDefined():
            work.jobs.append((_seconds(job.submissionTime()), _seconds(job.completionTime())))
            stages.update(iterate(job.stageIds()))
    store = _store(spark)
    for number in stages:
        stage = store.lastStageAttempt(number)
        work.tasks += int(stage.numCompleteTasks())
        work.task_seconds += int(stage.executorRunTime()) / 1000


def _newest_jobs(spark: SparkSession) -> Iterator[Any]:
    """Yield the jobs that Spark remembers, the newest first; it forgets the oldest of many."""
    # Spark notes what happens in a thread of its own.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return iterate(_store(spark).jobsList(_EVERY_STATUS))


def _store(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusStore()


def _seconds(time: Any) -> float:
    """Convert a Scala Option of a Java date to seconds since the epoch."""
    return int(time.get().getTime()) / 1000
