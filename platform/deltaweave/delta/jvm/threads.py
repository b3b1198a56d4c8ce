"""Runs work for Spark in a second thread, so that two jobs share the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark import InheritableThread

from deltaweave.delta.jvm import gateway as jvm_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")


@contextmanager
def alongside(spark: SparkSession, work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Do some work while the block runs; when the block has ended, so has the work.

    Until Delta 4.2, it is done before the block: a transaction then kept the files that queries of
    any thread read in a set that two threads must not change at once.

    Its Spark jobs have the block's job group, description, pool and tags, and Delta sees the same
    session. `result()` raises its error.

    Args:
        spark: The session.
        work: What to do. Delta's active transaction belongs to one thread: work that needs it must
            make it active.
    """
    thread, future = started(spark, work)
    try:
        if jvm_.delta_line(spark) < (4, 3):
            future.result()
        yield future
    finally:
        thread.join()


def started(
    spark: SparkSession, work: Callable[[], Result]
) -> tuple[InheritableThread, Future[Result]]:
    """Start a thread for some work; the future gets its result or error.

    An interrupt of the waiting thread does not reach the work.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            sessions = jvm_.jvm(spark).org.apache.spark.sql.classic.SparkSession
            sessions.setActiveSession(spark._jsparkSession)
            future.set_result(work())
        except BaseException as error:  # raised in the thread that asks for the result
            future.set_exception(error)

    thread = _Started(run, future, spark)
    thread.start()
    return thread, future


class _Started(InheritableThread):
    """A thread whose future gets an error, too, if PySpark fails before the work begins."""

    def __init__(
        self, work: Callable[[], None], future: Future[Result], spark: SparkSession
    ) -> None:
        self._future = future
        super().__init__(work, name="deltaweave-alongside", session=spark)

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # of the calls that take over the properties of the parent
            self._future.set_exception(error)
