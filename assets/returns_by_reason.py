"""Web returns counted by reason, kept current from only the files that merges touched."""

from __future__ import annotations

from dagster import AssetIn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.landing import GROUP
from dagster_deltaweave import Changes, merge_asset
from deltaweave import TouchedRows, clauses


@merge_asset(
    # Returns without a reason are a group of their own, so nulls must match.
    on="t.wr_reason_sk <=> s.wr_reason_sk",
    clauses=[
        clauses.when_matched_delete(condition="t.returns + s.returns = 0"),
        clauses.when_matched_update(
            set={"returns": "t.returns + s.returns", "quantity": "t.quantity + s.quantity"}
        ),
        clauses.when_not_matched_insert_all(),
    ],
    schema="wr_reason_sk INT COMMENT 'The reason; null for returns without one', "
    "returns BIGINT COMMENT 'How many returns there are', "
    "quantity BIGINT COMMENT 'How many pieces they are of'",
    ins={"web_returns": AssetIn(metadata={"deltaweave/read": "touched"})},
    group_name=GROUP,
    owners=["team:returns"],
)
def returns_by_reason(web_returns: TouchedRows) -> Changes:
    """How many returns there are for each reason, and of how many pieces.

    The change of each group is its sum over the files that were added since the last run minus
    its sum over those that were removed: rows that a merge only copied cancel out.
    """
    added = _with_sign(web_returns.added, 1)
    removed = _with_sign(web_returns.removed, -1)
    change = (
        added.unionByName(removed)
        .groupBy("wr_reason_sk")
        .agg(
            F.sum("sign").alias("returns"),
            F.sum(F.col("sign") * F.coalesce("wr_return_quantity", F.lit(0))).alias("quantity"),
        )
        .where("returns <> 0 OR quantity <> 0")
    )
    return Changes(change, applied=web_returns)


def _with_sign(rows: DataFrame, sign: int) -> DataFrame:
    return rows.select(
        "wr_reason_sk", "wr_return_quantity", F.lit(sign).cast("bigint").alias("sign")
    )
