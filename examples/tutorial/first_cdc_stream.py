"""The tutorial's fourth step: a stream of change events, read at once and merged later."""

import os
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_deltaweave import (
    RematerializationPolicy,
    SparkDeltaIOManager,
    SparkResource,
    build_pending_changes_check,
    build_rematerialization_sensor,
    build_stream_job,
    merge_on_read_asset,
)

LAKE = Path(os.environ.get("LAKE", "lake")).absolute()
EVENTS = LAKE / "landing" / "customer_events"


@merge_on_read_asset(
    keys=["id"],
    sequence_by="lsn",
    apply_as_deletes="op = 'd'",
    except_column_list=["op", "lsn"],
)
def customers(spark: SparkResource) -> DataFrame:
    """Every customer who was not deleted."""
    events = spark.session.readStream.schema("id INT, name STRING, op STRING, lsn BIGINT")
    return events.json(str(EVENTS))


@dg.asset(metadata={"deltaweave/write": "overwrite"})
def customers_by_letter(customers: DataFrame) -> DataFrame:
    """How many customers there are for each first letter."""
    letter = F.substring("name", 1, 1).alias("letter")
    return customers.groupBy(letter).agg(F.count("*").alias("customers"))


customers_stream = build_stream_job(name="customers_stream", tables=customers, every="10 seconds")
few_are_pending = build_pending_changes_check(
    customers, policy=RematerializationPolicy(batches=1_000)
)
customers_due = build_rematerialization_sensor(
    name="customers_due", tables=[customers], policy=RematerializationPolicy(batches=100)
)

spark = SparkResource()
defs = dg.Definitions(
    assets=[*customers, customers_by_letter],
    asset_checks=[few_are_pending],
    jobs=[customers_stream],
    sensors=[customers_due],
    resources={
        "spark": spark,
        "io_manager": SparkDeltaIOManager(root=str(LAKE / "tables"), spark=spark),
    },
    executor=dg.in_process_executor,
)
