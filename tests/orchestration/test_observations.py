from __future__ import annotations

from collections.abc import Callable

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult, StaticPartitionsDefinition
from pyspark.sql import SparkSession

from dagster_deltaweave import merge_asset
from dagster_deltaweave.observations import MERGE_COUNTS, MERGE_TIMES, sql_name
from deltaweave import Table
from deltaweave.engine.outcome import MERGE_METRICS
from tests.orchestration.conftest import Run

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
    assert {*MERGE_COUNTS.values(), *MERGE_TIMES.values()} <= set(MERGE_METRICS)


def test_a_materialization_holds_dagsters_table_metadata_and_the_merge_metrics(
    merged: ExecuteInProcessResult, table: Callable[[str], Table]
) -> None:
    [materialization] = merged.asset_materializations_for_node("customers")
    values = {key: entry.value for key, entry in materialization.metadata.items()}
    target = table("customers")

    assert materialization.partition == "tue"
    assert values["dagster/row_count"] == 3
    assert values["dagster/partition_row_count"] == 2
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


def test_an_observation_of_the_same_partition_holds_flat_numbers(
    merged: ExecuteInProcessResult, instance: DagsterInstance
) -> None:
    [record, *_] = instance.fetch_observations(CUSTOMERS, limit=10).records
    observation = record.asset_observation

    assert observation is not None
    assert observation.partition == "tue"
    values = {key: entry.value for key, entry in observation.metadata.items()}
    assert set(values) == {*MERGE_COUNTS, *MERGE_TIMES, "merge/strategy", "merge/version"}
    assert all(type(values[key]) is int for key in [*MERGE_COUNTS, "merge/version"])
    assert all(type(values[key]) is float for key in MERGE_TIMES)
    assert values["merge/seconds"] > 0
    assert record.run_id == merged.run_id


def test_a_merge_that_changes_nothing_commits_no_version(spark: SparkSession, run: Run) -> None:
    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([], "id INT")

    [materialization] = run(customers).asset_materializations_for_node("customers")

    assert "merge/version" not in materialization.metadata
    assert materialization.metadata["merge/strategy"].value == "none"
    # Unpartitioned: no partition's row count.
    assert "dagster/partition_row_count" not in materialization.metadata


@pytest.mark.parametrize(
    ("path_or_name", "sql"),
    [("db.t", "db.t"), ("/lake/t", "delta.`/lake/t`"), ("delta.`/lake/t`", "delta.`/lake/t`")],
)
def test_sql_names_a_path_as_a_table(path_or_name: str, sql: str) -> None:
    assert sql_name(path_or_name) == sql
