"""The runs of older partitions that a run's merge must come after, as Dagster knows them.

`docs/internals/outputs.md` says for which runs a run waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from dagster_deltaweave.dagster_private import (
    BACKFILL_ID_TAG,
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    CheckError,
    PartitionBackfill,
)
from dagster_deltaweave.partitions import (
    Positions,
    backfills_in_progress,
    is_under_way,
    left_of_assets,
    left_of_job,
    partitions_of_run,
    planned_assets,
    unmerged_attempts,
)

if TYPE_CHECKING:
    from dagster import OutputContext

_QUEUED = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_FAILED_STATUSES = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
# The daemon records its progress after each 25 runs; the newest runs may be ahead of the record.
_MADE_LOOKED_AT = 200


@dataclass(frozen=True)
class Attempt:
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
    """The runs that are to merge older partitions of an asset than a run does.

    Attributes:
        partitions: The partitions of the run.
    """

    context: OutputContext
    partitions: Sequence[str]
    positions: Positions

    @property
    def instance(self) -> DagsterInstance:
        """The instance that knows the runs."""
        return self.context.step_context.instance

    @property
    def run(self) -> DagsterRun:
        """The run that waits."""
        return self.context.step_context.dagster_run

    @property
    def oldest_own(self) -> str:
        """The oldest of its partitions."""
        return min(self.partitions, key=self.positions)

    def _unmerged(self) -> list[tuple[Any, str, str]]:
        """Return position, key and last run of partitions not materialized since that run."""
        return [
            (position, partition, run_id)
            for partition, run_id in unmerged_attempts(self.instance, self.context.asset_key)
            if partition not in self.partitions
            and run_id != self.run.run_id
            and (position := self.positions(partition)) is not None
        ]

    def attempts(
        self, newest_merged: Callable[[], str | None], holds: Callable[[str, RunRecord], bool]
    ) -> list[Attempt]:
        """Return the runs of older partitions that must still be merged, oldest first.

        Args:
            newest_merged: Looks up the newest merged partition, None for none. It is called after
                Dagster was asked, and only if an older partition is not materialized.
            holds: Whether the table then held what a run merged into a partition.
        """
        own = self.positions(self.oldest_own)
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
    ) -> dict[str, Attempt]:
        """Return the runs of older partitions that must still be merged.

        `newest` is the newest merged partition; None for none.
        """
        if not known:
            return {}
        records = self.instance.get_run_records(RunsFilter(run_ids=list(known.values())))
        by_id = {each.dagster_run.run_id: each for each in records}
        found = [
            Attempt(key, by_id[run].dagster_run, is_under_way(by_id[run], self.instance))
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

    def _left_to_backfills(self) -> dict[str, Attempt]:
        """Return the older partitions for which backfills in progress have still to make runs."""
        own, found = self.positions(self.oldest_own), dict[str, Attempt]()
        left: dict[tuple[str, str], None] = {}
        for backfill in backfills_in_progress(self.instance):
            for each in self._left_to(backfill):
                at = None if each in self.partitions else self.positions(each)
                if at is not None and at < own:
                    left[backfill.backfill_id, each] = None
        made = self._made_by_backfills({backfill_id for backfill_id, _ in left})
        for backfill_id, each in left:
            run = made.get((backfill_id, each))
            if run is None or run.status not in FINISHED_STATUSES:
                found[each] = Attempt(each, run, is_under_way=True, backfill=backfill_id)
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
        for run in self.instance.get_runs(wanted, limit=_MADE_LOOKED_AT):
            if run.asset_selection is not None and asset not in run.asset_selection:
                continue
            for partition in partitions_of_run(run, definition, self.instance):
                made.setdefault((run.tags[BACKFILL_ID_TAG], partition), run)
        return made

    def _materializes(self, backfill: PartitionBackfill) -> bool:
        """Return whether the job of a backfill materializes the asset."""
        if backfill.asset_selection is not None:
            return self.context.asset_key in backfill.asset_selection
        own, origin = self.run.remote_job_origin, backfill.partition_set_origin
        if own is not None and origin is not None:
            location = origin.repository_origin.code_location_origin
            if own.location_name != location.location_name:
                return False  # another code location may have a job of the same name
        job = backfill.job_name
        return job is not None and (job == self.run.job_name or self._has_job(job))

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

    def _others_under_way(self, ended: Sequence[Attempt]) -> dict[str, Attempt]:
        """Return runs in progress of partitions whose newest run has ended."""
        if not ended:
            return {}
        asset, definition = self.context.asset_key, self.context.asset_partitions_def
        partitions = {each.partition for each in ended}
        unfinished = RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
        return {
            partition: Attempt(partition, run, is_under_way=True)
            for run in self.instance.get_runs(unfinished)
            for partition in partitions_of_run(run, definition, self.instance)
            if partition in partitions and asset in planned_assets(self.instance, run)
        }

    def blocks(self, oldest: Attempt) -> bool:
        """Return whether this run may keep the awaited run in the queue and must make room for it.

        Of all waiting runs, the one with the newest partition makes room.
        """
        if not (oldest.is_queued or (oldest.run is None and self._is_held(oldest.backfill))):
            return False
        own = self.positions(self.oldest_own)
        newer = [run_id for position, _, run_id in self._unmerged() if position > own]
        if not newer:
            return True
        running = RunsFilter(run_ids=newer, statuses=[DagsterRunStatus.STARTED])
        return not self.instance.get_runs(running)

    def _is_held(self, backfill: str) -> bool:
        """Return whether runs in the queue keep a backfill from making the awaited run.

        They do if all of its unfinished runs are queued, except those that wait as this run does.
        """
        statuses = [*_QUEUED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
        wanted = RunsFilter(statuses=statuses, tags={BACKFILL_ID_TAG: backfill})
        leading = [run for run in self.instance.get_runs(wanted) if not self._waits_too(run)]
        return bool(leading) and all(run.status in _QUEUED for run in leading)

    def _waits_too(self, run: DagsterRun) -> bool:
        """Return whether a run merges this run's partitions of the asset or newer ones alone."""
        if run.asset_selection is not None and self.context.asset_key not in run.asset_selection:
            return False
        own, definition = self.positions(self.oldest_own), self.context.asset_partitions_def
        found = map(self.positions, partitions_of_run(run, definition, self.instance))
        positions = [at for at in found if at is not None]
        return bool(positions) and min(positions) >= own
