"""Work for Spark in a second thread, where one job after the other leaves cores without a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark import InheritableThread

from deltaweave.delta import jvm as jvm_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


@contextmanager
def alongside(spark: SparkSession, work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Do some work while the block runs; it has ended when the block has, whatever happens.

    Its Spark jobs belong to the block's job group, with the same description, pool and tags, and
    Delta sees the same session. Its error is raised where `result()` is asked for.

    Args:
        spark: The session.
        work: What to do. Delta's active transaction is of one thread: the work that needs it has to
            make it active.
    """
    thread, future = started(spark, work)
    try:
        yield future
    finally:
        thread.join()


def started(
    spark: SparkSession, work: Callable[[], Result]
) -> tuple[InheritableThread, Future[Result]]:
    """A thread that does some work; the future has its result or error when the thread has ended.

    An interrupt of the thread that waits does not reach it.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            sessions = jvm_.jvm(spark).org.apache.spark.sql.classic.SparkSession
            sessions.setActiveSession(spark._jsparkSession)
            future.set_result(work())
        except BaseException as error:  # for the thread that asks for the result
            future.set_exception(error)

    thread = InheritableThread(run, name="deltaweave-alongside", session=spark)
    thread.start()
    return thread, future
