"""What a run records is of the version it committed, or of the last that changed rows."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetObservation,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from pyspark.sql import SparkSession

from dagster_deltaweave import build_table_checks, merge_asset
from dagster_deltaweave.latency import latencies
from dagster_deltaweave.logs import delta_log
from dagster_deltaweave.logs.delta_log import last_change
from dagster_deltaweave.metadata import materialization
from deltaweave import Table, clauses
from deltaweave.delta.jvm.gateway import JavaObject
from tests.dagster_deltaweave.assets.test_merge_on_read import SCHEMA as EVENTS
from tests.dagster_deltaweave.assets.test_merge_on_read import orders_from
from tests.dagster_deltaweave.conftest import Run
from tests.support.spark_jobs import jobs_of

SCHEMA = "id INT, name STRING"


def customers_from(spark: SparkSession, batches: list[list[tuple[int, str]]]) -> AssetsDefinition:
    @merge_asset(keys=["id"], schema=SCHEMA)
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(batches.pop(0), SCHEMA)

    return customers


def recorded(result: ExecuteInProcessResult) -> dict[str, Any]:
    [materialization] = result.asset_materializations_for_node("customers")
    values = {key: entry.value for key, entry in materialization.metadata.items()}
    return {**values, **(materialization.tags or {})}


def upkeep(table: Table, commits: int) -> None:
    for number in range(commits):
        table.spark.sql(
            f"ALTER TABLE delta.`{table.path_or_name}` SET TBLPROPERTIES ('note' = '{number}')"
        )


def log_file(table: Table, version: int) -> Path:
    return Path(table.path_or_name) / "_delta_log" / f"{version:020}.json"


@pytest.mark.minutes
def test_a_commit_of_another_writer_before_the_record_is_not_the_runs(
    spark: SparkSession,
    run: Run,
    table: Callable[[str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = materialization.merge_observation

    def after_another_commit(*arguments: Any) -> AssetObservation:
        path = table("customers").path_or_name
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (more INT)")
        spark.sql(f"INSERT INTO delta.`{path}` VALUES (8, 'x', 1), (9, 'y', 2)")
        return real(*arguments)

    monkeypatch.setattr(materialization, "merge_observation", after_another_commit)
    values = recorded(run(customers_from(spark, [[(1, "a")]])))

    assert table("customers").version() == 3
    assert values["merge/version"] == values["table/version"] == 1
    assert values["dagster/data_version"] == "1"
    assert values["dagster/row_count"] == 1
    assert [each.name for each in values["dagster/column_schema"].columns] == ["id", "name"]


def test_a_row_count_takes_no_job_where_the_checksum_lists_the_files(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    run(customers_from(spark, [[(1, "a"), (2, "b")]]))
    snapshot = table("customers").snapshot()
    assert jobs_of(spark, "row count", snapshot.num_records) == 0
    assert snapshot.num_records() == 2


@pytest.mark.minutes
def test_a_row_count_that_the_log_lacks_is_left_out(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    batches = [[(1, "a")], [(2, "b")]]
    customers = customers_from(spark, batches)
    run(customers)
    setting = "spark.databricks.delta.stats.collect"
    spark.conf.set(setting, "false")
    try:
        spark.sql(f"INSERT INTO delta.`{table('customers').path_or_name}` VALUES (3, 'c')")
    finally:
        spark.conf.unset(setting)

    values = recorded(run(customers))

    assert "dagster/row_count" not in values
    assert values["table/version"] == 3


@pytest.mark.minutes
def test_no_number_of_upkeep_commits_hides_the_last_change(
    spark: SparkSession,
    run: Run,
    table: Callable[[str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta_log, "COMMITS_AT_FIRST", 2)
    batches: list[list[tuple[int, str]]] = [[(1, "a")], []]
    customers = customers_from(spark, batches)
    fresh = build_table_checks(customers, changed_within=timedelta(days=1))
    run(customers)
    upkeep(table("customers"), 4)
    long_ago = time.time() - 48 * 3600
    for version in (0, 1):
        os.utime(log_file(table("customers"), version), (long_ago, long_ago))

    result = run(customers, fresh)

    values = recorded(result)
    assert (values["dagster/data_version"], values["table/version"]) == ("1", 5)
    assert values["dagster/row_count"] == 1
    [evaluation] = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert str(evaluation.description).startswith("Version 1 changed rows last, 2 days")


@pytest.mark.minutes
def test_a_change_removed_from_the_log_is_no_fresh_one_nor_a_data_version(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    batches: list[list[tuple[int, str]]] = [[(1, "a")], []]
    customers = customers_from(spark, batches)
    fresh = build_table_checks(customers, changed_within=timedelta(days=1))
    run(customers)
    target = table("customers")
    upkeep(target, 2)
    log: JavaObject = target.snapshot().log
    log.checkpoint()
    for version in (0, 1, 2):
        log_file(target, version).unlink()

    assert not last_change(target).is_in_log
    result = run(customers, fresh)

    assert recorded(result)["dagster/data_version"] == "1"
    [evaluation] = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert "No version changed rows since 3, the oldest in the log" in str(evaluation.description)


@pytest.mark.minutes
def test_a_merge_that_only_keeps_its_mark_leaves_the_data_version(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    @merge_asset(
        keys=["id"],
        clauses=[clauses.when_not_matched_insert_all()],
        partitions_def=StaticPartitionsDefinition(["a", "b"]),
        idempotent_by="partition",
        schema=SCHEMA,
    )
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, "a")], SCHEMA)

    first, second = (recorded(run(customers, partition=each)) for each in ("a", "b"))

    assert (first["merge/version"], second["merge/version"]) == (1, 2)
    assert [each["dagster/data_version"] for each in (first, second)] == ["1", "1"]


@pytest.mark.parametrize("utc_hour", [0, 1])  # both are half past two in Berlin
def test_the_time_of_a_change_is_exact_in_the_hour_that_comes_twice(
    spark: SparkSession,
    table: Callable[[str], Table],
    monkeypatch: pytest.MonkeyPatch,
    utc_hour: int,
) -> None:
    target = table("customers")
    target.create_if_missing(SCHEMA)
    moment = datetime(2025, 10, 26, utc_hour, 30, tzinfo=timezone.utc)
    os.utime(log_file(target, 0), (moment.timestamp(), moment.timestamp()))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert last_change(target).committed_at == moment
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.minutes
def test_a_dropped_column_that_is_added_again_is_looked_at_in_all_files(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    @merge_asset(keys=["id"], schema=SCHEMA, properties={"delta.columnMapping.mode": "name"})
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, "a")], SCHEMA)

    check = build_table_checks(customers, no_nulls=["name"])
    [before] = run(customers, check).get_asset_check_evaluations()
    path = table("customers").path_or_name
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN name")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (name STRING)")

    [after] = run(
        customers, check, selection=AssetSelection.checks(check)
    ).get_asset_check_evaluations()

    assert (before.passed, after.passed) == (True, False)


@pytest.mark.minutes
def test_rematerializing_a_base_leaves_its_view_fresh(
    spark: SparkSession, run: Run, instance: DagsterInstance
) -> None:
    orders = orders_from(lambda: spark.createDataFrame([(1, 10, 1, "u")], EVENTS))

    @asset(deps=[orders.view])
    def report() -> None: ...

    graph = Definitions([*orders, report]).resolve_asset_graph()

    def status() -> list[StaleStatus]:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        return [resolver.get_status(each.key) for each in (orders.view, report)]

    run(*orders, report)
    run(*orders, selection=[orders.changes, orders.view])
    run(*orders, report, selection=[report])
    assert status() == [StaleStatus.FRESH] * 2

    run(*orders, selection=[orders.base])
    assert status() == [StaleStatus.FRESH] * 2

    run(*orders, selection=[orders.changes])  # which does change what the view shows
    run(*orders, selection=[orders.base])
    assert status()[0] == StaleStatus.STALE


def test_the_seconds_of_a_run_are_of_its_merge_whatever_else_it_observes(
    spark: SparkSession, run: Run, instance: DagsterInstance
) -> None:
    @merge_asset(keys=["id"], schema=SCHEMA)
    def customers(context):  # type: ignore[no-untyped-def]
        context.log_event(AssetObservation("customers", metadata={"source/offset": 7}))
        return spark.createDataFrame([(1, "a")], SCHEMA)

    run(customers)

    [latency] = latencies(instance)
    assert latency.storing > 0
    assert latency.preparing > 0
