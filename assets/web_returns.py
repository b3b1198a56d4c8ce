"""The table of all web returns, kept current by merging each landed partition by key."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from dagster import AssetExecutionContext
from pyspark.sql import DataFrame

from assets.landing import GROUP, landing_directory, web_returns_landing
from assets.partitions import web_returns_partitions
from dagster_deltaweave import SparkResource, merge_asset, read_source_partition
from deltaweave import clauses

IDENTIFIERS = (
    "wr_returned_date_sk",
    "wr_returned_time_sk",
    "wr_item_sk",
    "wr_refunded_customer_sk",
    "wr_refunded_cdemo_sk",
    "wr_refunded_hdemo_sk",
    "wr_refunded_addr_sk",
    "wr_returning_customer_sk",
    "wr_returning_cdemo_sk",
    "wr_returning_hdemo_sk",
    "wr_returning_addr_sk",
    "wr_web_page_sk",
    "wr_reason_sk",
)
AMOUNTS = (
    "wr_return_amt",
    "wr_return_tax",
    "wr_return_amt_inc_tax",
    "wr_fee",
    "wr_return_ship_cost",
    "wr_refunded_cash",
    "wr_reversed_charge",
    "wr_account_credit",
    "wr_net_loss",
)
SCHEMA = ", ".join(
    [f"{name} INT" for name in IDENTIFIERS]
    + ["wr_order_number BIGINT", "wr_return_quantity INT"]
    + [f"{name} DECIMAL(7,2)" for name in AMOUNTS]
)


@merge_asset(
    keys=["wr_order_number", "wr_item_sk"],
    clauses=[
        clauses.when_matched_delete(condition="s.op = 'delete'"),
        clauses.when_matched_update_all(),
        clauses.when_not_matched_insert_all(condition="s.op <> 'delete'"),
    ],
    schema=SCHEMA,
    except_columns=["op"],
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
        str(landing_directory() / context.partition_key),
        schema=f"{SCHEMA}, op STRING",
        table="web_returns",
    )
