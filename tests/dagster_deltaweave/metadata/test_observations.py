from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    materialize,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from pyspark.sql import SparkSession

from dagster_deltaweave import SparkDeltaIOManager, merge_asset
from dagster_deltaweave.metadata.metadata_entries import MERGE_COUNTS, PHASE_TIMES
from deltaweave import Table
from deltaweave.engine.report.result import MERGE_METRICS
from deltaweave.identifiers import table_name
from tests.dagster_deltaweave.conftest import Run

CUSTOMERS = AssetKey("customers")


@pytest.fixture
def merged(spark: SparkSession, run: Run) -> ExecuteInProcessResult:
    """The second of two runs: one row updated, one inserted, one copied."""
    batches = {"mon": [(1, "a"), (2, "b")], "tue": [(2, "B"), (3, "c")]}

    @merge_asset(
        keys=["id"],
        schema="id INT NOT NULL COMMENT 'who', name STRING",
        properties={"delta.enableDeletionVectors": "false"},
        partitions_def=StaticPartitionsDefinition(list(batches)),
    )
    def customers(context):  # type: ignore[no-untyped-def]
        return spark.createDataFrame(batches[context.partition_key], "id INT, name STRING")

    run(customers, partition="mon")
    return run(customers, partition="tue")


def test_every_metric_key_maps_to_a_metric_the_engine_reports() -> None:
    assert {*MERGE_COUNTS.values(), *PHASE_TIMES.values()} <= set(MERGE_METRICS)


def test_a_materialization_holds_dagsters_table_metadata_and_the_merge_metrics(
    merged: ExecuteInProcessResult, table: Callable[[str], Table]
) -> None:
    [materialization] = merged.asset_materializations_for_node("customers")
    values = {key: entry.value for key, entry in materialization.metadata.items()}
    target = table("customers")

    assert materialization.partition == "tue"
    assert values["dagster/row_count"] == 3
    # How many rows of the table are the partition's, nobody counted: the source's are no answer.
    assert "dagster/partition_row_count" not in values
    assert (values["table/version"], values["table/id"]) == (target.version(), target.id())
    assert values["dagster/table_name"] == f"delta.`{target.path_or_name}`"
    assert values["dagster/uri"] == target.location()
    assert values["dagster/storage_kind"] == "deltalake"
    columns = values["dagster/column_schema"].columns
    assert [(c.name, c.type, c.description, c.constraints.nullable) for c in columns] == [
        ("id", "int", "who", False),
        ("name", "string", None, True),
    ]
    assert values["merge/version"] == target.version()
    assert values["merge/strategy"] == "copy-on-write"
    assert "ON t.`id` = s.`id`" in values["merge/statement"]
    expected = {
        "merge/source_rows": 2,
        "merge/rows_inserted": 1,
        "merge/rows_updated": 1,
        "merge/rows_deleted": 0,
    }
    assert {key: values[key] for key in expected} == expected


def test_each_phase_is_an_observation_of_the_same_partition_with_flat_numbers(
    merged: ExecuteInProcessResult, instance: DagsterInstance, table: Callable[[str], Table]
) -> None:
    records = [
        record
        for record in instance.fetch_observations(CUSTOMERS, limit=10).records
        if record.run_id == merged.run_id
    ]
    observations = [record.asset_observation for record in reversed(records)]
    [materialization] = merged.asset_materializations_for_node("customers")

    described = [
        re.sub(r", \d+\.\d s$", "", str(each and each.description)) for each in observations
    ]
    assert described == [
        "Materialize source: 2 rows",
        "Find touched files: 1 of 1 files scanned, 1 touched",
        "Write changes: copy-on-write, 1 rows inserted, 1 updated, 0 deleted, 1 copied",
        f"Commit: version {table('customers').version()}",
    ]
    assert {each and each.partition for each in observations} == {"tue"}
    # Each number is in the observation of one phase, and with the others in the materialization.
    in_phases = [key for each in observations if each for key in each.metadata]
    merge_keys = {key for key in materialization.metadata if key.startswith("merge/")}
    assert len(in_phases) == len(set(in_phases))
    assert merge_keys - set(in_phases) == {"merge/statement"}
    assert {*MERGE_COUNTS, *PHASE_TIMES} < set(in_phases)
    values = {key: entry.value for key, entry in materialization.metadata.items()}
    assert all(type(values[key]) is int for key in [*MERGE_COUNTS, "merge/version"])
    assert all(type(values[key]) is float for key in PHASE_TIMES)
    assert values["merge/seconds"] >= values["merge/rewrite_seconds"] > 0
    assert values["merge/commit_seconds"] > 0
    assert values["merge/write_amplification"] == 1.5  # 1 updated, 1 inserted, 1 copied
    assert values["merge/files_touched"] == 1
    assert values["merge/bytes_touched"] == values["merge/bytes_removed"] > 0
    assert (values["merge/attempts"], values["merge/retries"]) == (1, 0)


def test_the_data_version_is_that_of_the_last_change_of_rows(
    spark: SparkSession,
    run: Run,
    instance: DagsterInstance,
    resources: dict[str, Any],
    table: Callable[[str], Table],
) -> None:
    batches: list[Any] = [[(1, "a")], [], None, [(2, "b")]]

    @merge_asset(keys=["id"], schema="id INT, name STRING")
    def customers():  # type: ignore[no-untyped-def]
        batch = batches.pop(0)
        return None if batch is None else spark.createDataFrame(batch, "id INT, name STRING")

    @asset(deps=[customers])
    def downstream() -> None: ...

    graph = Definitions([customers, downstream]).resolve_asset_graph()

    def status() -> StaleStatus:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        return resolver.get_status(downstream.key)

    def data_version(result: ExecuteInProcessResult) -> str | None:
        [materialization] = result.asset_materializations_for_node("customers")
        return (materialization.tags or {}).get("dagster/data_version")

    first = run(customers, downstream)
    path = table("customers").path_or_name
    # Upkeep makes a version, and leaves the rows.
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('note' = 'x')")
    nothing_changed = run(customers, downstream, selection=[customers])
    nothing_returned = run(customers, downstream, selection=[customers])
    assert [data_version(each) for each in (first, nothing_changed, nothing_returned)] == ["1"] * 3
    assert status() == StaleStatus.FRESH

    root = resources["io_manager"].root
    explaining = SparkDeltaIOManager(root=root, spark=resources["spark"], explain=True)
    changed = materialize([customers], resources={"io_manager": explaining}, instance=instance)
    assert data_version(changed) == str(table("customers").version()) == "3"
    assert status() == StaleStatus.STALE
    [materialization] = changed.asset_materializations_for_node("customers")
    assert "version 2\nstrategy: deletion-vectors" in materialization.metadata["merge/plan"].value


def test_a_merge_that_changes_nothing_commits_no_version(spark: SparkSession, run: Run) -> None:
    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([], "id INT")

    [materialization] = run(customers).asset_materializations_for_node("customers")

    assert "merge/version" not in materialization.metadata
    assert materialization.metadata["merge/strategy"].value == "none"
    assert materialization.metadata["merge/source_rows_unaffected"].value == 0


@pytest.mark.parametrize(
    ("path_or_name", "sql"),
    [("db.t", "db.t"), ("/lake/t", "delta.`/lake/t`"), ("delta.`/lake/t`", "delta.`/lake/t`")],
)
def test_sql_names_a_path_as_a_table(path_or_name: str, sql: str) -> None:
    assert table_name(path_or_name) == sql
