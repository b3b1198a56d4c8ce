"""Events that cannot be applied are counted in Dagster, and fail a check until they are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    ExecuteInProcessResult,
    materialize,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import build_rescued_events_check, cdc_asset, merge_on_read_asset
from deltaweave import Table

SCHEMA = "id INT, pieces INT, version INT"
EVENTS: dict[str, Any] = {"keys": ["id"], "sequence_by": "version"}
GOOD, WRONG = (1, 10, 1), (None, 20, 2)


def cdc(function: Callable[[], DataFrame], **more: Any) -> list[AssetsDefinition]:
    return [cdc_asset(name="orders", **EVENTS, **more)(function)]


def merge_on_read(function: Callable[[], DataFrame], **more: Any) -> list[AssetsDefinition]:
    return list(merge_on_read_asset(name="orders", **EVENTS, **more)(function))


@pytest.mark.parametrize(
    ("declare", "of_table"),
    [(cdc, "orders_rescued"), (merge_on_read, "orders_base_rescued")],
    ids=["cdc_asset", "merge_on_read_asset"],
)
def test_events_that_cannot_be_applied_are_counted_and_checked(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    table: Callable[[str], Table],
    declare: Callable[..., list[AssetsDefinition]],
    of_table: str,
) -> None:
    batches: Iterator[list[Any]] = iter([[GOOD], [GOOD, WRONG], [GOOD]])
    assets = declare(lambda: spark.createDataFrame(next(batches), SCHEMA), rescued=True)
    check = build_rescued_events_check(assets[0])

    def run() -> tuple[int, bool]:
        result: ExecuteInProcessResult = materialize(
            [assets[0], check], resources=resources, instance=instance
        )
        [made] = result.asset_materializations_for_node(assets[0].op.name)
        [checked] = result.get_asset_check_evaluations()
        count = made.metadata["changes/rescued_events"].value
        assert checked.metadata["changes/rescued_events"].value == count
        if count:
            assert "a null in its key id" in str(checked.metadata["check/sample"].value)
        return count, checked.passed  # type: ignore[return-value]

    assert [run(), run()] == [(0, True), (1, False)]
    spark.sql(f"DELETE FROM delta.`{table(of_table).path_or_name}`")
    assert run() == (0, True)


@pytest.mark.parametrize("declare", [cdc, merge_on_read])
def test_a_check_of_an_asset_that_puts_nothing_aside_is_refused(
    declare: Callable[..., list[AssetsDefinition]],
) -> None:
    [asset, *_] = declare(lambda: None)
    with pytest.raises(DagsterInvalidDefinitionError, match="declare it with rescued="):
        build_rescued_events_check(asset)
