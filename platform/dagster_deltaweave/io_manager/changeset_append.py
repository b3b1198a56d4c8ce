"""Appends to the changeset of a merge-on-read table: a batch, or the batches of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    IntMetadataValue,
)

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, PARENT_RUN_ID_TAG
from dagster_deltaweave.io_manager.stream_run import StreamRun, run_stream
from dagster_deltaweave.logs import batches_after, number_metadata, pending_changes
from dagster_deltaweave.metadata import record_data_version, warnings_metadata
from dagster_deltaweave.tables import (
    MergeOnReadLocations,
    merge_on_read_locations,
    open_merge_on_read,
)
from deltaweave.changes.delivery import num_rescued
from deltaweave.errors import DeltaweaveError, SourceError

if TYPE_CHECKING:
    from dagster import DagsterLogManager, OutputContext
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables import MergeOnReadDeclaration, TableLocator
    from deltaweave import Table


RESCUED_EVENTS = "changes/rescued_events"


class Recorder(Protocol):
    """The context of an asset's output or of its function: it takes events and has a log."""

    @property
    def log(self) -> DagsterLogManager:
        """The run's log."""

    def log_event(self, event: AssetObservation | AssetMaterialization) -> None:
        """Record an event."""


def ingest(
    context: OutputContext,
    tables: TableLocator,
    declaration: MergeOnReadDeclaration,
    events: DataFrame,
    mark: tuple[str, int] | None,
) -> tuple[Callable[[], dict[str, Any]], tuple[str, ...]]:
    """Append the events; of a stream all that are available now, or as long as the run's tag says.

    Args:
        context: The context of the asset's output.
        tables: Where the tables are.
        declaration: The declaration of the changes.
        events: A batch or a streaming DataFrame.
        mark: Application id and version of a batch that must be appended only once; by default
            the run's, so that a retried run does not append again what its first attempt did.

    Returns:
        A function that records what was appended, and returns metadata of the materialization in
        addition to that of the table; and what may be wrong with the batches, a sentence each.
    """
    table, at = (
        open_merge_on_read(tables, declaration),
        merge_on_read_locations(tables, declaration),
    )
    before = table.newest_batch()

    def aside() -> dict[str, Any]:
        return rescued_metadata(context, table.base, declaration.rescued)

    run = StreamRun.of(context.step_context.dagster_run.tags)
    if events.isStreaming:
        name = declaration.changes.to_user_string()
        query = table.ingest(events, name=name, checkpoint=at.checkpoint, every=run.every)
        # Not only what this run appends: one that was killed appended without telling.
        told = _materialized(context, declaration.changes)

        def observe(progress: dict[str, int | float | None], is_last: bool) -> None:
            nonlocal told
            metadata = {**number_metadata(progress), **pending_metadata(context, at), **aside()}
            metadata.update(warnings_metadata(table.warnings))
            said = f"The stream {name}"
            context.log_event(AssetObservation(declaration.changes, said, metadata))
            newest = table.newest_batch()
            now = told.then(newest, metadata)
            # What the run's end materializes is not materialized here.
            if not is_last and now != told:
                # Events that are put aside are no batch, and change nothing for the view's readers.
                of_view = [declaration.view] if newest != told.batch else []
                told = now
                _materialize(context, [declaration.changes, *of_view], newest, metadata)

        run_stream(query, run, observe, table=at.changes)
    else:
        step = context.step_context
        run_id = first_attempt(step.instance, step.dagster_run, context.asset_key)
        if table.append(events, applied=mark or (f"deltaweave/run/{run_id}", 0)) is None:
            context.log.info("Nothing is appended: there is no event, or the batch was before.")

    def record() -> dict[str, Any]:
        newest = table.newest_batch()
        record_data_version(context, newest)
        pending = observe_pending(context, declaration, at)
        if run.every is not None:
            _materialize(context, [declaration.view], newest, pending)
        return {
            **_appended(context, at, before),
            **aside(),
            **pending,
        }

    return record, table.warnings


