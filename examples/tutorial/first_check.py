"""The tutorial's third step: checks, and a downstream asset that waits for them."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_merge_checks,
    build_partition_sensor,
    build_table_checks,
    merge_asset,
    partition_path,
)

LAKE = Path(os.environ.get("LAKE", "lake")).absolute()
LANDING = LAKE / "landing" / "orders"

days = dg.DynamicPartitionsDefinition(name="days_of_orders")


@merge_asset(keys=["id"], partitions_def=days)
def orders(context: dg.AssetExecutionContext, spark: SparkResource) -> DataFrame:
    """Every order once, in its newest state."""
    directory = partition_path(LANDING, context.partition_key)
    files = spark.session.read.schema("id INT, state STRING, pieces INT")
    return files.csv(directory, header=True)


@dg.asset(metadata={"deltaweave/write": "overwrite"})
def pieces_by_state(orders: DataFrame) -> DataFrame:
    """How many pieces are in each state."""
    return orders.groupBy("state").agg(F.sum("pieces").alias("pieces"))


rows_of_orders = build_table_checks(orders, unique_key=["id"], no_nulls=["state"], blocking=True)
merges_of_orders = build_merge_checks(orders, source_rows=True)

merge_orders = dg.define_asset_job("merge_orders", selection=[orders, pieces_by_state])

orders_landed = build_partition_sensor(
    name="orders_landed",
    target=merge_orders,
    directory=LANDING,
    partitions_def=days,
    default_status=dg.DefaultSensorStatus.RUNNING,
)

spark = SparkResource()
defs = dg.Definitions(
    assets=[orders, pieces_by_state],
    asset_checks=[rows_of_orders, merges_of_orders],
    jobs=[merge_orders],
    sensors=[orders_landed],
    resources={
        "spark": spark,
        "io_manager": SparkDeltaIOManager(root=str(LAKE / "tables"), spark=spark),
    },
    executor=dg.in_process_executor,
)
