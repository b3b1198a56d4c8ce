"""Runs work for Spark in a second thread, and raises the interrupts that Spark's errors hide."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark import InheritableThread

from deltaweave.delta.jvm.gateway import Jvm

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
    begun = started(spark, work)
    try:
        if Jvm.of(spark).delta_line < (4, 3):
            begun.future.result()
        yield begun.future
    finally:
        begun.thread.join()


@dataclass(frozen=True)
class StartedWork(Generic[Result]):
    """Work that a second thread does.

    Attributes:
        thread: The thread.
        future: Gets the work's result or error.
    """

    thread: InheritableThread
    future: Future[Result]


def started(spark: SparkSession, work: Callable[[], Result]) -> StartedWork[Result]:
    """Start a thread for some work; an interrupt of the waiting thread does not reach it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            sessions = Jvm.of(spark).sql.classic.SparkSession
            sessions.setActiveSession(spark._jsparkSession)
            future.set_result(work())
        except BaseException as error:  # raised in the thread that asks for the result
            future.set_exception(error)

    thread = _Started(run, future, spark)
    thread.start()
    return StartedWork(thread, future)


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


@contextmanager
def raise_hidden_interrupts() -> Iterator[None]:
    """Raise an interrupt that came in the block instead of the error that took its place.

    While PySpark collects rows, an interrupt closes the stream that the JVM writes them to. PySpark
    then waits for the job, and raises what the job failed with.
    """
    before = _interrupts_behind(sys.exc_info()[1])
    try:
        yield
    except Exception as error:
        came = _interrupts_behind(error).items() - before.items()
        if not came:
            raise
        raise next(iter(came))[1] from None


def _interrupts_behind(error: BaseException | None) -> dict[int, BaseException]:
    """Return the interrupts during whose handling an error was raised, by their identities."""
    seen: dict[int, BaseException] = {}
    found = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:  # causes may go in circles
            seen[id(each)] = each
            found += [each.__cause__, each.__context__]
    return {number: each for number, each in seen.items() if not isinstance(each, Exception)}
