"""What others commit to the table of a merge asset, as Dagster sees it."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

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
    DagsterRunStatus,
    Definitions,
    StaticPartitionsDefinition,
    asset,
    evaluate_automation_conditions,
    materialize,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.test_utils import create_run_for_test
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from dagster_deltaweave import DeltaTableResource, SparkResource, build_commit_observer, merge_asset
from dagster_deltaweave.spark import (
    RUNS_OF_SESSION,
    run_id_in,
    session_runs_in,
    tag_commits_with_run,
    tag_session,
    untag_session,
)
from deltaweave import Table
from tests.dagster_deltaweave.conftest import Run, rows
from tests.support.sensor_ticks import tick

CUSTOMERS = AssetKey("customers")
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


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
def test_commits_of_others_are_observed_and_those_of_runs_are_not(
    spark: SparkSession, run: Run, table: Callable[[str], Table], instance: DagsterInstance
) -> None:
    """Commits of others also start downstream assets."""

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


@pytest.mark.minutes
def test_commits_of_a_runs_own_code_belong_to_its_materialized_assets(
    spark: SparkSession,
    run: Run,
    resources: dict[str, Any],
    table: Callable[[str], Table],
    instance: DagsterInstance,
) -> None:
    """By the table's resource or by the session: they are others' for the assets of no such run."""
    path = table("customers").path_or_name
    fails = False

    @merge_asset(keys=["id"])
    def customers(spark: SparkResource):  # type: ignore[no-untyped-def]
        if table("customers").exists():
            spark.session.sql(f"DELETE FROM delta.`{path}` WHERE id = 0")
        if fails:
            raise RuntimeError
        return spark.session.range(3)

    @asset(deps=[customers])
    def tidied(tables: DeltaTableResource) -> None:
        of_customers = tables.table(customers)
        one = of_customers.spark.range(1, 2)
        of_customers.merge(one, "t.id = s.id").when_matched_delete().execute()

    observer = build_commit_observer(name="commits", tables=[customers])
    with_tables = {**resources, "tables": DeltaTableResource(io_manager=resources["io_manager"])}
    defs = Definitions(assets=[customers, tidied], sensors=[observer], resources=with_tables)

    run(customers)
    before = tick(defs, instance)
    run(customers)
    own = tick(defs, instance, before.cursor)
    materialize([customers, tidied], selection=[tidied], resources=with_tables, instance=instance)
    others = tick(defs, instance, own.cursor)
    fails = True
    run(customers, raise_on_error=False)
    failed = tick(defs, instance, others.cursor)

    assert own.skip_message == "No commit of others: 2 new commits of customers, all of runs."
    assert observed(others) == [("MERGE", table("customers").version() - 1)]
    assert observed(failed) == [("DELETE", table("customers").version())]
    assert spark.conf.get(USER_METADATA, None) is None


def test_runs_of_one_process_share_its_sessions_metadata_and_restore_it(
    spark: SparkSession,
) -> None:
    def marked() -> list[str]:
        return session_runs_in(spark.conf.get(USER_METADATA, None))

    tag_session(spark, "one")
    tag_session(spark, "two")
    tag_session(spark, "one")  # another resource of the run
    both = marked()
    with tag_commits_with_run(spark, "one"):
        of_output = run_id_in(spark.conf.get(USER_METADATA))
        untag_session(spark, "two")
        with tag_commits_with_run(spark, "two"):
            kept = run_id_in(spark.conf.get(USER_METADATA))
    untag_session(spark, "one")
    one = marked()
    spark.conf.set(USER_METADATA, "release 7")
    with tag_commits_with_run(spark, "one"):
        tag_session(spark, "three")
        untag_session(spark, "one")
    of_user = spark.conf.get(USER_METADATA)
    spark.conf.unset(USER_METADATA)
    with tag_commits_with_run(spark, "three"):
        pass
    three = marked()
    untag_session(spark, "three")
    untag_session(spark, "three")

    assert both == ["one", "two"]
    assert (of_output, kept) == ("one", "one")
    assert (one, of_user, three) == (["one"], "release 7", ["three"])
    assert spark.conf.get(USER_METADATA, None) is None


def test_a_commit_of_a_run_that_goes_on_waits_for_its_end(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    path = tmp_path / "customers"
    customers = declared_customers(path)
    observer = build_commit_observer(name="commits", tables=[customers])
    defs = Definitions(assets=[customers], sensors=[observer])
    write(path, commits=1)
    cursor = tick(defs, instance).cursor
    runs = [
        create_run_for_test(
            instance, status=DagsterRunStatus.STARTED, asset_selection=frozenset({CUSTOMERS})
        )
        for _ in range(2)
    ]
    of_runs = json.dumps({RUNS_OF_SESSION: [each.run_id for each in runs]})
    one = pa.table({"id": pa.array([9], pa.int64())})
    labelled = CommitProperties(custom_metadata={"userMetadata": of_runs})
    write_deltalake(path, one, mode="append", commit_properties=labelled)

    seen = [observed(tick(defs, instance, cursor))]
    for each in runs:
        instance.report_run_canceled(each)
        seen.append(observed(tick(defs, instance, cursor)))

    assert seen == [[], [], [("WRITE", 1)]]


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


def test_a_tick_observes_its_cap_and_materializes_no_partitioned_asset(
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
