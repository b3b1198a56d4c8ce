"""The tutorial's second step: a sensor that merges what lands."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame

from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_partition_sensor,
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


orders_landed = build_partition_sensor(
    name="orders_landed",
    target=dg.AssetSelection.assets(orders),
    directory=LANDING,
    partitions_def=days,
    default_status=dg.DefaultSensorStatus.RUNNING,
)

spark = SparkResource()
defs = dg.Definitions(
    assets=[orders],
    sensors=[orders_landed],
    resources={
        "spark": spark,
        "io_manager": SparkDeltaIOManager(root=str(LAKE / "tables"), spark=spark),
    },
    executor=dg.in_process_executor,
)
