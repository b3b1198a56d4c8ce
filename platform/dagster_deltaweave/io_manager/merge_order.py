"""Merges of partitions in order: an older one never overwrites what a newer one wrote.

A merge commits an application id for each of its partitions, whose version orders them, and one
for the asset: the lease, which must still hold at the commit. A run waits for the `earlier_runs`:
before the asset's function by retries of its step, after it in the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from dagster import DagsterRun, RunRecord

from dagster_deltaweave.dagster_private import ASSET_SUBSET_INPUT_PREFIX, PRIORITY_TAG
from dagster_deltaweave.io_manager.earlier_runs import Attempt, EarlierRuns
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
    by_run,
    covers_all_partitions,
    newest_first,
    output_is_full_refresh,
    output_partition_keys,
    partition_positions,
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


QUEUED_SECONDS = 60
_MOST_RELEASED = 20
SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0  # in the step
SHORTEST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 5.0, 60.0


@dataclass(frozen=True)
class WaitForEarlier:
    """The wait of a run for the runs of older partitions.

    Attributes:
        table: The name of the asset's table in messages.
        wait_seconds: How long to wait for one run, in s.
    """

    earlier: EarlierRuns
    table: str
    wait_seconds: float
    _since: dict[str, float] = field(default_factory=dict, init=False)

    def until_merged(
        self,
        newest_merged: Callable[[], str | None],
        *,
        has_rows: bool,
        has_inputs: bool = True,
        holds: Callable[[str, RunRecord], bool] = lambda _partition, _run: False,
    ) -> None:
        """Return once Dagster knows no older partition that must still be merged.

        `newest_merged` and `holds` are those of `EarlierRuns.attempts`.
        """
        context, awaited = self.earlier.context, None
        step = context.step_context
        # A retry policy of the asset would count the attempts that wait.
        is_tried_again = not (has_rows or step.retry_mode.disabled or step.op_retry_policy)
        with ExitStack() as without_slot:
            while attempts := self.earlier.attempts(newest_merged, holds):
                ended = [each for each in attempts if not each.is_under_way]
                if ended and has_rows:
                    raise self._failed_error(ended[0])
                if ended:
                    return
                waited, awaited = self._waited(attempts), attempts[0]
                if is_tried_again:
                    pause = min(_LONGEST_RETRY_SECONDS, SHORTEST_RETRY_SECONDS + waited / 4)
                    raise self._retry_or_error(awaited, pause)
                without_slot.enter_context(_without_pool_slot(context))
                time.sleep(min(_LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS + waited / 10))

        if awaited is not None and has_inputs and loads_itself(context):
            raise self._retry_or_error(awaited, 0)

    def _retry_or_error(self, awaited: Attempt, pause: float) -> WaitsForOlder | OutOfOrderError:
        """Return what makes Dagster retry the step; the run's error if it may not retry."""
        step = self.earlier.context.step_context
        if not step.retry_mode.disabled:
            return WaitsForOlder(step.previous_attempt_count + 1, pause, awaited.name)
        problem = "is merged by now, and this run had loaded its own table before"
        return self._out_of_order_error(awaited, problem, "Execute this run again.")

    def _failed_error(self, failed: Attempt) -> OutOfOrderError:
        """Return the error that ends this run because the run of an older partition failed."""
        assert failed.run is not None
        return self._out_of_order_error(
            failed,
            f"was not merged, because its run {failed.run.run_id} failed",
            f"Run {failed.partition} first, and then this partition. If it holds nothing to "
            f"be merged, run this partition with the tag {ORDER_TAG}: any.",
        )

    def _waited(self, attempts: Sequence[Attempt]) -> float:
        """Return how long the run has waited for the oldest attempt, in s; raise if too long."""
        oldest, awaited = attempts[0], attempts[0].name
        if awaited not in self._since:
            text = f"waits for {awaited};"
            earlier = [wait.at for wait in waits_of_step(self.earlier.context) if text in wait.text]
            self._since[awaited] = min(earlier, default=time.time())
            what = (
                f"run {oldest.run.run_id} of"
                if oldest.run
                else f"backfill {oldest.backfill} to run"
            )
            self.earlier.context.log.info(
                f"This run waits for {what} partition {oldest.partition}, "
                f"which is older and is to be merged before {self.earlier.oldest_own}."
            )
            if not earlier:
                self._release_queued(attempts)
        waited = time.time() - self._since[awaited]
        gives_way = waited > QUEUED_SECONDS and self.earlier.blocks(oldest)
        if gives_way or waited >= self.wait_seconds:
            raise self._waited_too_long(oldest, waited, gives_way=gives_way)
        return waited

    def _waited_too_long(
        self, oldest: Attempt, waited: float, *, gives_way: bool
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

    def _release_queued(self, attempts: Sequence[Attempt]) -> None:
        """Raise the priority of queued attempts: Dagster then starts them first, oldest first."""
        queued = [each.run for each in attempts if each.run and each.is_queued]
        priority = _priority(self.earlier.run)
        for run in reversed(queued[:_MOST_RELEASED]):
            if (own := _priority(run)) > priority:
                priority = own
                continue
            priority += 1
            self.earlier.instance.add_run_tags(run.run_id, {PRIORITY_TAG: str(priority)})

    def _out_of_order_error(self, older: Attempt, problem: str, hint: str) -> OutOfOrderError:
        run_id, own = self.earlier.run.run_id, self.earlier.oldest_own
        # A sensor then sees that this run failed because of another one.
        self.earlier.instance.add_run_tags(run_id, {WAITED_TAG: by_run(run_id, older.partition)})
        return OutOfOrderError(
            f"partition {older.partition}, which is older than {own}, {problem}.",
            partition=own,
            others=[older.partition],
            table=self.table,
            version=None,
            hint=hint,
        )


def loads_itself(context: OutputContext) -> bool:
    """Return whether an input, which was loaded before the wait, lacks what older runs merged."""
    definition = context.step_context.assets_def
    assert definition is not None
    # Where a step can be subset, Dagster adds inputs without a value, which order its parts.
    return any(
        key in definition.keys and not name.startswith(ASSET_SUBSET_INPUT_PREFIX)
        for name, key in definition.keys_by_input_name.items()
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
        earlier = EarlierRuns(context, partitions, positions)
        merged = _wait(earlier, table, output.options.wait_seconds, has_rows=True)
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
        earlier = EarlierRuns(context, partitions, positions)
        _wait(earlier, table, options.wait_seconds, has_rows=False, has_inputs=has_inputs)


def _is_any(context: OutputContext) -> bool:
    return context.step_context.dagster_run.tags.get(ORDER_TAG) == _ANY


def _wait(
    earlier: EarlierRuns,
    table: Table,
    wait_seconds: float,
    *,
    has_rows: bool,
    has_inputs: bool = True,
) -> MergedPartitions | None:
    """Wait for older partitions; return what was merged at the last look, if one was needed."""
    context, positions, partitions = earlier.context, earlier.positions, earlier.partitions
    merged = None

    def newest() -> str | None:
        nonlocal merged
        merged = MergedPartitions.of(context.asset_key, table, positions)
        if has_rows:
            _refuse_older(merged, partitions, table.path_or_name)
        return merged.newest or _newest_materialized(context, table, positions, partitions)

    def holds(partition: str, run: RunRecord) -> bool:
        instance = context.step_context.instance
        return merged is not None and merged.table.holds_run(partition, run, instance)

    wait = WaitForEarlier(earlier, table.path_or_name, wait_seconds)
    wait.until_merged(newest, has_rows=has_rows, has_inputs=has_inputs, holds=holds)
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
