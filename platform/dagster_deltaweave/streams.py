"""A stream's run: until it has drained its source, or for a time; observed as it goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dagster import AssetsDefinition, AssetSelection, define_asset_job, in_process_executor

from deltaweave.delta.failures import translated

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from dagster_deltaweave.merge_on_read_decorator import MergeOnReadAssets

STREAM = "deltaweave/stream"
"""Run tag that keeps a stream running: a `StreamRun` as JSON."""

Observe = Callable[[dict[str, "int | float | None"]], None]
"""Takes numbers by metadata key."""

_POLL_SECONDS = 1


@dataclass(frozen=True)
class StreamRun:
    """How long a run keeps its stream running, and how often it tells of it.

    Attributes:
        every: How often events are appended, e.g. `10 seconds`; None for once all that there are.
        run_seconds: When the run ends by itself; None for when it is terminated.
        observe_seconds: Least time between two observations.
    """

    every: str | None = None
    run_seconds: float | None = None
    observe_seconds: float = 30

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> StreamRun:
        """As the tags of a run say; by default all that there are, and no more."""
        return cls(**json.loads(tags.get(STREAM, "{}")))


def build_stream_job(
    *,
    name: str,
    tables: MergeOnReadAssets,
    every: str = "10 seconds",
    run_for: timedelta | None = None,
    observe_every: timedelta = timedelta(seconds=30),
) -> UnresolvedAssetJobDefinition:
    """A job whose run keeps the stream of a merge-on-read table running.

    Each micro-batch is appended once; what was appended is there for readers at once, also while
    the run goes on. Beside it the base can be rematerialized at any time. Observations of the
    changes tell of it:

    - `stream/batch`: the newest micro-batch, by the stream's own count.
    - `stream/rows`: events since the observation before, of the 100 micro-batches that Spark
      remembers.
    - `stream/rows_per_second`: these by the time since then.
    - `stream/processed_rows_per_second`: of the newest micro-batch, while it was at work.
    - `stream/freshness_seconds`: 0 where the stream has appended all that it found and waits; where
      it is at work, how long ago it began with what it appended last.
    - `changes/…`: what is pending.

    A run that is terminated, or killed, leaves nothing half done: the next goes on from its
    checkpoint. It is one materialization, at its end.

    Args:
        name: The job's name.
        tables: The assets of `@merge_on_read_asset`, whose function returns a streaming DataFrame.
        every: How often events are appended.
        run_for: When the run ends by itself; by default when it is terminated.
        observe_every: Least time between two observations.
    """
    changes: AssetsDefinition = tables.changes
    run = StreamRun(
        every, run_for.total_seconds() if run_for else None, observe_every.total_seconds()
    )
    return define_asset_job(
        name,
        selection=AssetSelection.assets(changes),
        tags={STREAM: json.dumps(asdict(run))},
        executor_def=in_process_executor,
        description=f"Keeps the stream of {changes.key.to_user_string()} running.",
    )


def run_stream(
    query: StreamingQuery,
    run: StreamRun,
    observe: Observe,
    *,
    table: str,
) -> None:
    """Wait until the stream has ended or its time is over; it does not run afterwards.

    Args:
        query: The stream, which runs.
        run: For how long.
        observe: Takes the stream's progress, as numbers by metadata key.
        table: The table, for the error's words.

    Raises:
        DeltaweaveError: The stream failed; batches before the one that failed are appended.
    """
    began = time.monotonic()
    progress = _Progress(query, observe)
    try:
        with translated(table, operation="ingesting"):
            # By and by, so that Dagster can terminate the run.
            while not query.awaitTermination(_POLL_SECONDS):
                if time.monotonic() - progress.told_at >= run.observe_seconds:
                    progress.tell()
                if run.run_seconds is not None and time.monotonic() - began >= run.run_seconds:
                    _finish_batch(query)
                    break
    finally:
        query.stop()
    progress.tell()


def _finish_batch(query: StreamingQuery) -> None:
    """Wait for the end of the micro-batch under way, or of the first look at the source."""
    before = query.lastProgress
    while not _is_waiting(query) and query.lastProgress == before:
        if query.awaitTermination(_POLL_SECONDS):
            break


def _is_waiting(query: StreamingQuery) -> bool:
    """Whether the stream has looked at its source, and waits for the next time to look."""
    status = query.status
    return status["message"].startswith("Waiting") and not status["isTriggerActive"]


@dataclass
class _Progress:
    """How far a stream is, told from time to time.

    Attributes:
        query: The stream.
        observe: Takes what is told.
        told: The newest micro-batch that was told of; -1 for none.
        told_at: When, by the monotonic clock.
    """

    query: StreamingQuery
    observe: Observe
    told: int = -1
    told_at: float = field(default_factory=time.monotonic)

    def tell(self) -> None:
        """Observe what the stream did since the last time."""
        progress: list[Any] = list(self.query.recentProgress)
        now, before = time.monotonic(), self.told_at
        self.told_at = now
        if not progress:
            return
        batches = [each for each in progress if each.batchId > self.told and each.numInputRows]
        rows = sum(each.numInputRows for each in batches)
        began = datetime.fromisoformat(progress[-1].timestamp.replace("Z", "+00:00"))
        age = timedelta(0) if _is_waiting(self.query) else datetime.now(timezone.utc) - began
        self.told = batches[-1].batchId if batches else self.told
        self.observe(
            {
                "stream/batch": self.told if self.told >= 0 else None,
                "stream/rows": rows,
                "stream/rows_per_second": rows / max(now - before, 0.001),
                "stream/processed_rows_per_second": (
                    float(batches[-1].processedRowsPerSecond) if batches else None
                ),
                "stream/freshness_seconds": age.total_seconds(),
            }
        )
