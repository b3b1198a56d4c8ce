"""DeltaTableResource: the tables of assets where the IO manager has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, asset, materialize
from dagster_shared.libraries import DagsterLibraryRegistry
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import (
    DeltaTableResource,
    SparkDeltaIOManager,
    SparkResource,
    merge_asset,
    merge_on_read_asset,
)
from deltaweave.errors import StatementError


@pytest.mark.minutes
def test_an_asset_reads_the_history_of_another_ones_table(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    elsewhere = str(tmp_path / "elsewhere")

    @merge_asset(keys=["id"], key_prefix="sales", table=elsewhere)
    def orders() -> DataFrame:
        return spark.createDataFrame([(1, "a")], "id INT, v STRING")

    @merge_asset(keys=["id"], key_prefix="sales")
    def prices() -> DataFrame:
        return spark.createDataFrame([(1, 10)], "id INT, price INT")

    seen: dict[str, Any] = {}

    @asset(deps=[orders, prices])
    def report(tables: DeltaTableResource) -> None:
        seen["merges"] = tables.table(orders).history().where("operation = 'MERGE'").count()
        for name, which in (("asset", prices), ("key", prices.key), ("text", "sales/prices")):
            seen[name] = tables.table(which).read().count()

    with_tables = {**resources, "tables": DeltaTableResource(io_manager=resources["io_manager"])}
    materialize([orders, prices, report], resources=with_tables, instance=instance)
    assert seen == {"merges": 1, "asset": 1, "key": 1, "text": 1}


def test_the_view_of_a_merge_on_read_table_has_no_table() -> None:
    @merge_on_read_asset(keys=["id"], sequence_by="n")
    def prices() -> None: ...

    io_manager = SparkDeltaIOManager(root="/lake", spark=SparkResource())
    tables = DeltaTableResource(io_manager=io_manager)
    with pytest.raises(StatementError, match="no table of its own") as refused:
        tables.table(prices.view)
    assert "prices_base and prices_changes" in str(refused.value.hint)
    with pytest.raises(StatementError):
        tables.table(AssetKey(["..", "prices"]))  # as the IO manager refuses it


def test_dagster_knows_the_library_and_its_release() -> None:
    assert DagsterLibraryRegistry.get()["deltaweave"] == deltaweave.__version__
