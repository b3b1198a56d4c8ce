"""Assets of every shape are stored and loaded, and what is no asset is kept for the next op."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from typing import Any

import pytest
from dagster import (
    AssetOut,
    AssetsDefinition,
    DagsterInstance,
    In,
    MaterializeResult,
    Output,
    StaticPartitionsDefinition,
    asset,
    graph_asset,
    graph_multi_asset,
    job,
    materialize,
    multi_asset,
    op,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import SparkDeltaIOManager
from deltaweave import Table
from deltaweave.errors import SourceError, StatementError
from tests.dagster_deltaweave.conftest import Run, rows

AssetTable = Callable[[str], Table]
LETTERS = StaticPartitionsDefinition(["a", "b"])
MERGED = {"deltaweave/write": "merge", "deltaweave/keys": "id"}


def ops_of(spark: SparkSession) -> tuple[Any, Any]:
    """An op that gives a DataFrame, and one that takes it and a plain value."""

    @op
    def read() -> DataFrame:
        return spark.createDataFrame([(1, "a"), (2, "b")], "id INT, letter STRING")

    @op
    def cut(some: DataFrame, at: int) -> DataFrame:
        return some.where(f"id < {at}")

    return read, cut


@op
def limit() -> int:
    return 2  # kept in a file, as Dagster's default IO manager does


def plain(spark: SparkSession) -> AssetsDefinition:
    @asset(name="one")
    def one() -> DataFrame:
        return spark.createDataFrame([(1, "a")], "id INT, letter STRING")

    return one


def of_two(spark: SparkSession) -> AssetsDefinition:
    @multi_asset(
        outs={"one": AssetOut(metadata=MERGED), "two": AssetOut(is_required=False)},
        can_subset=True,
    )
    def both():  # type: ignore[no-untyped-def]
        yield Output(spark.sql("SELECT 1 AS id, 'a' AS letter"), "one")

    return both


def of_graph(spark: SparkSession) -> AssetsDefinition:
    read, cut = ops_of(spark)

    @graph_asset(name="one", metadata=MERGED)
    def one():  # type: ignore[no-untyped-def]
        return cut(read(), limit())

    return one


def of_graph_of_two(spark: SparkSession) -> AssetsDefinition:
    read, cut = ops_of(spark)

    appended = {"deltaweave/write": "append"}  # `cut` takes what `read` gave, not this table

    @graph_multi_asset(outs={"one": AssetOut(metadata=appended), "two": AssetOut(metadata=MERGED)})
    def both():  # type: ignore[no-untyped-def]
        some = read()
        return {"one": some, "two": cut(some, limit())}

    return both


@pytest.mark.parametrize("shape", [plain, of_two, of_graph, of_graph_of_two])
def test_an_asset_of_any_shape_is_stored_and_loaded(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    shape: Callable[[SparkSession], AssetsDefinition],
) -> None:
    loaded: list[Any] = []

    @asset
    def downstream(one: DataFrame) -> None:
        loaded.extend(tuple(row) for row in one.collect())

    definition = shape(spark)
    for _ in range(2):
        run(definition, downstream)

    if shape is of_graph_of_two:
        assert rows(table("two")) == [(1, "a")]
        assert rows(table("one")) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]
        return
    assert rows(table("one")) == [(1, "a")]
    assert loaded == [(1, "a")] * 2


def test_a_plain_asset_is_written_as_its_io_manager_or_output_says(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    resources: dict[str, Any],
    instance: DagsterInstance,
) -> None:
    modes: list[str | None] = [None, "append", "truncate"]

    @asset
    def numbers():  # type: ignore[no-untyped-def]
        mode = modes.pop(0)
        some = spark.sql("SELECT 1 AS id")
        return some if mode is None else MaterializeResult(value=some, metadata={"mode": mode})

    @asset(partitions_def=LETTERS, metadata={"partition_expr": "letter"})
    def letters(context):  # type: ignore[no-untyped-def]
        return spark.sql(f"SELECT '{context.partition_key}' AS letter")

    @asset(partitions_def=LETTERS)
    def unknown():  # type: ignore[no-untyped-def]
        return spark.sql("SELECT 'a' AS letter")

    run(numbers)
    run(numbers)
    assert rows(table("numbers")) == [(1,), (1,)]
    with pytest.raises(StatementError, match=r"metadata mode.*truncate"):
        run(numbers)
    for key in ("a", "b", "a"):
        run(letters, partition=key)
    assert rows(table("letters")) == [("a",), ("b",)]
    with pytest.raises(StatementError, match="nothing says which rows a partition has"):
        run(unknown, partition="a")

    tables = resources["io_manager"]
    strict = SparkDeltaIOManager(root=tables.root, spark=tables.spark, mode="error")
    modes.append(None)
    with pytest.raises(StatementError, match="numbers does not say how its rows are stored"):
        materialize([numbers], resources={**resources, "io_manager": strict}, instance=instance)
    assert rows(table("numbers")) == [(1,), (1,)]


def test_the_mode_of_an_output_does_not_change_what_an_asset_declares(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @asset(metadata={"deltaweave/write": "append"})
    def numbers():  # type: ignore[no-untyped-def]
        return MaterializeResult(value=spark.sql("SELECT 1 AS id"), metadata={"mode": "overwrite"})

    run(numbers)
    run(numbers)
    assert rows(table("numbers")) == [(1,), (1,)]


def test_ops_of_a_graph_asset_read_whole_tables(spark: SparkSession, run: Run) -> None:
    """They cannot record which touched rows they have applied."""

    @asset
    def upstream() -> DataFrame:
        return spark.sql("SELECT 1 AS id")

    @op(ins={"touched": In(metadata={"deltaweave/read": "touched"})})
    def apply(touched: Any) -> Any:
        return touched.rows

    @graph_asset(metadata=MERGED)
    def one(upstream):  # type: ignore[no-untyped-def]
        return apply(upstream)

    run(upstream)
    with pytest.raises(SourceError, match="an op of a graph asset cannot read touched rows"):
        run(upstream, one, selection=[one])


def test_outputs_of_op_jobs_are_kept_as_by_the_default_io_manager(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    read, cut = ops_of(spark)
    seen: list[Any] = []

    @op
    def look(some: DataFrame, number: int) -> None:
        seen.append((some.count(), number))

    @job
    def of_ops() -> None:
        number = limit()
        look(cut(read(), number), number)

    result = of_ops.execute_in_process(resources=resources, instance=instance)

    assert result.success
    assert seen == [(1, 2)]
