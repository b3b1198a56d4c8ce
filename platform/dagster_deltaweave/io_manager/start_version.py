"""The version at which a run's write starts: the newest that the function can have read.

Other writers may commit after the function has read and before its rows are written. A write that
replaces rows would undo their changes if it started at the newest version. So it starts at the
version from before the function began, and Delta refuses the commit if another one changed the rows
that are replaced. The run then tries again.

Dagster's event log says when the function's step began, and the table's log says when a commit was
made.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster import DagsterEventType, OutputContext

from dagster_deltaweave.logs import version_with_rows_of
from deltaweave import Table

_BEGINNINGS = {DagsterEventType.STEP_START, DagsterEventType.STEP_RESTARTED}
_LOOKED_AT = 100


@dataclass(frozen=True)
class Start:
    """Where a write's transaction starts.

    Attributes:
        version: The version; None for the newest version if the rows were not computed from the
            table.
        reads_all: Whether the rows may have been computed from all rows of that version, or only
            from those that they replace.
    """

    version: int | None
    reads_all: bool


def start_of_write(
    context: OutputContext, table: Table, *, adds_only: bool = False, predicate: str | None = None
) -> Start:
    """Return where the write of the asset's output starts.

    Args:
        context: The context of the asset's output.
        table: The asset's table, which exists.
        adds_only: Whether the write replaces no rows.
        predicate: Which rows it replaces; None for all.

    Raises:
        CommitConflictError: Another writer created the table with rows since the function began.
    """
    definition = context.step_context.assets_def
    reads_itself = definition is not None and context.asset_key in definition.dependency_keys
    if adds_only and not reads_itself:
        return Start(None, reads_all=False)
    version = version_with_rows_of(table, began_ms(context))
    return Start(version, reads_all=reads_itself or predicate is None)


def began_ms(context: OutputContext) -> int:
    """Return when this attempt of the step began, in ms since 1970; if unknown, when the run did.

    The ops of a graph asset hand on what the first of them read: it began when the run did, or the
    run that this one continues.
    """
    step = context.step_context
    if len(step.node_handle.path) > 1:
        return run_created_ms(context)
    cursor = None
    while True:
        events = step.instance.get_records_for_run(
            step.run_id, cursor=cursor, of_type=_BEGINNINGS, limit=_LOOKED_AT, ascending=False
        )
        for record in events.records:
            event = record.event_log_entry
            if event.step_key == step.step.key:
                return int(event.timestamp * 1000)
        if not events.has_more:
            return _created_ms(context, step.run_id)
        cursor = events.cursor


def run_created_ms(context: OutputContext) -> int:
    """Return when the run, or the first that it continues, was created, in ms since 1970."""
    run = context.step_context.dagster_run
    return _created_ms(context, run.root_run_id or run.run_id)


def _created_ms(context: OutputContext, run_id: str) -> int:
    run = context.step_context.instance.get_run_record_by_id(run_id)
    return 0 if run is None else int(run.create_timestamp.timestamp() * 1000)
