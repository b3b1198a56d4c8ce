"""Appends to the changeset of a merge-on-read table: a batch, or the batches of a stream.

A stream runs until it has drained its source, or for a time, and is observed while it runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    IntMetadataValue,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.io_manager.output import Output, Stored
from dagster_deltaweave.io_manager.transaction_ids import first_attempt
from dagster_deltaweave.logs import batches_after, number_metadata, pending_changes
from dagster_deltaweave.metadata import (
    data_version_of,
    newest_materialization,
    record_data_version,
    warnings_metadata,
)
from dagster_deltaweave.tables import (
    MergeOnReadLocations,
    merge_on_read_locations,
    open_merge_on_read,
)
from deltaweave.changes.delivery import num_rescued
from deltaweave.delta.commit import TransactionId
from deltaweave.delta.jvm import translated
from deltaweave.errors import DeltaweaveError

if TYPE_CHECKING:
    from dagster import AssetExecutionContext, OutputContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from dagster_deltaweave.io_manager.transaction_ids import RunIds
    from dagster_deltaweave.tables import MergeOnReadDeclaration
    from deltaweave import MergeOnReadTable, Table


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
    """Wait until the stream or its run ends, then stop the stream."""
    began = time.monotonic()
    progress = _Progress(query, observe)
    try:
        with translated(table, operation="ingesting"):
            # Wait in short steps, so that Dagster can terminate the run.
            while not query.awaitTermination(_POLL_SECONDS):
                if time.monotonic() - progress.observed_at >= run.observe_seconds:
                    progress.notify()
                if run.run_seconds is not None and time.monotonic() - began >= run.run_seconds:
                    _finish_batch(query)
                    break
    finally:
        query.stop()
    progress.notify(is_last=True)


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
        observe: Receives the numbers of the new batches.
        observed: The newest micro-batch that was observed; -1 for none.
        observed_at: The time of the last observation, by the monotonic clock.
    """

    query: StreamingQuery
    observe: Observe
    observed: int = -1
    observed_at: float = field(default_factory=time.monotonic)

    def notify(self, *, is_last: bool = False) -> None:
        """Observe the batches of the stream since the last observation."""
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


RESCUED_EVENTS = "changes/rescued_events"


Recorder: TypeAlias = "OutputContext | AssetExecutionContext"
"""The context of an asset's output, or of its function."""


def append(declaration: MergeOnReadDeclaration, output: Output, ids: RunIds) -> Stored:
    """Append the events: a batch, or what a stream gives for as long as the run's tag says.

    A batch without a transaction id gets the run's, so that a retried run does not append again
    what its first attempt did.
    """
    context = output.context
    table = open_merge_on_read(output.tables, declaration)
    at = merge_on_read_locations(output.tables, declaration)
    before, run = table.newest_batch(), StreamRun.of(context.step_context.dagster_run.tags)
    if output.rows.isStreaming:
        append_stream(context, declaration, table, at, output.rows, run)
    else:
        step = context.step_context
        run_id = first_attempt(step.instance, step.dagster_run)
        applied = ids.single or TransactionId(f"deltaweave/run/{run_id}", 0)
        if table.append(output.rows, applied=applied) is None:
            context.log.info(
                "Nothing is appended: there is no event, or the batch was appended before."
            )

    def record() -> dict[str, Any]:
        newest = table.newest_batch()
        record_data_version(context, newest)
        pending = observe_pending(context, declaration, at)
        if run.every is not None:
            _materialize_now(context, [declaration.view], newest, pending)
        return {
            **_appended_metadata(context, at, before),
            **rescued_metadata(context, table.base, declaration.rescued),
            **pending,
        }

    return Stored(None, record, table.warnings)


