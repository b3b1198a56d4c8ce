"""The runs that were requested for changes of a source table, whatever the sensor was called."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from itertools import count
from typing import NamedTuple

from dagster import AssetKey, DagsterRun, DagsterRunStatus

from dagster_deltaweave.dagster_private import SENSOR_NAME_TAG
from dagster_deltaweave.partitions import SOURCE_TABLE_TAG, SOURCE_VERSION_TAG, planned_assets
from dagster_deltaweave.sensors.run_requests import is_here, is_of_sensor, runs_with_key
from dagster_deltaweave.sensors.target_tables import StartedTarget


class LeftRun(NamedTuple):
    """A run that is left to request: its run key, and its assets; None for all of the target."""

    run_key: str
    selected: Sequence[AssetKey] | None = None


class SourceRuns:
    """Looks up the runs that were requested for changes of a source table."""

    def __init__(self, target: StartedTarget, sensor_name: str, table_ids: Collection[str]) -> None:
        self._target = target
        self._sensor_name = sensor_name
        self._tables = {source_digest(each) for each in table_ids}

    def left(self, change: str) -> LeftRun | None:
        """Return the run that is left to request for a change; None if all its assets have one.

        Dagster drops a request whose run key a run of the sensor has, also one for another table,
        and says so only in the daemon's log. So the run key is one that no run has.
        """
        context, made = self._target.context, set[AssetKey]()
        for number in count(1):
            run_key = change if number == 1 else f"{change}#{number}"
            runs = runs_with_key(context, run_key)
            for run in runs:
                is_own = is_of_sensor(context, self._sensor_name, run)
                if not self._is_of_source(run, is_own=is_own) or self._is_of_other_sensor(run):
                    continue
                is_launched = run.status != DagsterRunStatus.NOT_STARTED
                if is_own:
                    # The daemon launches a run that it created if it is requested again.
                    return None if is_launched else LeftRun(run_key)
                if is_launched and self._is_of_same_ops(run):
                    return None
                made |= self._made_by(run) if is_launched else set()
            if made and made >= self._target.executed:
                return None
            if not runs:
                return LeftRun(run_key, self._target.without(made) if made else None)
        raise AssertionError

    def _is_of_source(self, run: DagsterRun, *, is_own: bool) -> bool:
        """Return whether a run was requested for the table; earlier releases did not name it."""
        table = run.tags.get(SOURCE_TABLE_TAG)
        if table is None or not self._tables:
            return is_own or SOURCE_VERSION_TAG in run.tags
        return table in self._tables

    def _is_of_other_sensor(self, run: DagsterRun) -> bool:
        """Return whether a run is of another sensor that the code location still has.

        Such a run is none of this sensor under an earlier name: each has its own runs.
        """
        repository, name = self._target.context.repository_def, run.tags.get(SENSOR_NAME_TAG)
        is_other = name is not None and name != self._sensor_name
        is_known = repository is not None and is_other and repository.has_sensor_def(str(name))
        return is_known and is_here(self._target.context, run.remote_job_origin)

    def _is_of_same_ops(self, run: DagsterRun) -> bool:
        """Return whether a run is of the target, if that is a job that materializes no asset."""
        is_known = self._target.context.repository_def is not None
        return is_known and self._target.is_of_ops and run.job_name == self._target.job_name

    def _made_by(self, run: DagsterRun) -> frozenset[AssetKey]:
        """Return the target's assets that a run materializes."""
        if self._target.context.repository_def is None:
            return frozenset()
        return planned_assets(self._target.context.instance, run) & self._target.executed


def source_digest(table_id: str) -> str:
    """Return the digest of a table's id that is in tags of runs."""
    return hashlib.sha256(table_id.encode()).hexdigest()[:16]
