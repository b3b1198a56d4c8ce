"""Phases of a merge: their Spark job description, the time that they take, and their listener."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.delta.jvm import suppress_cleanup_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_DESCRIPTION = "spark.job.description"

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[str], object]) -> Iterator[None]:
    """Report the status of each phase that begins in the block, in the thread of the merge.

    Args:
        listener: Takes the status, e.g. `MERGE operation - scanning files for matches`. An error
            that it raises fails the merge; nothing is committed then.
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def notify(status: str) -> None:
    """Report a status to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(status)


@dataclass
class Phases:
    """The phases of one merge, timed as they run.

    Attributes:
        spark: The session the merge runs in.
        times_ms: Milliseconds by metric name.
    """

    spark: SparkSession
    times_ms: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self, operation: str, status: str, metric: str) -> Iterator[None]:
        """Run the block as a phase.

        Args:
            operation: Delta's name of the phase (its extraOpType), for the log.
            status: Delta's status text; the Spark jobs of the block carry it as description.
            metric: The timing metric to which the block's time is added. At least 1 ms is added,
                so that 0 means that the phase did not run.
        """
        notify(status)
        started = time.perf_counter()
        logger.debug("%s: %s", operation, status)
        try:
            with self.described(status):
                yield
        finally:
            elapsed = max(1, round((time.perf_counter() - started) * 1000))
            self.times_ms[metric] = self.times_ms.get(metric, 0) + elapsed
            logger.debug("%s took %d ms", operation, elapsed)

    @contextmanager
    def described(self, status: str) -> Iterator[None]:
        """Append a status to the description of the Spark jobs that the block starts."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, f"{before} - {status}" if before else status)
        try:
            yield
        finally:
            with suppress_cleanup_errors("the job description"):
                # None clears the property, although pyspark's annotation does not allow it.
                context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
