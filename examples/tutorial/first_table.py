"""The tutorial's first step: a Delta table that is an asset."""

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame

from dagster_deltaweave import SparkDeltaIOManager, SparkResource, merge_asset

LAKE = Path(os.environ.get("LAKE", "lake")).absolute()


@merge_asset(keys=["id"])
def orders(spark: SparkResource) -> DataFrame:
    """Every order once, in its newest state."""
    changes = [(1, "open", 5), (2, "sent", 1)]
    return spark.session.createDataFrame(changes, "id INT, state STRING, pieces INT")


spark = SparkResource()
defs = dg.Definitions(
    assets=[orders],
    resources={
        "spark": spark,
        "io_manager": SparkDeltaIOManager(root=str(LAKE / "tables"), spark=spark),
    },
    executor=dg.in_process_executor,
)
