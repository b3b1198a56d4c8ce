"""The table of all web returns, kept current by merging each landed partition by key."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from dagster import AssetExecutionContext
from pyspark.sql import DataFrame, SparkSession

from assets.landing import GROUP, landing_directory, web_returns_landing
from assets.partitions import web_returns_partitions
from assets.tpcds import AMOUNTS, IDENTIFIERS
from dagster_deltaweave import SparkResource, merge_asset, partition_path, read_source_partition
from deltaweave import clauses

_COMMENTS = {
    "wr_returned_date_sk": "The day of the return, as a Julian day number; 0 if there is none",
    "wr_returned_time_sk": "The second of that day",
    "wr_item_sk": "The item that is returned",
    "wr_refunded_customer_sk": "The customer who gets the money",
    "wr_refunded_cdemo_sk": "Her group by age, education and credit",
    "wr_refunded_hdemo_sk": "Her household's group by income and size",
    "wr_refunded_addr_sk": "Her address",
    "wr_returning_customer_sk": "The customer who returns the item",
    "wr_returning_cdemo_sk": "Her group by age, education and credit",
    "wr_returning_hdemo_sk": "Her household's group by income and size",
    "wr_returning_addr_sk": "Her address",
    "wr_web_page_sk": "The page on which the item was ordered",
    "wr_reason_sk": "The reason for the return",
    "wr_order_number": "The order; each of its items is returned at most once",
    "wr_return_quantity": "How many pieces are returned",
    "wr_return_amt": "The price of the returned pieces",
    "wr_return_tax": "The tax on it",
    "wr_return_amt_inc_tax": "Price and tax",
    "wr_fee": "The fee for the return",
    "wr_return_ship_cost": "The cost of shipping it back",
    "wr_refunded_cash": "What is refunded in cash",
    "wr_reversed_charge": "What is refunded to the credit card",
    "wr_account_credit": "What is refunded to the customer's account",
    "wr_net_loss": "What the return costs in all",
}


def _column(name: str, data_type: str) -> str:
    comment = _COMMENTS.get(name, "").replace("'", "\\'")
    return f"{name} {data_type}" + (f" COMMENT '{comment}'" if comment else "")


SCHEMA = ", ".join(
    [_column(name, "INT") for name in IDENTIFIERS]
    + [_column("wr_order_number", "BIGINT"), _column("wr_return_quantity", "INT")]
    + [_column(name, "DECIMAL(7,2)") for name in AMOUNTS]
)

RETURN = ("wr_order_number", "wr_item_sk")
"""What identifies a return."""

# A return keeps its date, and a file of the table has the dates of the partition that it came with.
# So with the date among the keys, merges skip the files of other months.
_KEYS = ("wr_returned_date_sk", *RETURN)
_NO_DATE = 0  # keys are compared by =, and null equals nothing


@merge_asset(
    keys=_KEYS,
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
    return read_returns(spark.session, partition_path(landing_directory(), context.partition_key))


def read_returns(spark: SparkSession, path: str) -> DataFrame:
    """Read a landed partition, whose files must have the table's columns and `op`."""
    rows = read_source_partition(spark, path, schema=f"{SCHEMA}, op STRING", table="web_returns")
    return rows.fillna(_NO_DATE, ["wr_returned_date_sk"])
