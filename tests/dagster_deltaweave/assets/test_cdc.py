from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import AssetsDefinition, DagsterInvalidDefinitionError
from pyspark.sql import SparkSession

from dagster_deltaweave import cdc_asset
from deltaweave import Table
from tests.dagster_deltaweave.conftest import Run, failure_messages

Events = list[tuple[int, str, int, str]]


def customers_from(
    spark: SparkSession, batches: list[Events], **arguments: Any
) -> AssetsDefinition:
    @cdc_asset(
        keys=["id"],
        sequence_by="seq",
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"],
        group_name="sales",
        **arguments,
    )
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(batches.pop(0), "id INT, name STRING, seq INT, op STRING")

    return customers


@pytest.mark.minutes
def test_runs_apply_events_in_whatever_order_they_come(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    late = [(1, "old", 1, "u"), (2, "old", 1, "u")]
    customers = customers_from(spark, [[(1, "new", 3, "u"), (2, "", 2, "d")], late, late])
    results = [run(customers) for _ in range(3)]

    found = table("customers").read().select("id", "name").collect()
    assert [tuple(row) for row in found] == [(1, "new")]
    metadata = [
        {key: entry.value for key, entry in materialization.metadata.items()}
        for result in results
        for materialization in result.asset_materializations_for_node("customers")
    ]
    assert [each["merge/rows_inserted"] for each in metadata] == [1, 0, 0]
    assert metadata[0]["dagster/row_count"] == 1
    assert customers.specs_by_key[customers.key].group_name == "sales"
    assert customers.op.pool == "merge/customers"


@pytest.mark.minutes
def test_a_full_refresh_is_refused_and_says_what_to_do(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    customers = customers_from(spark, [[(1, "a", 1, "u")]] * 2, retries=0)
    run(customers)
    result = run(customers, tags={"deltaweave/full_refresh": "true"}, raise_on_error=False)
    assert "apply all events again" in failure_messages(result)
    assert table("customers").row_count() == 1


def test_keys_are_needed(spark: SparkSession) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="keys is a list"):
        cdc_asset(keys=[], sequence_by="seq")(lambda: None)
