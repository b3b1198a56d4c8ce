"""Runs a stream until it has drained its source, or for a time, and observes it meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from deltaweave.delta.jvm import translated

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


STREAM_TAG = "deltaweave/stream"
"""Run tag that keeps a stream running: a `StreamRun` as JSON."""

Observe = Callable[[dict[str, "int | float | None"], bool], None]
"""Receives numbers by metadata key, and whether they are the run's last."""

_POLL_SECONDS = 1


@dataclass(frozen=True)
class StreamRun:
    """How long a run keeps its stream running, and how often it observes it.

    Attributes:
        every: How often events are appended, e.g. `10 seconds`; None to append once all that
            is available.
        run_seconds: After how long the run ends; None if it lasts until it is terminated.
        observe_seconds: The least time between two observations.
    """

    every: str | None = None
    run_seconds: float | None = None
    observe_seconds: float = 30

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> StreamRun:
        """Read the stream run from a run's tags; by default all available events, once."""
        return cls(**json.loads(tags.get(STREAM_TAG, "{}")))


def run_stream(
    query: StreamingQuery,
    run: StreamRun,
    observe: Observe,
    *,
    table: str,
) -> None:
    """Wait until the stream ends or its time is over, then stop it.

    Args:
        query: The running stream.
        run: How long it runs.
        observe: Receives the stream's progress, as numbers by metadata key.
        table: The table's name for the error message.

    Raises:
        DeltaweaveError: The stream failed; batches before the one that failed are appended.
    """
    began = time.monotonic()
    progress = _Progress(query, observe)
    try:
        with translated(table, operation="ingesting"):
            # Wait in short steps, so that Dagster can terminate the run.
            while not query.awaitTermination(_POLL_SECONDS):
                if time.monotonic() - progress.observed_at >= run.observe_seconds:
                    progress.tell()
                if run.run_seconds is not None and time.monotonic() - began >= run.run_seconds:
                    _finish_batch(query)
                    break
    finally:
        query.stop()
    progress.tell(is_last=True)


def _finish_batch(query: StreamingQuery) -> None:
    """Wait until the current micro-batch, or the first read of the source, ends."""
    before = query.lastProgress
    while not _is_waiting(query) and query.lastProgress == before:
        if query.awaitTermination(_POLL_SECONDS):
            break


def _is_waiting(query: StreamingQuery) -> bool:
    """Return whether the stream has read its source and waits for its next trigger."""
    status = query.status
    return status["message"].startswith("Waiting") and not status["isTriggerActive"]


@dataclass
class _Progress:
    """The progress of a stream, observed at intervals.

    Attributes:
        query: The stream.
        observe: Receives the numbers.
        observed: The newest micro-batch that was observed; -1 for none.
        observed_at: When it was observed, by the monotonic clock.
    """

    query: StreamingQuery
    observe: Observe
    observed: int = -1
    observed_at: float = field(default_factory=time.monotonic)

    def tell(self, *, is_last: bool = False) -> None:
        """Observe what the stream did since the last time."""
        progress: list[Any] = list(self.query.recentProgress)
        now, before = time.monotonic(), self.observed_at
        self.observed_at = now
        if not progress:
            return
        batches = [each for each in progress if each.batchId > self.observed and each.numInputRows]
        rows = sum(each.numInputRows for each in batches)
        began = datetime.fromisoformat(progress[-1].timestamp.replace("Z", "+00:00"))
        age = timedelta(0) if _is_waiting(self.query) else datetime.now(timezone.utc) - began
        self.observed = batches[-1].batchId if batches else self.observed
        self.observe(
            {
                "stream/batch": self.observed if self.observed >= 0 else None,
                "stream/rows": rows,
                "stream/rows_per_second": rows / max(now - before, 0.001),
                "stream/processed_rows_per_second": (
                    float(batches[-1].processedRowsPerSecond) if batches else None
                ),
                "stream/freshness_seconds": age.total_seconds(),
            },
            is_last,
        )
