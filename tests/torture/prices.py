"""The code location of `test_partition_order`: each day sets prices of new or known items."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
from pathlib import Path

from dagster import (
    AssetExecutionContext,
    Definitions,
    StaticPartitionsDefinition,
    in_process_executor,
)
from pyspark.sql import DataFrame

from dagster_deltaweave import SparkDeltaIOManager, SparkResource, merge_asset
from deltaweave.engine.merge_run import ON_DRIVER
from tests.conftest import TINY_DATA

DAYS = [f"day-{number:02}" for number in range(1, 51)]


def prices_of(day: str) -> dict[int, str]:
    """Item to price: the day itself, which shows what wrote it last."""
    number = DAYS.index(day)
    return dict.fromkeys((0, 1 + number % 5, 100 + number), day)


@merge_asset(
    keys=["item"],
    schema="item INT, price STRING",
    partitions_def=StaticPartitionsDefinition(DAYS),
)
def prices(context: AssetExecutionContext, spark: SparkResource) -> DataFrame:
    """All prices."""
    lines = list(prices_of(context.partition_key).items())
    return spark.session.createDataFrame(lines, "item INT, price STRING")


_spark = SparkResource(
    spark_config={**TINY_DATA, "spark.driver.memory": "2g", ON_DRIVER: "auto"},
    warm=True,
    idle_timeout_minutes=5,
)

defs = Definitions(
    assets=[prices],
    resources={
        "spark": _spark,
        "io_manager": SparkDeltaIOManager(
            root=str(Path(os.environ.get("DELTAWEAVE_LAKE", "")) / "tables"), spark=_spark
        ),
    },
    executor=in_process_executor,
)