@dataclass(frozen=True)
class _Told:
    """What an asset was materialized with: the newest batch, and how many events wait aside."""

    batch: int | None
    num_rescued: int

    def then(self, batch: int, metadata: Mapping[str, Any]) -> _Told:
        """Return the record for a batch; without a count in the metadata, the last count stays."""
        waiting = _number(metadata.get(RESCUED_EVENTS))
        return _Told(batch, self.num_rescued if waiting is None else waiting)


def _materialized(context: OutputContext, key: AssetKey) -> _Told:
    """Return what the asset's newest materialization recorded."""
    event = context.step_context.instance.get_latest_materialization_event(key)
    made = event.asset_materialization if event else None
    if made is None:
        return _Told(None, 0)
    batch = (made.tags or {}).get(DATA_VERSION_TAG, "")
    waiting = _number(made.metadata.get(RESCUED_EVENTS))
    return _Told(int(batch) if batch.isdecimal() else None, waiting or 0)


def _number(entry: Any) -> int | None:
    return entry.value if isinstance(entry, IntMetadataValue) else None


def _materialize(
    context: Recorder, keys: Sequence[AssetKey], batch: int, metadata: Mapping[str, Any]
) -> None:
    """Materialize assets while the run lasts, which may be without end: others wait for them."""
    for key in keys:
        context.log_event(
            AssetMaterialization(
                key,
                f"The stream has appended up to batch {batch}.",
                metadata,
                tags={DATA_VERSION_TAG: str(batch)},
            )
        )


def first_attempt(instance: DagsterInstance, run: DagsterRun, key: AssetKey) -> str:
    """Return the id of the run that first attempted what this run does.

    If the step that materialized the asset succeeded in the parent run, a re-execution brings new
    rows. If that step failed after it, by another output or a kill, the re-execution repeats all of
    it.
    """
    run_id = run.run_id
    while parent := run.tags.get(PARENT_RUN_ID_TAG):
        if _steps_that_made(instance, parent, key) & _steps_that_succeeded(instance, parent):
            break
        run_id, before = parent, instance.get_run_by_id(parent)
        if before is None:
            break
        run = before
    return run_id


def _steps_that_made(instance: DagsterInstance, run_id: str, key: AssetKey) -> set[str | None]:
    made = instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    entries = [record.event_log_entry for record in made.records]
    return {
        entry.step_key
        for entry in entries
        if entry.asset_materialization and entry.asset_materialization.asset_key == key
    }


def _steps_that_succeeded(instance: DagsterInstance, run_id: str) -> set[str | None]:
    done = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_SUCCESS)
    return {record.event_log_entry.step_key for record in done.records}


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
    try:
        pending = pending_changes(at)
    except SourceError as error:
        # The rows are committed, so an error in what is only displayed must not fail the run.
        context.log.warning(f"The pending changes are left out of the metadata: {error}")
        return {}
    return dict(pending.metadata()) if pending else {}


def rescued_metadata(context: Recorder, table: Table, rescued: str | bool) -> dict[str, Any]:
    """Return how many events of a table wait to be corrected, as metadata; empty if none can."""
    try:
        count = num_rescued(table, rescued)
    except DeltaweaveError as error:
        # The rows are committed, so an error in what is only displayed must not fail the run.
        context.log.warning(f"The number of events put aside is left out: {error}")
        return {}
    return dict(number_metadata({RESCUED_EVENTS: count}))


def _appended(context: Recorder, at: MergeOnReadLocations, before: int) -> dict[str, Any]:
    try:
        appended = batches_after(at, before)
    except SourceError as error:
        context.log.warning(f"The appended batch is left out of the metadata: {error}")
        return {}
    return dict(
        number_metadata(
            {
                "changes/appended_batches": appended.batches,
                "changes/appended_rows": appended.rows,
                "changes/appended_bytes": appended.size_in_bytes,
            }
        )
    )
