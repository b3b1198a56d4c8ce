"""A phase of a merge: its status as Spark's job description, and the time it takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.delta.failures import letting_go

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_DESCRIPTION = "spark.job.description"


@dataclass
class Phases:
    """The phases of one merge, timed as they run.

    Attributes:
        spark: The session the merge runs in.
        times_ms: Time spent, in ms, by the metric name of the phase.
    """

    spark: SparkSession
    times_ms: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self, operation: str, status: str, metric: str) -> Iterator[None]:
        """Run the block as a phase (document row M8).

        Args:
            operation: Delta's name of the phase (its extraOpType), for the log.
            status: Delta's status text; the Spark jobs of the block carry it as description.
            metric: The timing metric the block's time is added to; at least 1 ms, so that a phase
                that ran can be told from one that did not.
        """
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
        """Let the Spark jobs of the block carry a status, behind that of the block around it."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, f"{before} - {status}" if before else status)
        try:
            yield
        finally:
            with letting_go("the job description"):
                # None clears the property; pyspark's annotation forgets that.
                context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]
