"""Metadata of an input chooses columns and a version of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from dagster import (
    AssetIn,
    AssetKey,
    DagsterInstance,
    MetadataValue,
    asset,
    build_input_context,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import merge_asset, merge_on_read_asset
from dagster_deltaweave.io_manager.loading import InputOptions, input_options, was_recorded
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.conftest import Run, failure_messages


def asked_of(metadata: dict[str, Any]) -> AssetIn:
    return AssetIn(key="orders", metadata=metadata)


@pytest.mark.minutes
def test_an_input_has_the_columns_and_the_version_that_its_metadata_names(
    spark: SparkSession, run: Run
) -> None:
    batches = [
        spark.createDataFrame([(1, "a", 1)], "id INT, `v.w` STRING, n INT"),
        spark.createDataFrame([(1, "b", 2), (2, "c", 3)], "id INT, `v.w` STRING, n INT"),
    ]

    @merge_asset(keys=["id"])
    def orders() -> DataFrame:
        return batches.pop(0)

    seen: dict[str, Any] = {}

    @asset(ins={"newest": asked_of({"columns": ["n", "v.w"]})})
    def reads_columns(newest: DataFrame) -> None:
        seen["newest"] = sorted(map(tuple, newest.collect()))

    @asset(ins={"first": asked_of({"deltaweave/version": MetadataValue.int(1)})})
    def reads_version(first: pd.DataFrame) -> None:
        seen["first"] = first.values.tolist()

    @asset(ins={"both": asked_of({"columns": ["ID"], "deltaweave/version": 1})})
    def reads_both(both: DataFrame) -> None:
        seen["both"] = list(map(tuple, both.collect()))

    readers = [reads_columns, reads_version, reads_both]
    run(orders)
    run(orders)
    run(orders, *readers, selection=readers)
    assert seen == {
        "newest": [(2, "b"), (3, "c")],  # in the order that was asked for
        "first": [[1, "a", 1]],  # version 0 made the table, 1 merged the first batch
        "both": [(1,)],
    }

    @asset(ins={"lacking": asked_of({"columns": ["id", "colour", "size"]})})
    def wrong(lacking: DataFrame) -> None: ...

    @asset(ins={"future": asked_of({"deltaweave/version": 7})})
    def early(future: DataFrame) -> None: ...

    refused = run(orders, wrong, selection=[wrong], raise_on_error=False)
    assert "the table lacks the columns colour, size" in failure_messages(refused)
    unknown = run(orders, early, selection=[early], raise_on_error=False)
    assert "TableNotFoundError" in failure_messages(unknown)


@pytest.mark.minutes
def test_rows_merged_on_read_have_columns_and_no_version(spark: SparkSession, run: Run) -> None:
    @merge_on_read_asset(keys=["id"], sequence_by="n")
    def prices() -> DataFrame:
        return spark.createDataFrame([(1, 10, 1), (2, 20, 1)], "id INT, price INT, n INT")

    seen: list[Any] = []

    @asset(ins={"rows": AssetIn(key="prices", metadata={"columns": ["price"]})})
    def reader(rows: DataFrame) -> None:
        seen.extend(sorted(map(tuple, rows.collect())))

    @asset(ins={"rows": AssetIn(key="prices", metadata={"deltaweave/version": 0})})
    def wrong(rows: DataFrame) -> None: ...

    run(*prices, selection=[prices.changes])
    run(*prices, reader, selection=[reader])
    assert seen == [(10,), (20,)]
    refused = run(*prices, wrong, selection=[wrong], raise_on_error=False)
    assert "merged on read are those of two tables" in failure_messages(refused)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"columns": "id"}, "columns is 'id'"),
        ({"columns": []}, "columns is []"),
        ({"columns": [1]}, "columns is [1]"),
        ({"deltaweave/version": -1}, "deltaweave/version is -1"),
        ({"deltaweave/version": "2026-01-01"}, "deltaweave/version is '2026-01-01'"),
        ({"deltaweave/version": True}, "deltaweave/version is True"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(metadata: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as refused:
        input_options(metadata, "orders", "/lake/orders")
    assert said in refused.value.problem
    assert refused.value.table == "/lake/orders"


def test_what_changed_since_the_last_run_has_neither() -> None:
    nothing = InputOptions("orders", "/lake/orders")
    nothing.refuse_if_given("deltaweave/read reads what changed")
    for options in (replace(nothing, columns=("id",)), replace(nothing, version=3)):
        with pytest.raises(SourceError, match="cannot be followed, because"):
            options.refuse_if_given("deltaweave/read reads what changed")


def test_an_asset_that_was_never_made_is_not_recorded_outside_of_runs() -> None:
    """The error is then that there is no table, also where a notebook loads the value."""
    with DagsterInstance.ephemeral() as instance:
        context = build_input_context(asset_key=AssetKey("orders"), instance=instance)
        assert not was_recorded(context)
