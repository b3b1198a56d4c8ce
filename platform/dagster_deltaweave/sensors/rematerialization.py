"""Starts rematerialization: a sensor that looks at the pending changes, or a schedule.

Both read only the logs and start no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from dagster import (
    AssetSelection,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    build_resources,
    schedule,
    sensor,
)

from dagster_deltaweave.dagster_private import (
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    RUN_KEY_TAG,
)
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.partitions import ended_at
from dagster_deltaweave.sensors.run_requests import (
    SensorArguments,
    check_least,
    first_without_a_run,
    has_run,
)
from dagster_deltaweave.tables import (
    MergeOnReadAssets,
    NamedAsset,
    TableLocator,
    merge_on_read_locations,
    merge_on_read_tables,
    run_locator,
)
from deltaweave._validation import counted
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from typing_extensions import Unpack

REMATERIALIZES = "deltaweave/rematerializes"
"""Run tag with the key of the base that the run was requested for."""

REASON = "deltaweave/rematerialization_reason"
"""Run tag with the reason for the run."""

_LONGEST_TAG = 500
_MOST_ENDED = 20  # of one state, before which the longest pause is reached
_LONGEST_BASE_PAUSE_SECONDS = 3600.0
LONGEST_LAUNCH_SECONDS = 600  # from when a run is created until it is launched


@dataclass(frozen=True)
class Due:
    """A base that is due to be rematerialized.

    Attributes:
        reason: Why the base is due, as a sentence.
        state: The newest batch in the base and the newest of all. One run is requested for a state.
        attempt: The number of the next run for the state.
    """

    assets: MergeOnReadAssets
    reason: str
    state: str
    attempt: int = 1

    @property
    def run_key(self) -> str:
        """The run key of the next run for this state."""
        return f"{self.state}#{self.attempt}" if self.attempt > 1 else self.state

    def request(self, run_tags: Mapping[str, str]) -> RunRequest:
        """Build the run request that rematerializes the base."""
        base = self.assets.base.key
        return RunRequest(
            run_key=self.run_key,
            asset_selection=[base],
            tags={
                **run_tags,
                REMATERIALIZES: base.to_user_string(),
                REASON: self.reason[:_LONGEST_TAG],
            },
        )


def build_rematerialization_sensor(  # noqa: PLR0913 - the public options
    *,
    name: str,
    tables: MergeOnReadAssets | Sequence[MergeOnReadAssets],
    policy: RematerializationPolicy | None = None,
    retry_after_seconds: float = 60,
    minimum_interval_seconds: int = 60,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    io_manager_key: str | None = None,
    description: str | None = None,
    run_tags: Mapping[str, str] | None = None,
    **arguments: Unpack[SensorArguments],
) -> SensorDefinition:
    """Build a sensor that rematerializes a base when more is pending than its policy allows.

    While such a run is in progress, no other is requested. If it failed, or if a RESTORE took back
    what it merged, it is requested again after `retry_after_seconds`, and after twice as long each
    further time, up to an hour; a tick says when. A run that was cancelled is requested again once
    more changes were appended.

    Args:
        name: The sensor's name.
        tables: What `@merge_on_read_asset` returns, of one table or a list of several.
        policy: What may be pending; by default `RematerializationPolicy()`.
        retry_after_seconds: How long after the first failed run it is requested again, in s.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables; by default
            that of each asset.
        description: The sensor's description in the UI.
        run_tags: Tags of the runs that it requests.
        arguments: `metadata`, `owners` and `tags` of the sensor, as in Dagster's own `sensor`.
    """
    check_least(name, 0, retry_after_seconds=retry_after_seconds)
    tables = merge_on_read_tables(tables, f"rematerialization sensor {name}")
    bases = [NamedAsset.of(each.base, io_manager_key) for each in tables]

    @sensor(
        name=name,
        target=AssetSelection.assets(*(each.base for each in tables)),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys=_unbound_io_managers(bases),
        description=description
        or f"Merges pending changes of {_view_names(tables)} when it is due.",
        **arguments,
    )
    def rematerialization_sensor(context: SensorEvaluationContext) -> SensorResult:
        due, notes = _due_tables(context, tables, bases, policy or RematerializationPolicy())
        due, waiting = _with_retries(context.instance, due, retry_after_seconds)
        notes += waiting
        now, before = first_without_a_run(
            due,
            request=lambda each: None if has_run(context, name, each.run_key) else each,
            limit=len(due),
        )
        notes += [
            f"{_base_name(each.assets)} was requested before: {each.reason}" for each in before
        ]
        if not now:
            return SensorResult(skip_reason=f"Nothing to rematerialize: {'; '.join(notes)}")
        for each in now:
            context.log.info(f"Requesting {_base_name(each.assets)}: {each.reason}")
        return SensorResult(run_requests=[each.request(run_tags or {}) for each in now])

    return rematerialization_sensor


def build_rematerialization_schedule(  # noqa: PLR0913 - the public options
    *,
    name: str,
    tables: MergeOnReadAssets | Sequence[MergeOnReadAssets],
    cron_schedule: str,
    policy: RematerializationPolicy | None = None,
    execution_timezone: str = "UTC",
    default_status: DefaultScheduleStatus = DefaultScheduleStatus.STOPPED,
    io_manager_key: str | None = None,
    run_tags: Mapping[str, str] | None = None,
) -> ScheduleDefinition:
    """Build a schedule that rematerializes the bases for which changes are pending.

    Args:
        name: The schedule's name.
        tables: What `@merge_on_read_asset` returns, of one table or a list of several.
        cron_schedule: When the schedule runs.
        policy: What may be pending; by default nothing.
        execution_timezone: The time zone of `cron_schedule`.
        default_status: Whether the schedule starts by itself.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables; by default
            that of each asset.
        run_tags: Tags of the runs that it requests.
    """
    tables = merge_on_read_tables(tables, f"rematerialization schedule {name}")
    bases = [NamedAsset.of(each.base, io_manager_key) for each in tables]

    @schedule(
        name=name,
        target=AssetSelection.assets(*(each.base for each in tables)),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        required_resource_keys=_unbound_io_managers(bases),
        description=f"Merges pending changes of {_view_names(tables)}.",
    )
    def rematerialization_schedule(
        context: ScheduleEvaluationContext,
    ) -> list[RunRequest] | SkipReason:
        due, notes = _due_tables(
            context, tables, bases, policy or RematerializationPolicy(batches=1)
        )
        if not due:
            return SkipReason(f"Nothing to rematerialize: {'; '.join(notes)}")
        return [each.request(run_tags or {}) for each in due]

    return rematerialization_schedule


class DueBases(NamedTuple):
    """The bases that are due, and a note on each of the others."""

    due: list[Due]
    notes: list[str]


def _due_tables(
    context: SensorEvaluationContext | ScheduleEvaluationContext,
    tables: Sequence[MergeOnReadAssets],
    bases: Sequence[NamedAsset],
    policy: RematerializationPolicy,
) -> DueBases:
    """Return the bases that are due."""
    due, notes = [], []
    for each, named in zip(tables, bases, strict=True):
        base, locator = _base_name(each), _locator(context, named)
        try:
            pending = pending_changes(merge_on_read_locations(locator, each.declaration))
        except SourceError as error:
            # One unreadable log must not keep the other logs from being read.
            notes.append(str(error))
            continue
        if pending is None:
            notes.append(f"nothing was ever appended for {base}.")
            continue
        reason = policy.reason(pending)
        under_way = _run_under_way(context.instance, base)
        if reason is None:
            notes.append(
                f"{base} lacks {counted(pending.rows, 'row')} in "
                f"{counted(pending.batches, 'batch', 'batches')}, which its policy allows."
            )
        elif under_way:
            notes.append(f"{base} is in progress in run {under_way.run_id[:8]}.")
        else:
            # The id is included because a recreated base begins with the same batch numbers.
            state = f"{base}@{pending.base_id}:{pending.merged_batch}-{pending.newest_batch}"
            due.append(Due(each, reason, state))
    return DueBases(due, notes)


def _run_under_way(instance: DagsterInstance, base: str) -> DagsterRun | None:
    """Return the newest run for a base that is under way; None without one.

    Dagster's daemon may end between creating a run and launching it: such a run would be under way
    forever. The sensor requests it again, by its run key, and the daemon launches it.
    """
    wanted = RunsFilter(tags={REMATERIALIZES: base}, statuses=NOT_FINISHED_STATUSES)
    for record in instance.get_run_records(wanted):
        age = time.time() - record.create_timestamp.timestamp()
        is_launched = record.dagster_run.status != DagsterRunStatus.NOT_STARTED
        if is_launched or age < LONGEST_LAUNCH_SECONDS:
            return record.dagster_run
    return None


def _unbound_io_managers(bases: Sequence[NamedAsset]) -> set[str]:
    """Return the resource keys of IO managers that the definitions have to give."""
    return {each.io_manager_key for each in bases if not each.resource_defs}


def _locator(
    context: SensorEvaluationContext | ScheduleEvaluationContext, base: NamedAsset
) -> TableLocator:
    """Return the locator of the IO manager that is bound to a base, or of the definitions'."""
    if not base.resource_defs:
        return run_locator(context.resources, base.io_manager_key)
    with build_resources(base.resource_defs, instance=context.instance) as resources:
        return run_locator(resources, base.io_manager_key)


