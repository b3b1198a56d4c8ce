"""A code location of the end-to-end tests: orders land by day and are merged, stock is kept.

`orders` takes the days' orders by id, and refuses those that name no item; `stock` counts pieces by
item from what merges of `orders` touched; `shelf_report` reads the stock, and waits as long as the
file `closed` lies in the lake.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
import time
from pathlib import Path

from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetSpec,
    BackfillPolicy,
    Definitions,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    in_process_executor,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_deltaweave import (
    Changes,
    SparkDeltaIOManager,
    SparkResource,
    build_partition_sensor,
    build_table_checks,
    merge_asset,
    partition_keys,
)
from deltaweave import TouchedRows, clauses
from deltaweave.engine.merge_run import ON_DRIVER
from tests.conftest import TINY_DATA

LAKE = Path(os.environ["DELTAWEAVE_LAKE"])
SCHEMA = "id INT, item STRING, pieces INT"

days = StaticPartitionsDefinition([f"day-{number:02}" for number in range(1, 41)])

orders_landing = AssetSpec("orders_landing", partitions_def=days, kinds={"parquet"})


@merge_asset(
    keys=["id"],
    schema=SCHEMA,
    partitions_def=days,
    backfill_policy=BackfillPolicy.multi_run(max_partitions_per_run=10),
    deps=[orders_landing],
    order="any",  # an order is of one day alone
)
def orders(context: AssetExecutionContext, spark: SparkResource) -> DataFrame:
    """All orders."""
    paths = [str(LAKE / "landing" / day) for day in partition_keys(context)]
    return spark.session.read.schema(SCHEMA).parquet(*paths)


@merge_asset(
    keys=["item"],
    clauses=[
        clauses.when_matched_update(set={"pieces": "t.pieces + s.pieces"}),
        clauses.when_not_matched_insert_all(),
    ],
    schema="item STRING, pieces BIGINT",
    ins={"orders": AssetIn(metadata={"deltaweave/read": "touched"})},
)
def stock(orders: TouchedRows) -> Changes:
    """Pieces ordered of each item."""
    added = orders.added.select("item", F.col("pieces").cast("bigint").alias("pieces"))
    removed = orders.removed.select("item", (-F.col("pieces")).cast("bigint").alias("pieces"))
    change = added.unionByName(removed).groupBy("item").agg(F.sum("pieces").alias("pieces"))
    return Changes(change.where("pieces <> 0"), applied=orders)


@asset(deps=[stock])
def shelf_report(context: AssetExecutionContext) -> None:
    """What would be put on paper, when the shop is open."""
    while (LAKE / "closed").exists():
        context.log.info("closed")
        time.sleep(0.2)


orders_checks = build_table_checks(orders, no_nulls=["item"], blocking=True)

take_orders = define_asset_job(
    "take_orders", selection=[orders, stock, shelf_report], executor_def=in_process_executor
)

orders_landed = build_partition_sensor(
    name="orders_landed",
    target=take_orders,
    directory=LAKE / "landing",
    partitions_def=days,
    landing_asset=orders_landing.key,
    minimum_interval_seconds=1,
)

_spark = SparkResource(
    spark_config={**TINY_DATA, "spark.driver.memory": "2g", ON_DRIVER: "auto"},
    warm=True,
    idle_timeout_minutes=5,
)

defs = Definitions(
    assets=[orders_landing, orders, stock, shelf_report],
    asset_checks=[orders_checks],
    jobs=[take_orders],
    sensors=[orders_landed],
    resources={
        "spark": _spark,
        "io_manager": SparkDeltaIOManager(root=str(LAKE / "tables"), spark=_spark),
    },
    executor=in_process_executor,
)
