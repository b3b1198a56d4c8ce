"""The runs, whoever started them, that materialize what a sensor's target merges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    DagsterError,
    DagsterInstance,
    DagsterRun,
    RunRecord,
    RunsFilter,
)

from dagster_deltaweave.dagster_private import (
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    CheckError,
)
from dagster_deltaweave.partitions import (
    backfills_in_progress,
    is_under_way,
    left_of_assets,
    left_of_job,
    partitions_of_run,
    planned_assets,
    tags_of_run,
)
from dagster_deltaweave.sensors.target_tables import SensorTarget

_LOOKED_AT = 1_000


class TargetRuns:
    """The runs, whoever started them, that materialize what a sensor's target merges.

    Args:
        target: The sensor's target.
    """

    def __init__(self, target: SensorTarget) -> None:
        self._target = target
        self._instance: DagsterInstance = target.context.instance
        self._of_plans: dict[str, frozenset[AssetKey]] = {}
        self._made: dict[tuple[str, str], set[AssetKey]] = defaultdict(set)

    def of(
        self, partitions: Sequence[str], lacking: Collection[AssetKey] = ()
    ) -> Mapping[str, Sequence[RunRecord]]:
        """Return the runs of partitions, the newest first.

        Args:
            partitions: The partitions.
            lacking: Assets whose materializations of the partitions are looked up, too, and with
                them the runs of several partitions that have ended.
        """
        runs: dict[str, list[RunRecord]] = defaultdict(list)
        tags: dict[str, str | Sequence[str]] = {PARTITION_NAME_TAG: list(partitions)}
        for record in self._instance.get_run_records(RunsFilter(tags=tags)):
            if self.assets_of(record.dagster_run):
                runs[record.dagster_run.tags[PARTITION_NAME_TAG]].append(self._of_delivery(record))
        for key in lacking:
            made = self._made_of(key, partitions)
            for each in made:
                self._made[each].add(key)
            for partition, record in self._of_several_ended(made):
                runs[partition].append(record)
                runs[partition].sort(key=lambda each: each.create_timestamp, reverse=True)
        return runs

    def made_by(self, run: DagsterRun, partition: str) -> frozenset[AssetKey]:
        """Return the assets whose partition a run has materialized, of those looked up by `of`."""
        return frozenset(self._made.get((run.run_id, partition), ()))

    def _of_delivery(self, record: RunRecord) -> RunRecord:
        """Return a run with the tags of its delivery, also if it re-executes steps of another."""
        run = record.dagster_run
        return record._replace(dagster_run=run.with_tags(tags_of_run(run, self._instance)))

    def _made_of(self, key: AssetKey, partitions: Sequence[str]) -> set[tuple[str, str]]:
        """Return the runs that materialized some of these partitions, each with a partition."""
        wanted = AssetRecordsFilter(key, asset_partitions=list(partitions))
        found = self._instance.fetch_materializations(wanted, limit=_LOOKED_AT).records
        named = ((each.run_id, each.partition_key) for each in found)
        # Sensors and people report materializations without a run.
        return {(run_id, partition) for run_id, partition in named if run_id and partition}

    def _of_several_ended(
        self, by_run: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, RunRecord]]:
        """Yield the runs of several partitions among these, each with a partition."""
        if not by_run:
            return
        of_runs = RunsFilter(run_ids=[run_id for run_id, _ in by_run])
        records = self._instance.get_run_records(of_runs)
        several = {
            each.dagster_run.run_id: each
            for each in records
            if PARTITION_NAME_TAG not in each.dagster_run.tags
        }
        for run_id, partition in by_run:
            if run_id in several:
                yield partition, several[run_id]

    def assets_of(self, run: DagsterRun) -> frozenset[AssetKey]:
        """Return those of the target's partitioned assets that a run materializes."""
        # Names of jobs, sensors and code locations change, and what a run was to do does not.
        plan = run.execution_plan_snapshot_id
        if run.asset_selection is not None or plan is None:
            planned = planned_assets(self._instance, run)
        else:
            if plan not in self._of_plans:
                self._of_plans[plan] = planned_assets(self._instance, run)
            planned = self._of_plans[plan]
        if not planned and run.job_name == self._target.job_name:
            return self._target.partitioned  # a job of ops
        return self._target.partitioned & planned

    def is_under_way(self, record: RunRecord) -> bool:
        """Return whether a run is queued or runs, or Dagster will try it again."""
        return is_under_way(record, self._instance)

    def of_several(self) -> frozenset[str]:
        """Return the partitions that a run of several is to merge, or a backfill that goes on."""
        unfinished = self._instance.get_runs(RunsFilter(statuses=list(NOT_FINISHED_STATUSES)))
        of_runs = (
            partition
            for run in unfinished
            if PARTITION_NAME_TAG not in run.tags and self.assets_of(run)
            for partition in partitions_of_run(run, self._target.partitions_def, self._instance)
        )
        return frozenset(of_runs).union(self._left_to_backfills())

    def _left_to_backfills(self) -> Iterator[str]:
        """Yield the partitions for which backfills will make runs."""
        graph = self._target.repository.asset_graph
        for backfill in backfills_in_progress(self._instance):
            if not backfill.is_asset_backfill:
                if self._is_of_target(backfill.job_name, backfill.asset_selection):
                    yield from left_of_job(backfill)
                continue
            if self._target.partitioned.isdisjoint(backfill.asset_selection or ()):
                continue
            try:
                data = backfill.get_asset_backfill_data(graph)
            except (DagsterError, CheckError, KeyError):
                continue  # it was launched before the definitions changed
            for key in self._target.partitioned:
                yield from left_of_assets(data, key)

    def _is_of_target(self, job: str | None, selected: Sequence[AssetKey] | None) -> bool:
        """Return whether a job materializes assets of the target: all its own, or selected ones."""
        repository = self._target.repository
        if selected is None and job is not None and job != self._target.job_name:
            if not repository.has_job(job):
                return False
            selected = sorted(repository.get_job(job).asset_layer.executable_asset_keys)
        return job == self._target.job_name or not self._target.partitioned.isdisjoint(
            selected or ()
        )