def append_stream(
    context: OutputContext,
    declaration: MergeOnReadDeclaration,
    table: MergeOnReadTable,
    at: MergeOnReadLocations,
    events: DataFrame,
    run: StreamRun,
) -> None:
    """Append a stream's batches, observe it, and materialize the assets while it runs."""
    name = declaration.changes.to_user_string()
    query = table.ingest(events, name=name, checkpoint=at.checkpoint, every=run.every)
    # What a killed run appended and did not report counts as new, too.
    reported = last_report(context, declaration.changes)

    def observe(progress: dict[str, int | float | None], is_last: bool) -> None:
        try:
            record(progress, is_last)
        except Exception as error:
            # The batches are appended, so an error in what is recorded must not end the stream.
            context.log.warning(f"An observation of the stream is left out: {error}")

    def record(progress: dict[str, int | float | None], is_last: bool) -> None:
        nonlocal reported
        aside = rescued_metadata(context, table.base, declaration.rescued)
        metadata = {**number_metadata(progress), **pending_metadata(context, at), **aside}
        metadata.update(warnings_metadata(table.warnings))
        description = f"The stream {name}"
        context.log_event(AssetObservation(declaration.changes, description, metadata))
        newest = table.newest_batch()
        newer = reported.with_batch(newest, metadata)
        # At the end of the run, Dagster itself materializes the asset.
        if not is_last and newer != reported:
            # Events that are put aside are not a batch, and the view's rows stay the same.
            changed_view = [declaration.view] if newest != reported.batch else []
            _materialize_now(context, [declaration.changes, *changed_view], newest, metadata)
            reported = newer

    run_stream(query, run, observe, table=at.changes)


@dataclass(frozen=True)
class Reported:
    """What an asset was materialized with: the newest batch, and how many events wait aside."""

    batch: int | None
    num_rescued: int

    def with_batch(self, batch: int, metadata: Mapping[str, Any]) -> Reported:
        """Return the record for a batch; without a count in the metadata, the last count stays."""
        waiting = _int_of(metadata.get(RESCUED_EVENTS))
        return Reported(batch, self.num_rescued if waiting is None else waiting)


def last_report(context: OutputContext, key: AssetKey) -> Reported:
    """Return what the asset's newest materialization recorded."""
    made = newest_materialization(context.step_context.instance, key)
    waiting = _int_of(made.metadata.get(RESCUED_EVENTS)) if made else None
    return Reported(data_version_of(made), waiting or 0)


def _int_of(entry: Any) -> int | None:
    return entry.value if isinstance(entry, IntMetadataValue) else None


def _materialize_now(
    context: Recorder, keys: Sequence[AssetKey], batch: int, metadata: Mapping[str, Any]
) -> None:
    """Materialize assets before the run ends, which it may never do, for those that wait."""
    for key in keys:
        context.log_event(
            AssetMaterialization(
                key,
                f"The stream has appended up to batch {batch}.",
                metadata,
                tags={DATA_VERSION_TAG: str(batch)},
            )
        )


def observe_pending(
    context: Recorder, declaration: MergeOnReadDeclaration, at: MergeOnReadLocations
) -> dict[str, Any]:
    """Observe the view, which changed with one of its tables; return the pending metadata."""
    metadata = pending_metadata(context, at)
    if metadata:
        context.log_event(AssetObservation(asset_key=declaration.view, metadata=metadata))
    return metadata


def pending_metadata(context: Recorder, at: MergeOnReadLocations) -> dict[str, Any]:
    """Return the pending changes as flat metadata; empty if the logs cannot be read."""

    def read() -> Mapping[str, Any]:
        pending = pending_changes(at)
        return pending.metadata() if pending else {}

    return _displayed(context, read, "The pending changes are left out of the metadata")


def rescued_metadata(context: Recorder, table: Table, rescued: str | bool) -> dict[str, Any]:
    """Return how many events of a table wait to be corrected, as metadata; empty if none can."""
    return _displayed(
        context,
        lambda: number_metadata({RESCUED_EVENTS: num_rescued(table, rescued)}),
        "The number of events put aside is left out",
    )


def _appended_metadata(context: Recorder, at: MergeOnReadLocations, before: int) -> dict[str, Any]:
    def read() -> Mapping[str, Any]:
        appended = batches_after(at, before)
        return number_metadata(
            {
                "changes/appended_batches": appended.batches,
                "changes/appended_rows": appended.rows,
                "changes/appended_bytes": appended.size_in_bytes,
            }
        )

    return _displayed(context, read, "The appended batch is left out of the metadata")


def _displayed(
    context: Recorder, read: Callable[[], Mapping[str, Any]], problem: str
) -> dict[str, Any]:
    """Read metadata; if that fails, warn of the problem and return none."""
    try:
        return dict(read())
    except DeltaweaveError as error:
        # The rows are committed, so an error in what is only displayed must not fail the run.
        context.log.warning(f"{problem}: {error}")
        return {}
