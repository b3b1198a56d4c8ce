"""The table of all web returns, kept current by merging each landed partition by key."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from dagster import AssetExecutionContext
from pyspark.sql import DataFrame

from assets.landing import GROUP, landing_directory, web_returns_landing
from assets.partitions import web_returns_partitions
from dagster_deltaweave import SparkResource, merge_asset, partition_path, read_source_partition
from deltaweave import clauses
from deltaweave.bench.data import AMOUNTS, IDENTIFIERS

SCHEMA = ", ".join(
    [f"{name} INT" for name in IDENTIFIERS]
    + ["wr_order_number BIGINT", "wr_return_quantity INT"]
    + [f"{name} DECIMAL(7,2)" for name in AMOUNTS]
)

KEYS = ("wr_order_number", "wr_item_sk")


@merge_asset(
    keys=KEYS,
    clauses=[
        clauses.when_matched_delete(condition="s.op = 'delete'"),
        clauses.when_matched_update_all(),
        clauses.when_not_matched_insert_all(condition="s.op <> 'delete'"),
    ],
    schema=SCHEMA,
    except_column_list=["op"],
    partitions_def=web_returns_partitions,
    deps=[web_returns_landing],
    group_name=GROUP,
    owners=["team:returns"],
)
def web_returns(context: AssetExecutionContext, spark: SparkResource) -> DataFrame:
    """Every web return that has not been deleted: one row for each order number and item.

    A landed partition corrects, deletes and adds returns. TPC-DS describes the columns.
    """
    return read_source_partition(
        spark.session,
        partition_path(landing_directory(), context.partition_key),
        schema=f"{SCHEMA}, op STRING",
        table="web_returns",
    )