def _with_retries(
    instance: DagsterInstance, due: Sequence[Due], retry_after_seconds: float
) -> DueBases:
    """Return the bases whose next run is due now, with its number."""
    now, notes = [], []
    for each in due:
        base = _base_name(each.assets)
        wanted = RunsFilter(tags={REMATERIALIZES: base}, statuses=list(FINISHED_STATUSES))
        records = instance.get_run_records(wanted, limit=_MOST_ENDED)
        ended = [record for record in records if _run_key(record).state == each.state]
        if not ended:
            now.append(each)
            continue
        run, last = ended[0].dagster_run, max(_run_key(record).attempt for record in ended)
        if run.status == DagsterRunStatus.CANCELED:
            now.append(replace(each, attempt=last))  # which was requested before
            continue
        # What a run merged is pending again if a RESTORE took it back.
        alike = list(next(groupby(ended, key=lambda record: record.dagster_run.status))[1])
        pause = min(_LONGEST_BASE_PAUSE_SECONDS, retry_after_seconds * 2 ** (len(alike) - 1))
        remaining = max(map(ended_at, alike)) + pause - time.time()
        if remaining <= 0:
            now.append(replace(each, attempt=last + 1))
            continue
        how = "failed" if run.status == DagsterRunStatus.FAILURE else "succeeded"
        notes.append(
            f"{base} is tried again in {remaining:.0f} s, after run {run.run_id[:8]} {how}, "
            f"attempt {last}: {each.reason}"
        )
    return DueBases(now, notes)


class _RunKey(NamedTuple):
    """The state that a run was requested for, and the number of the run for it."""

    state: str
    attempt: int


def _run_key(record: RunRecord) -> _RunKey:
    text = record.dagster_run.tags.get(RUN_KEY_TAG, "")
    state, _, number = text.rpartition("#")
    is_numbered = "#" in text and number.isdecimal()
    return _RunKey(state, int(number)) if is_numbered else _RunKey(text, 1)


def _base_name(assets: MergeOnReadAssets) -> str:
    return assets.base.key.to_user_string()


def _view_names(tables: Sequence[MergeOnReadAssets]) -> str:
    return ", ".join(each.view.key.to_user_string() for each in tables)
