"""Merges of partitions in order: an older one never overwrites what a newer one wrote.

A merge commits an application id for each of its partitions, whose version orders them, and one
for the asset: the lease, which must still hold at the commit. `docs/internals/outputs.md` says for
which runs a run waits: before the asset's function by retries of its step, after it in the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_deltaweave.dagster_private import (
    ASSET_SUBSET_INPUT_PREFIX,
    BACKFILL_ID_TAG,
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    PRIORITY_TAG,
    CheckError,
    PartitionBackfill,
)
from dagster_deltaweave.io_manager.step_attempts import (
    WaitsForOlder,
    retry_run_if_transient,
    waits_of_step,
)
from dagster_deltaweave.logs import HeldPartitions, order_id, records_id, taken_back
from dagster_deltaweave.partitions import (
    ORDER_TAG,
    WAITED_TAG,
    Positions,
    backfills_in_progress,
    by_run,
    covers_all_partitions,
    is_under_way,
    left_of_assets,
    left_of_job,
    newest_first,
    output_is_full_refresh,
    output_partition_keys,
    partition_positions,
    partitions_of_run,
    planned_assets,
    unmerged_attempts,
)
from deltaweave import Lease
from deltaweave.changes.restores import LogOf
from deltaweave.delta.commit import is_unwritten
from deltaweave.errors import OutOfOrderError

if TYPE_CHECKING:
    from dagster import AssetKey, OutputContext

    from dagster_deltaweave.io_manager.output import Output, RunOptions
    from dagster_deltaweave.tables import TableDeclaration, TableLocator
    from deltaweave import Table


_QUEUED = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_FAILED_STATUSES = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
QUEUED_SECONDS = 60
_MOST_RELEASED = 20
# The daemon records its progress after each 25 runs; the newest runs may be ahead of the record.
_MADE_LOOKED_AT = 200
SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0  # in the step
SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 5.0, 60.0


@dataclass(frozen=True)
class _Attempt:
    """The run that was last created for a partition and has not materialized it.

    Attributes:
        run: The run; None if a backfill has still to create one.
        is_under_way: Whether the run is queued or runs, or Dagster will create it or retry it.
        backfill: The backfill that has still to create the run, or has just created it.
    """

    partition: str
    run: DagsterRun | None
    is_under_way: bool
    backfill: str = ""

    @property
    def is_queued(self) -> bool:
        """Whether the run is in the queue."""
        return self.run is not None and self.run.status in _QUEUED

    @property
    def name(self) -> str:
        """The awaited run in words."""
        if self.run is None:
            return f"backfill {self.backfill} to make a run of the older partition {self.partition}"
        return f"run {self.run.run_id} of an older partition"


@dataclass(frozen=True)
class EarlierRuns:
    """The runs of older partitions that a run waits for.

    Attributes:
        table: The name of the asset's table in messages.
        wait_seconds: How long to wait for one run, in s.
    """

    context: OutputContext
    table: str
    partitions: Sequence[str]
    positions: Positions
    wait_seconds: float
    _since: dict[str, float] = field(default_factory=dict, init=False)

    def wait(
        self,
        newest_merged: Callable[[], str | None],
        *,
        has_rows: bool,
        has_inputs: bool = True,
        holds: Callable[[str, RunRecord], bool] = lambda _partition, _run: False,
    ) -> None:
        """Return once Dagster knows no older partition that must still be merged.

        `newest_merged`: looks up the newest merged partition, None for none; called after Dagster
        was asked, and only if an older partition is not materialized. `holds`: whether the table
        then held what a run merged into a partition.
        """
        step, awaited = self.context.step_context, None
        # A retry policy of the asset would count the attempts that wait.
        is_tried_again = not (has_rows or step.retry_mode.disabled or step.op_retry_policy)
        with ExitStack() as without_slot:
            while attempts := self._attempts(newest_merged, holds):
                ended = [each for each in attempts if not each.is_under_way]
                if ended and has_rows:
                    raise self._failed_error(ended[0])
                if ended:
                    return
                waited, awaited = self._waited(attempts), attempts[0]
                if is_tried_again:
                    pause = min(_LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS + waited / 4)
                    raise self._retry_or_error(awaited, pause)
                without_slot.enter_context(_without_pool_slot(self.context))
                time.sleep(min(_LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS + waited / 10))

        if awaited is not None and has_inputs and self._loads_itself:
            raise self._retry_or_error(awaited, 0)

    def _retry_or_error(self, awaited: _Attempt, pause: float) -> WaitsForOlder | OutOfOrderError:
        """Return what makes Dagster retry the step; the run's error if it may not retry."""
        step = self.context.step_context
        if not step.retry_mode.disabled:
            return WaitsForOlder(step.previous_attempt_count + 1, pause, awaited.name)
        problem = "is merged by now, and this run had loaded its own table before"
        return self._out_of_order_error(awaited, problem, "Execute this run again.")

    @property
    def _loads_itself(self) -> bool:
        """Whether an input, which was loaded before the wait, lacks what older runs merged."""
        definition = self.context.step_context.assets_def
        assert definition is not None
        # Where a step can be subset, Dagster adds inputs without a value, which order its parts.
        return any(
            key in definition.keys and not name.startswith(ASSET_SUBSET_INPUT_PREFIX)
            for name, key in definition.keys_by_input_name.items()
        )

    @property
    def _instance(self) -> DagsterInstance:
        return self.context.step_context.instance

    @property
    def _run(self) -> DagsterRun:
        return self.context.step_context.dagster_run

    @property
    def _oldest_own(self) -> str:
        return min(self.partitions, key=self.positions)

    def _unmerged(self) -> list[tuple[Any, str, str]]:
        """Return position, key and last run of partitions not materialized since that run."""
        return [
            (position, partition, run_id)
            for partition, run_id in unmerged_attempts(self._instance, self.context.asset_key)
            if partition not in self.partitions
            and run_id != self._run.run_id
            and (position := self.positions(partition)) is not None
        ]

    def _attempts(
        self, newest_merged: Callable[[], str | None], holds: Callable[[str, RunRecord], bool]
    ) -> list[_Attempt]:
        """Return the runs of older partitions that must still be merged, oldest first."""
        own = self.positions(self._oldest_own)
        # Before the runs: a partition whose run is made in between is found twice, not missed.
        left = self._left_to_backfills()
        older = [each for each in self._unmerged() if each[0] < own]
        if not older and not left:
            return []
        newest = newest_merged()
        after = None if newest is None else self.positions(newest)
        known = {key: run for at, key, run in older if after is None or at >= after}
        found = {**left, **self._attempts_of_runs(known, newest, holds, awaited=left)}
        positioned = [(self.positions(key), key) for key in found]
        # A dynamic partition that has just been deleted has no position.
        existing = [(at, key) for at, key in positioned if at is not None]
        return [found[key] for at, key in sorted(existing) if after is None or at >= after]

    def _attempts_of_runs(
        self,
        known: Mapping[str, str],
        newest: str | None,
        holds: Callable[[str, RunRecord], bool],
        *,
        awaited: Collection[str],
    ) -> dict[str, _Attempt]:
        """Return the runs of older partitions that must still be merged.

        `newest`: the newest merged partition; None for none.
        """
        if not known:
            return {}
        records = self._instance.get_run_records(RunsFilter(run_ids=list(known.values())))
        by_id = {each.dagster_run.run_id: each for each in records}
        found = [
            _Attempt(key, by_id[run].dagster_run, is_under_way(by_id[run], self._instance))
            for key, run in known.items()
            if run in by_id
        ]
        others = self._others_under_way([each for each in found if not each.is_under_way])
        passed = {newest, *awaited}
        found = [others.get(each.partition, each) for each in found]
        return {
            each.partition: each
            for each in found
            if each.is_under_way
            # A run that was killed after its commit has merged its partition. The order's ids say
            # so of the newest one alone, and those of an earlier release only they.
            or (
                each.run is not None
                and each.run.status in _FAILED_STATUSES
                and each.partition not in passed
                and not holds(each.partition, by_id[each.run.run_id])
            )
        }

    def _left_to_backfills(self) -> dict[str, _Attempt]:
        """Return the older partitions for which backfills in progress have still to make runs."""
        own, found = self.positions(self._oldest_own), dict[str, _Attempt]()
        left: dict[tuple[str, str], None] = {}
        for backfill in backfills_in_progress(self._instance):
            for each in self._left_to(backfill):
                at = None if each in self.partitions else self.positions(each)
                if at is not None and at < own:
                    left[backfill.backfill_id, each] = None
        made = self._made_by_backfills({backfill_id for backfill_id, _ in left})
        for backfill_id, each in left:
            run = made.get((backfill_id, each))
            if run is None or run.status not in FINISHED_STATUSES:
                found[each] = _Attempt(each, run, is_under_way=True, backfill=backfill_id)
        return found

    def _left_to(self, backfill: PartitionBackfill) -> Iterable[str]:
        """Return the asset's partitions for which a backfill has still to make runs."""
        if backfill.asset_backfill_data is not None:
            return left_of_assets(backfill.asset_backfill_data, self.context.asset_key)
        is_of_job = not backfill.is_asset_backfill and self._materializes(backfill)
        return left_of_job(backfill) if is_of_job else ()

    def _made_by_backfills(self, backfills: Collection[str]) -> dict[tuple[str, str], DagsterRun]:
        """Return the newest runs that backfills have made already, by backfill and partition.

        The daemon writes that it has made runs only once it has made several.
        """
        if not backfills:
            return {}
        asset, definition = self.context.asset_key, self.context.asset_partitions_def
        wanted = RunsFilter(tags={BACKFILL_ID_TAG: sorted(backfills)})
        made: dict[tuple[str, str], DagsterRun] = {}
        for run in self._instance.get_runs(wanted, limit=_MADE_LOOKED_AT):
            if run.asset_selection is not None and asset not in run.asset_selection:
                continue
            for partition in partitions_of_run(run, definition, self._instance):
                made.setdefault((run.tags[BACKFILL_ID_TAG], partition), run)
        return made

    def _materializes(self, backfill: PartitionBackfill) -> bool:
        """Return whether the job of a backfill materializes the asset."""
        if backfill.asset_selection is not None:
            return self.context.asset_key in backfill.asset_selection
        own, origin = self._run.remote_job_origin, backfill.partition_set_origin
        if own is not None and origin is not None:
            location = origin.repository_origin.code_location_origin
            if own.location_name != location.location_name:
                return False  # another code location may have a job of the same name
        job = backfill.job_name
        return job is not None and (job == self._run.job_name or self._has_job(job))

    def _has_job(self, name: str) -> bool:
        """Return whether a job of the run's code location materializes the asset."""
        try:
            repository = self.context.step_context.repository_def
        except CheckError:  # a run outside of a code location
            return False
        if not repository.has_job(name):
            return False
        layer = repository.get_job(name).asset_layer
        return self.context.asset_key in layer.executable_asset_keys

    def _others_under_way(self, ended: Sequence[_Attempt]) -> dict[str, _Attempt]:
        """Return runs in progress of partitions whose newest run has ended."""
        if not ended:
            return {}
        asset, definition = self.context.asset_key, self.context.asset_partitions_def
        partitions = {each.partition for each in ended}
        unfinished = RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
        return {
            partition: _Attempt(partition, run, is_under_way=True)
            for run in self._instance.get_runs(unfinished)
            for partition in partitions_of_run(run, definition, self._instance)
            if partition in partitions and asset in planned_assets(self._instance, run)
        }

    def _failed_error(self, failed: _Attempt) -> OutOfOrderError:
        """Return the error that ends this run because the run of an older partition failed."""
        assert failed.run is not None
        return self._out_of_order_error(
            failed,
            f"was not merged, because its run {failed.run.run_id} failed",
            f"Run {failed.partition} first, and then this partition. If it holds nothing to "
            f"be merged, run this partition with the tag {ORDER_TAG}: any.",
        )

    def _waited(self, attempts: Sequence[_Attempt]) -> float:
        """Return how long the run has waited for the oldest attempt, in s; raise if too long."""
        oldest, awaited = attempts[0], attempts[0].name
        if awaited not in self._since:
            text = f"waits for {awaited};"
            earlier = [wait.at for wait in waits_of_step(self.context) if text in wait.text]
            self._since[awaited] = min(earlier, default=time.time())
            what = (
                f"run {oldest.run.run_id} of"
                if oldest.run
                else f"backfill {oldest.backfill} to run"
            )
            self.context.log.info(
                f"This run waits for {what} partition {oldest.partition}, "
                f"which is older and is to be merged before {self._oldest_own}."
            )
            if not earlier:
                self._release_queued(attempts)
        waited = time.time() - self._since[awaited]
        gives_way = waited > QUEUED_SECONDS and self._blocks(oldest)
        if gives_way or waited >= self.wait_seconds:
            raise self._waited_too_long(oldest, waited, gives_way=gives_way)
        return waited

    def _waited_too_long(
        self, oldest: _Attempt, waited: float, *, gives_way: bool
    ) -> OutOfOrderError:
        """Return the error that ends this run because an older partition is not merged in time."""
        if oldest.run is None:
            which = "and waits for others in the queue " if gives_way else ""
            whose = f"backfill {oldest.backfill} has not made its run {which}"
            hint = "Execute this run again once that one has ended, or cancel the backfill."
        else:
            status = "is still in the queue" if gives_way else "has not ended"
            whose = f"its run {oldest.run.run_id} {status} "
            hint = "Execute this run again once that one has ended."
        return self._out_of_order_error(
            oldest, f"is still to be merged, and {whose}after {waited:.0f} s", hint
        )

    def _blocks(self, oldest: _Attempt) -> bool:
        """Return whether this run may keep the awaited run in the queue and must make room for it.

        Of all waiting runs, the one with the newest partition makes room.
        """
        if not (oldest.is_queued or (oldest.run is None and self._is_held(oldest.backfill))):
            return False
        own = self.positions(self._oldest_own)
        newer = [run_id for position, _, run_id in self._unmerged() if position > own]
        if not newer:
            return True
        running = RunsFilter(run_ids=newer, statuses=[DagsterRunStatus.STARTED])
        return not self._instance.get_runs(running)

    def _is_held(self, backfill: str) -> bool:
        """Return whether runs in the queue keep a backfill from making the awaited run.

        They do if all of its unfinished runs are queued, except those that wait as this run does.
        """
        statuses = [*_QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
        wanted = RunsFilter(statuses=statuses, tags={BACKFILL_ID_TAG: backfill})
        leading = [run for run in self._instance.get_runs(wanted) if not self._waits_too(run)]
        return bool(leading) and all(run.status in _QUEUED for run in leading)

    def _waits_too(self, run: DagsterRun) -> bool:
        """Return whether a run merges this run's partitions of the asset or newer ones alone."""
        if run.asset_selection is not None and self.context.asset_key not in run.asset_selection:
            return False
        own, definition = self.positions(self._oldest_own), self.context.asset_partitions_def
        found = map(self.positions, partitions_of_run(run, definition, self._instance))
        positions = [at for at in found if at is not None]
        return bool(positions) and min(positions) >= own

    def _release_queued(self, attempts: Sequence[_Attempt]) -> None:
        """Raise the priority of queued attempts: Dagster then starts them first, oldest first."""
        queued = [each.run for each in attempts if each.run and each.is_queued]
        priority = _priority(self._run)
        for run in reversed(queued[:_MOST_RELEASED]):
            if (own := _priority(run)) > priority:
                priority = own
                continue
            priority += 1
            self._instance.add_run_tags(run.run_id, {PRIORITY_TAG: str(priority)})

    def _out_of_order_error(self, older: _Attempt, problem: str, hint: str) -> OutOfOrderError:
        # A sensor then sees that this run failed because of another one.
        self._instance.add_run_tags(
            self._run.run_id, {WAITED_TAG: by_run(self._run.run_id, older.partition)}
        )
        return OutOfOrderError(
            f"partition {older.partition}, which is older than {self._oldest_own}, {problem}.",
            partition=self._oldest_own,
            others=[older.partition],
            table=self.table,
            version=None,
            hint=hint,
        )


def _priority(run: DagsterRun) -> int:
    text = run.tags.get(PRIORITY_TAG, "0")
    return int(text) if text.lstrip("-").isdigit() else 0


@contextmanager
def _without_pool_slot(context: OutputContext) -> Iterator[None]:
    """Free the step's slot in its pool for other runs, for which it may be waiting."""
    step = context.step_context
    storage, pool = step.instance.event_log_storage, step.step.pool
    claim = (step.run_id, step.step.key)
    if (
        pool is None
        or not storage.supports_global_concurrency_limits
        or not storage.check_concurrency_claim(pool, *claim).is_claimed
    ):
        yield
        return
    storage.free_concurrency_slot_for_step(*claim)
    yield
    while not storage.claim_concurrency_slot(pool, *claim).is_claimed:
        time.sleep(1)


_ANY = "any"
_NEWER_SHOWN = 10  # partitions in an error


@dataclass(frozen=True)
class MergedPartitions:
    """Which partitions were merged into a version of a table.

    Attributes:
        lease: Application id of the order.
        held: The lease's version in the table, -1 for none.
        version: The table's version, -1 if there is no table yet.
        merged: Partition to the version of its own application id.
        table: What the table holds by its records, too.
    """

    lease: str
    held: int
    version: int
    merged: Mapping[str, int]
    positions: Positions
    table: HeldPartitions = field(default_factory=lambda: HeldPartitions({}, {}))

    @classmethod
    def of(cls, asset: AssetKey, table: Table, positions: Positions) -> MergedPartitions:
        """Read which partitions were merged into the newest version."""
        lease = order_id(asset)
        if not table.exists():
            return cls(lease, -1, -1, {}, positions)
        snapshot = table.snapshot()
        applied, records = snapshot.applied_versions(), records_id(snapshot.id, asset)
        if applied.keys().isdisjoint({lease, records}):
            return cls(lease, -1, snapshot.version, {}, positions)
        prefixes = f"{lease}#", f"{records}#"
        looked = applied.get(records)
        back = taken_back(LogOf(snapshot), snapshot.version, records, prefixes, looked=looked)
        holds = HeldPartitions.of(asset, records, applied, back)
        held = applied.get(lease, -1)
        return cls(lease, held, snapshot.version, holds.order, positions, holds)

    @property
    def newest(self) -> str | None:
        """The newest partition, or None."""
        return next(newest_first(self.merged, self.positions), None)

    def newer_than(self, partitions: Collection[str]) -> list[str]:
        """Return other merged partitions that are newer than the oldest of these, newest first."""
        earliest = min(map(self.positions, partitions))
        in_order = newest_first(self.merged, self.positions)
        newer = takewhile(lambda key: self.positions(key) > earliest, in_order)
        return [key for key in newer if key not in partitions]

    def lease_of(self, partitions: Sequence[str], *, starts_over: bool = False) -> Lease:
        """Return what must hold at the commit of these partitions, and their transaction ids."""
        newest = None if starts_over or self.newest is None else self.positions(self.newest)
        newer = [key for key in partitions if newest is None or self.positions(key) > newest]
        # If none is newer, a concurrent merge of another such partition does no harm.
        names = [self.lease, *(f"{self.lease}#{key}" for key in newer)] if newer else []
        return Lease(self.lease, self.held, dict.fromkeys(names, self.version + 1))


def lease_of_run(output: Output) -> Lease | None:
    """Return the lease of a run's merge; None if order does not matter.

    The run waits here until the runs of older partitions have ended.
    """
    context, table, partitions = output.context, output.table, output.partitions
    positions = _positions(context, output.declaration, partitions)
    if positions is None:
        return None
    merged, is_any = None, _is_any(context)
    if not is_any:
        name = table.path_or_name
        earlier = EarlierRuns(context, name, partitions, positions, output.options.wait_seconds)
        merged = _wait(earlier, table, has_rows=True)
    merged = merged or MergedPartitions.of(context.asset_key, table, positions)
    if not is_any:
        _refuse_older(merged, partitions, table.path_or_name)
    return merged.lease_of(partitions, starts_over=is_any)


def wait_before_function(
    context: OutputContext, tables: TableLocator, options: RunOptions, *, has_inputs: bool
) -> None:
    """Wait for older partitions before the asset's function is called; a full refresh does not.

    A merge out of order is not refused yet: its function may return None. A refresh is.
    """
    partitions, declaration = output_partition_keys(context), options.declaration
    positions = _positions(context, declaration, partitions)
    if positions is None or _is_any(context):
        return
    with retry_run_if_transient(declaration.retries, context):
        table = tables.table(context.asset_key, declaration)
        if output_is_full_refresh(context):
            # Without an expression, `rebuild` says that it needs one for some partitions.
            if declaration.partition_expr and not covers_all_partitions(context, partitions):
                merged = MergedPartitions.of(context.asset_key, table, positions)
                _refuse_older_refresh(merged, partitions, table.path_or_name)
            return
        name = table.path_or_name
        earlier = EarlierRuns(context, name, partitions, positions, options.wait_seconds)
        _wait(earlier, table, has_rows=False, has_inputs=has_inputs)


def _is_any(context: OutputContext) -> bool:
    return context.step_context.dagster_run.tags.get(ORDER_TAG) == _ANY


def _wait(
    earlier: EarlierRuns, table: Table, *, has_rows: bool, has_inputs: bool = True
) -> MergedPartitions | None:
    """Wait for older partitions; return what was merged at the last look, if one was needed."""
    context, positions, partitions = earlier.context, earlier.positions, earlier.partitions
    merged = None

    def newest() -> str | None:
        nonlocal merged
        merged = MergedPartitions.of(context.asset_key, table, positions)
        if has_rows:
            _refuse_older(merged, partitions, earlier.table)
        return merged.newest or _newest_materialized(context, table, positions, partitions)

    def holds(partition: str, run: RunRecord) -> bool:
        instance = context.step_context.instance
        return merged is not None and merged.table.holds_run(partition, run, instance)

    earlier.wait(newest, has_rows=has_rows, has_inputs=has_inputs, holds=holds)
    return merged


def order_of_refresh(output: Output, *, is_of_all: bool) -> Mapping[str, int]:
    """Return the transaction ids that record a rebuilt table's partitions as merged.

    Raises:
        OutOfOrderError: Others are newer and merged, so that what they wrote could be undone.
    """
    context, partitions = output.context, output.partitions
    positions = _positions(context, output.declaration, partitions)
    if positions is None:
        return {}
    merged = MergedPartitions.of(context.asset_key, output.table, positions)
    starts_over = is_of_all or _is_any(context)
    if not starts_over:
        _refuse_older_refresh(merged, partitions, output.table.path_or_name)
    return merged.lease_of(partitions, starts_over=starts_over).marks


def _positions(
    context: OutputContext, declaration: TableDeclaration, partitions: Sequence[str]
) -> Positions | None:
    if not (declaration.needs_order and partitions):
        return None
    positions = partition_positions(context.asset_partitions_def, context.step_context.instance)
    if positions is None:
        return None
    # A dynamic partition that is deleted while its run waits no longer has a position.
    own = {key: positions(key) for key in partitions}
    return lambda key: own[key] if key in own else positions(key)


def _newest_materialized(
    context: OutputContext, table: Table, positions: Positions, partitions: Sequence[str]
) -> str | None:
    """Return the newest older partition that a release without an order merged, or None.

    The run does not wait for runs that failed before that partition, perhaps years ago.
    """
    if not table.exists() or is_unwritten(table.snapshot()):
        return None
    earliest = min(map(positions, partitions))
    keys = context.step_context.instance.get_materialized_partitions(context.asset_key)
    older = [key for key in keys if (at := positions(key)) is not None and at < earliest]
    return max(older, key=positions, default=None)


def _refuse_older(merged: MergedPartitions, partitions: Sequence[str], table: str) -> None:
    newer = merged.newer_than(partitions)
    if not newer:
        return
    partition = min(partitions, key=merged.positions)
    raise OutOfOrderError(
        f"partition {newer[0]}, which is newer than {partition}, was merged before it: it is in "
        f"the table since version {merged.merged[newer[0]]} or a later one. Older rows would "
        "replace newer ones.",
        partition=partition,
        others=newer,
        table=table,
        version=merged.version,
        hint=f"To merge {partition} all the same, run it with the tag {ORDER_TAG}: {_ANY}, and "
        "then the newer partitions again, in order; or rebuild the table by a full refresh. "
        "Declare sequence_by= where a column of the rows says which is newer, and order='any' "
        "where order does not matter.",
    )


def _refuse_older_refresh(merged: MergedPartitions, partitions: Sequence[str], table: str) -> None:
    newer = merged.newer_than(partitions)
    if not newer:
        return
    partition, shown = min(partitions, key=merged.positions), newer[:_NEWER_SHOWN]
    named = ", ".join(shown) + (f" and {more} more" if (more := len(newer) - len(shown)) else "")
    raise OutOfOrderError(
        f"partitions that are newer than {partition} and not in this full refresh are merged: "
        f"{named}. What they changed in its rows, and the deletes of its keys, would be undone.",
        partition=partition,
        others=newer,
        table=table,
        version=merged.version,
        hint=f"Refresh {partition} together with all newer partitions, in one run. To refresh it "
        f"without them, give the run the tag {ORDER_TAG}: {_ANY}, and then run the newer ones "
        "again, in order.",
    )
