"""What others commit to the table of a merge asset, as Dagster sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetSpec,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    StaticPartitionsDefinition,
    asset,
    evaluate_automation_conditions,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.sensor_definition import SensorExecutionData
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from dagster_deltaweave import build_commit_observer, merge_asset
from deltaweave import Table
from tests.dagster_deltaweave.conftest import Run, rows
from tests.dagster_deltaweave.ticks import tick

CUSTOMERS = AssetKey("customers")


def observed(data: SensorExecutionData) -> list[tuple[str, int]]:
    """Operation and version of each observation."""
    return [
        (str(event.metadata["commit/operation"].value), int(str(event.tags[DATA_VERSION_TAG])))
        for event in data.asset_events
        if isinstance(event, AssetObservation)
    ]


def report(instance: DagsterInstance, data: SensorExecutionData) -> None:
    """As the daemon does after a tick."""
    for event in data.asset_events:
        instance.report_runless_asset_event(event)


@pytest.mark.minutes
def test_commits_of_others_are_observed_and_reach_downstream_and_those_of_runs_are_not(
    spark: SparkSession, run: Run, table: Callable[[str], Table], instance: DagsterInstance
) -> None:
    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.range(3).toDF("id")

    @asset(deps=[customers], automation_condition=AutomationCondition.eager())
    def report_of_customers() -> None: ...

    observer = build_commit_observer(name="commits", tables=[customers])
    defs = Definitions(assets=[customers, report_of_customers], sensors=[observer])

    def tick_and_report(cursor: str | None) -> SensorExecutionData:
        data = tick(defs, instance, cursor)
        report(instance, data)
        return data

    before = tick_and_report(None)
    run(customers)
    run(customers, report_of_customers)
    first = tick_and_report(before.cursor)
    run(customers)
    own = tick_and_report(first.cursor)
    eager = evaluate_automation_conditions(defs, instance)
    # Another engine appends in two commits.
    path = table("customers").path_or_name
    for id_ in (7, 8):
        write_deltalake(path, pa.table({"id": pa.array([id_], pa.int64())}), mode="append")
    appended = tick_and_report(own.cursor)
    eager = evaluate_automation_conditions(defs, instance, cursor=eager.cursor)
    stale = eager.get_num_requested(report_of_customers.key)
    DeltaTable(path).optimize.compact()
    compacted = tick_and_report(appended.cursor)
    eager = evaluate_automation_conditions(defs, instance, cursor=eager.cursor)

    assert before.skip_message == (
        "No commit of others: no run has said where the table of customers is."
    )
    newest = table("customers").version() - 3
    assert first.skip_message == (
        f"No commit of others: file:{path} is followed from version {newest - 1} on."
    )
    assert own.skip_message == "No commit of others: 1 new commits of customers, all of runs."
    assert observed(appended) == [("WRITE", newest + 1), ("WRITE", newest + 2)]
    [materialization] = [e for e in appended.asset_events if isinstance(e, AssetMaterialization)]
    assert materialization.tags[DATA_VERSION_TAG] == str(newest + 2)
    assert stale == 1
    # OPTIMIZE changed no rows: it is observed, with its metrics, and nothing downstream is stale.
    assert observed(compacted) == [("OPTIMIZE", newest + 3)]
    [event] = compacted.asset_events
    assert event.metadata["commit/changes_data"].value is False
    assert event.metadata["commit/num_files_added"].value == 1
    assert eager.get_num_requested(report_of_customers.key) == 0
    assert len(rows(table("customers"))) == 5
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("operation = 'MERGE'").first()
    assert history is not None
    assert json.loads(history.userMetadata)["dagster/run_id"] in instance.get_run_ids()


def declared_customers(path: Path, **arguments: Any) -> Any:
    @merge_asset(keys=["id"], table=str(path), **arguments)
    def customers() -> None: ...

    return customers


def write(path: Path, *, commits: int) -> None:
    for id_ in range(commits):
        write_deltalake(path, pa.table({"id": pa.array([id_], pa.int64())}), mode="append")


def test_a_version_that_a_materialization_recorded_is_of_a_run(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    customers = declared_customers(tmp_path / "customers")
    observer = build_commit_observer(name="commits", tables=[customers])
    defs = Definitions(assets=[customers], sensors=[observer])
    write(tmp_path / "customers", commits=1)
    first = tick(defs, instance)
    write(tmp_path / "customers", commits=2)
    # The commits carry no mark, as where the user set metadata of their own for them.
    instance.report_runless_asset_event(
        AssetMaterialization(CUSTOMERS, metadata={"merge/version": 1})
    )

    assert observed(tick(defs, instance, first.cursor)) == [("WRITE", 2)]


def test_a_tick_observes_no_more_than_its_cap_and_a_partitioned_asset_is_not_materialized(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    days = StaticPartitionsDefinition(["mon", "tue"])
    customers = declared_customers(tmp_path / "customers", partitions_def=days)
    observer = build_commit_observer(name="commits", tables=[customers], max_commits_per_tick=2)
    defs = Definitions(assets=[customers, AssetSpec("other")], sensors=[observer])
    nothing = tick(defs, instance)
    write(tmp_path / "customers", commits=1)
    first = tick(defs, instance, nothing.cursor)
    write(tmp_path / "customers", commits=3)
    second = tick(defs, instance, first.cursor)
    third = tick(defs, instance, second.cursor)
    fourth = tick(defs, instance, third.cursor)

    path = tmp_path / "customers"
    assert nothing.skip_message == f"No commit of others: there is no Delta table at {path} yet."
    assert [observed(each) for each in (second, third)] == [
        [("WRITE", 1), ("WRITE", 2)],
        [("WRITE", 3)],
    ]
    assert not [e for e in second.asset_events if isinstance(e, AssetMaterialization)]
    assert fourth.skip_message == (
        f"No commit of others: version 3 of {path} was the newest before."
    )


def test_a_log_that_cannot_be_read_stops_no_other(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    broken = declared_customers(tmp_path / "broken")
    whole = declared_customers(tmp_path / "whole", name="whole")
    observer = build_commit_observer(name="commits", tables=[broken, whole])
    defs = Definitions(assets=[broken, whole], sensors=[observer])
    for name in ("broken", "whole"):
        write(tmp_path / name, commits=1)
    first = tick(defs, instance)
    write(tmp_path / "whole", commits=1)
    (tmp_path / "broken" / "_delta_log" / f"{0:020}.json").write_text("no JSON")

    assert observed(tick(defs, instance, first.cursor)) == [("WRITE", 1)]
