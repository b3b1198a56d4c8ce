"""Tags of a run change how it merges, for that run alone; what makes no sense writes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import merge_asset
from dagster_deltaweave.io_manager.output import RunOptions, with_tags
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    CurrentTableOptions,
    MergeDeclaration,
    MergeOnReadArguments,
    MergeOnReadDeclaration,
    TableDeclaration,
    WriteDeclaration,
)
from deltaweave import Table
from deltaweave.errors import StatementError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows

MERGE = MergeDeclaration(on="t.id = s.id", sequence_by="n")
# Columns are added: rows of an older partition could lack some.
ORDERED = MergeDeclaration(on="t.id = s.id", sequence_by="n", schema_policy="add")
APPEND = WriteDeclaration(mode="append")
TEXT = MergeDeclaration(merge_text="MERGE INTO {target} USING {source} …")
EVENTS = ChangesDeclaration(options=CurrentTableOptions(keys=["id"], sequence_by="n"))
APPENDED = MergeOnReadDeclaration(
    part="changes",
    view=AssetKey("orders"),
    options=MergeOnReadArguments(keys=["id"], sequence_by="n"),
)


def changed(declaration: TableDeclaration, **tags: str) -> RunOptions:
    options = RunOptions(declaration, explain=False, wait_seconds=3600)
    return with_tags(options, {f"deltaweave/{name}": each for name, each in tags.items()}, "orders")


def test_a_run_without_such_tags_writes_as_declared() -> None:
    assert changed(MERGE, partitions="a,b") == RunOptions(MERGE, False, 3600)


def test_tags_take_the_place_of_what_is_declared() -> None:
    options = changed(
        MERGE, schema_policy="add", retries="0", explain="true", order_wait_seconds="60"
    )
    assert (options.declaration.schema_policy, options.declaration.retries) == ("add", 0)
    assert (options.explain, options.wait_seconds) == (True, 60)
    # With columns that are added, an older row could lack some: the order is needed, then.
    assert isinstance(options.declaration, MergeDeclaration)
    assert (MERGE.needs_order, options.declaration.needs_order) == (False, True)
    assert changed(APPEND, schema_policy="widen").declaration.schema_policy == "widen"
    assert changed(TEXT, retries="1").declaration.retries == 1


@pytest.mark.parametrize(
    ("declaration", "tag", "value", "problem"),
    [
        (MERGE, "schema_policy", "loose", "is 'loose'; known are strict, add, widen."),
        (MERGE, "retries", "-1", "is '-1'."),
        (MERGE, "retries", "many", "is 'many'."),
        (MERGE, "retries", "²", "is '²'."),
        (MERGE, "explain", "yes", "is 'yes'; known are true, false."),
        (MERGE, "order_wait_seconds", "1.5", "is '1.5'."),
        (MERGE, "order", "none", "is 'none'; known are partition, any."),
        (MERGE, "full_refresh", "yes", "is 'yes'; known are true, false."),
        (ORDERED, "schema_policy", "strict", "would let this run pass the order of partitions."),
        (TEXT, "schema_policy", "add", "does not apply to a merge_text."),
        (EVENTS, "schema_policy", "add", "does not apply to a table of change events."),
        (APPENDED, "schema_policy", "add", "does not apply to a table of change events."),
    ],
)
def test_a_tag_that_makes_no_sense_is_refused(
    declaration: TableDeclaration, tag: str, value: str, problem: str
) -> None:
    with pytest.raises(StatementError) as refused:
        changed(declaration, **{tag: value})
    assert refused.value.problem == f"the run's tag deltaweave/{tag} {problem}"
    assert refused.value.table == "orders"
    assert refused.value.hint is not None


@pytest.mark.minutes
def test_a_run_with_a_tag_adds_columns_and_the_next_without_it_does_not(
    spark: SparkSession, run: Run, table: Callable[[str], Table], instance: DagsterInstance
) -> None:
    batches = [
        spark.createDataFrame([(1, "a")], "id INT, v STRING"),
        spark.createDataFrame([(2, "b", 5)], "id INT, v STRING, n INT"),
        spark.createDataFrame([(3, "c", 6)], "id INT, v STRING, n INT"),
        spark.createDataFrame([(4, "d", 7, 8)], "id INT, v STRING, n INT, m INT"),
    ]

    @merge_asset(keys=["id"])
    def orders() -> DataFrame:
        return batches.pop(0)

    run(orders)
    refused = run(orders, tags={"deltaweave/schema_policy": "all"}, raise_on_error=False)
    assert "known are strict, add, widen" in failure_messages(refused)
    assert rows(table("orders")) == [(1, "a")]
    run(orders, tags={"deltaweave/schema_policy": "add"})
    assert rows(table("orders")) == [(1, "a", None), (3, "c", 6)]
    strict = run(orders, raise_on_error=False)
    assert "the table lacks: m" in failure_messages(strict)
