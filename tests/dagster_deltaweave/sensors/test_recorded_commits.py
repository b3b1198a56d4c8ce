"""What the commit observer keeps and where it goes on from: cursors, logs, Dagster's records."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterEvent,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    asset,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import AssetMaterializationPlannedData
from dagster._core.test_utils import create_run_for_test
from deltalake import CommitProperties, write_deltalake
from pyspark.sql import SparkSession

from dagster_deltaweave import build_commit_observer, merge_asset
from dagster_deltaweave.logs import delta_log
from deltaweave import Table
from tests.dagster_deltaweave.conftest import Run
from tests.dagster_deltaweave.sensors.test_commit_observer import (
    CUSTOMERS,
    USER_METADATA,
    declared_customers,
    report,
    write,
)
from tests.support.sensor_ticks import tick


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "customers"


def observer_of(path: Path, **arguments: Any) -> Definitions:
    customers = declared_customers(path)
    sensor = build_commit_observer(name="commits", tables=[customers], **arguments)
    return Definitions(assets=[customers], sensors=[sensor])


def others(data: SensorExecutionData) -> list[int]:
    """Versions of others that were observed."""
    commits = [e for e in data.asset_events if "commit/operation" in (e.metadata or {})]
    return [
        int(str(e.metadata["commit/version"].value))
        for e in commits
        if isinstance(e, AssetObservation)
    ]


def materialized(data: SensorExecutionData) -> list[int]:
    return [
        int(str(e.metadata["commit/version"].value))
        for e in data.asset_events
        if isinstance(e, AssetMaterialization)
    ]


def write_labelled(path: Path) -> None:
    rows = pa.table({"id": pa.array([9], pa.int64())})
    labelled = CommitProperties(custom_metadata={"userMetadata": "release 7"})
    write_deltalake(path, rows, mode="append", commit_properties=labelled)


@pytest.fixture
def user_metadata(spark: SparkSession) -> Iterator[str]:
    spark.conf.set(USER_METADATA, "release 7")
    yield "release 7"
    spark.conf.unset(USER_METADATA)


@pytest.mark.minutes
def test_appends_of_runs_with_metadata_of_the_user_are_not_of_others(
    spark: SparkSession,
    run: Run,
    table: Callable[[str], Table],
    instance: DagsterInstance,
    user_metadata: str,
) -> None:
    @merge_asset(keys=["id"])
    def merged():  # type: ignore[no-untyped-def]
        return spark.range(3).toDF("id")

    @asset(metadata={"deltaweave/write": "append"})
    def appended():  # type: ignore[no-untyped-def]
        return spark.range(2).toDF("id")

    observer = build_commit_observer(name="commits", tables=[merged, appended])
    defs = Definitions(assets=[merged, appended], sensors=[observer])
    run(merged, appended)
    first = tick(defs, instance)
    report(instance, first)
    run(merged, appended)
    own = tick(defs, instance, first.cursor)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table('appended').path_or_name}`").first()

    assert history is not None
    assert (history.operation, history.userMetadata) == ("WRITE", user_metadata)
    assert own.asset_events == []


def test_a_commit_with_metadata_waits_for_the_runs_that_may_have_made_it(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    write(path, commits=1)
    ticks = [tick(defs, instance)]
    report(instance, ticks[0])
    write(path, commits=1)  # without metadata: of another writer at once
    write_labelled(path)
    log = path / "_delta_log" / f"{2:020}.json"
    assert "release 7" in log.read_text()
    made = create_run_for_test(
        instance, status=DagsterRunStatus.STARTED, asset_selection=frozenset({CUSTOMERS})
    )
    ticks.append(tick(defs, instance, ticks[-1].cursor))
    report(instance, ticks[-1])
    ticks.append(tick(defs, instance, ticks[-1].cursor))
    instance.report_runless_asset_event(
        AssetMaterialization(CUSTOMERS, metadata={"write/version": 2})
    )
    instance.report_run_canceled(made)
    ticks.append(tick(defs, instance, ticks[-1].cursor))

    assert [others(each) for each in ticks] == [[], [1], [], []]
    assert ticks[2].skip_message == (
        f"No commit of others: version 2 of {path} waits for the runs in progress."
    )
    assert "all of runs" in (ticks[3].skip_message or "")


def test_a_commit_with_metadata_waits_for_no_run_of_others_nor_a_later_one(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    write(path, commits=1)
    first = tick(defs, instance)
    report(instance, first)
    write_labelled(path)

    def start_run_of_job(key: AssetKey) -> None:
        """A run of a whole job, which has no selection but a plan."""
        run = create_run_for_test(instance, job_name="a_job", status=DagsterRunStatus.STARTED)
        planned = DagsterEvent.build_asset_materialization_planned_event(
            "a_job", "a_step", AssetMaterializationPlannedData(key)
        )
        instance.report_dagster_event(planned, run.run_id)

    create_run_for_test(instance, status=DagsterRunStatus.STARTED)  # of no asset
    start_run_of_job(AssetKey("of_others"))
    assert others(tick(defs, instance, first.cursor)) == [1]

    start_run_of_job(CUSTOMERS)
    assert others(tick(defs, instance, first.cursor)) == []

    log = path / "_delta_log" / f"{1:020}.json"  # committed an hour before that run began
    earlier = re.sub(
        r'("timestamp":)(\d+)', lambda m: f"{m[1]}{int(m[2]) - 3_600_000}", log.read_text()
    )
    log.write_text(earlier)
    assert others(tick(defs, instance, first.cursor)) == [1]


LOST = [
    None,
    "no JSON",
    "[]",
    "5",
    json.dumps({"customers": {}}),
    json.dumps({"customers": {"location": "/", "seen": {"version": "x", "timestamp": 0}}}),
]


def test_a_lost_or_unreadable_cursor_loses_and_repeats_no_commit(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    write(path, commits=2)
    report(instance, tick(defs, instance))  # followed from version 1 on
    seen: list[list[int]] = []
    for cursor in LOST:
        write(path, commits=1)
        data = tick(defs, instance, cursor)
        report(instance, data)
        seen.append(others(data))
        assert materialized(data) == others(data)
        assert others(tick(defs, instance, cursor)) == []

    assert seen == [[2], [3], [4], [5], [6], [7]]


def test_a_tick_that_was_killed_after_its_first_events_doubles_none(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    write(path, commits=1)
    first = tick(defs, instance)
    report(instance, first)
    write(path, commits=3)
    killed = tick(defs, instance, first.cursor)
    for event in killed.asset_events[:2]:
        instance.report_runless_asset_event(event)
    again = tick(defs, instance, first.cursor)

    assert (others(killed), materialized(killed)) == ([1, 2, 3], [3])
    assert (others(again), materialized(again)) == ([2, 3], [])


def test_a_recreated_or_cleaned_table_is_observed_from_its_first_commit(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    write(path, commits=2)
    ticks = [tick(defs, instance)]
    report(instance, ticks[-1])
    shutil.rmtree(path)
    write(path, commits=3)
    ticks.append(tick(defs, instance, ticks[-1].cursor))
    report(instance, ticks[-1])
    write(path, commits=3)
    for version in range(5):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    ticks.append(tick(defs, instance, ticks[-1].cursor))

    assert [others(each) for each in ticks] == [[], [0, 1, 2], [5]]


def test_a_backlog_is_read_only_as_far_as_the_cap(
    path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = observer_of(path, max_commits_per_tick=5)
    write(path, commits=1)
    first = tick(defs, instance)
    log = path / "_delta_log"
    for version in range(1, 400):
        shutil.copy(log / f"{0:020}.json", log / f"{version:020}.json")
    read: list[int] = []
    commit = delta_log.LogReader.commit

    def counted(log: delta_log.LogReader, version: int) -> delta_log.LoggedCommit | None:
        read.append(version)
        return commit(log, version)

    monkeypatch.setattr(delta_log.LogReader, "commit", counted)

    assert others(tick(defs, instance, first.cursor)) == [1, 2, 3, 4, 5]
    assert len(read) < 50


def test_a_location_with_credentials_is_not_shown_and_stops_no_other(
    path: Path, instance: DagsterInstance
) -> None:
    defs = observer_of(path)
    uri = {"dagster/uri": "s3://AKIAKEY:hush@lake/customers"}
    instance.report_runless_asset_event(AssetMaterialization(CUSTOMERS, metadata=uri))

    data = tick(defs, instance)

    assert "cannot be read" in (data.skip_message or "")
    assert "hush" not in (data.skip_message or "")
