"""What commits while an asset's function runs, and what fails once its own rows are committed."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetOut,
    DagsterInstance,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
    Output,
    RetryPolicy,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    asset,
    graph_multi_asset,
    multi_asset,
    op,
)
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import merge_asset, merge_on_read_asset, partition_tags
from dagster_deltaweave.io_manager import stores
from dagster_deltaweave.logs.delta_log import version_with_rows_of
from deltaweave import MergeResult, Table
from deltaweave.errors import CommitConflictError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows

pytestmark = pytest.mark.minutes

AssetTable = Callable[[str], Table]

LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-05")
REFRESH = {"deltaweave/full_refresh": "true"}
SCHEMA = "id INT, letter STRING"


@pytest.fixture(autouse=True)
def _tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_deltaweave.io_manager.step_attempts.SECONDS_BEFORE_RETRY", 0)


def made(table: Table, *lines: tuple[int, str], **arguments: Any) -> Table:
    table.create_if_missing(SCHEMA, **arguments)
    table.write(table.spark.createDataFrame(lines, SCHEMA), "append")
    return table


def sql(table: Table, statement: str) -> None:
    table.spark.sql(statement.format(t=f"delta.`{table.path_or_name}`"))


def materialized(result: ExecuteInProcessResult, name: str) -> Any:
    return result.asset_materializations_for_node(name)[0].metadata


@pytest.mark.parametrize(
    ("how", "meanwhile", "attempts", "left"),
    [
        ("full refresh", "DELETE FROM {t} WHERE id = 2", [0, 1], [(1, "A")]),
        ("overwrite", "DELETE FROM {t} WHERE id = 2", [0, 1], [(1, "A")]),
        (
            "full refresh",
            "MERGE INTO {t} t USING (SELECT 3 AS id) s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT (id, letter) VALUES (s.id, 'c')",
            [0, 1],
            [(1, "A"), (2, "B"), (3, "C")],
        ),
        # Neither changes a row, so that nothing would be undone.
        ("overwrite", "OPTIMIZE {t}", [0], [(1, "A"), (2, "B")]),
        pytest.param(
            "full refresh",
            "ALTER TABLE {t} SET TBLPROPERTIES ('x.y' = '1')",
            [0],
            [(1, "A"), (2, "B")],
            marks=pytest.mark.full_matrix,
        ),
    ],
    ids=["delete", "delete-overwrite", "merge", "optimize", "property"],
)
def test_a_rebuilt_table_undoes_no_commit_since_its_function_began(
    run: Run,
    table: AssetTable,
    how: str,
    meanwhile: str,
    attempts: list[int],
    left: list[tuple[int, str]],
) -> None:
    target = made(table("orders"), (1, "a"))
    made(target, (2, "b"))  # a second file
    seen: list[int] = []

    def upper(context: AssetExecutionContext) -> Any:
        seen.append(context.retry_number)
        read = target.read().selectExpr("id", "upper(letter) AS letter").toArrow()
        if context.retry_number == 0:
            sql(target, meanwhile)
        return read

    if how == "overwrite":
        run(asset(name="orders", metadata={"deltaweave/write": "overwrite"})(upper))
    else:
        run(merge_asset(keys=["id"], name="orders")(upper), tags=REFRESH)

    assert seen == attempts
    assert rows(target) == left


def test_a_replaced_partition_conflicts_only_with_commits_to_its_rows(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    target = made(table("orders"), (1, "a"), (2, "a"), (3, "b"), partition_by=["letter"])
    seen: list[int] = []
    meanwhile: list[str] = []

    @asset(
        partitions_def=LETTERS,
        metadata={"deltaweave/write": "overwrite", "partition_expr": "letter"},
    )
    def orders(context: AssetExecutionContext) -> Any:
        seen.append(context.retry_number)
        wanted = f"letter = '{context.partition_key}'"
        read = target.read().where(wanted).selectExpr("id + 10 AS id", "letter").toArrow()
        while meanwhile:
            sql(target, meanwhile.pop())
        return read

    meanwhile.append("INSERT INTO {t} VALUES (4, 'b')")
    run(orders, partition="a")
    assert (seen, rows(target)) == ([0], [(11, "a"), (12, "a"), (3, "b"), (4, "b")])

    meanwhile.append("DELETE FROM {t} WHERE id = 12")
    run(orders, partition="a")
    assert (seen, rows(target)) == ([0, 0, 1], [(21, "a"), (3, "b"), (4, "b")])


def test_rows_from_the_own_table_are_not_appended_after_another_commit(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """The first partition is mapped to none before it, and reads no row."""
    target = table("log")
    seen: list[tuple[str, int]] = []
    meanwhile: list[str] = []

    @asset(
        partitions_def=DAYS,
        ins={
            "before": AssetIn(
                key="log",
                partition_mapping=TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
            )
        },
        metadata={"deltaweave/write": "append", "partition_expr": "day"},
    )
    def log(context: AssetExecutionContext, before: DataFrame) -> DataFrame:
        n = before.count()
        seen.append((context.partition_key, n))
        while meanwhile:
            sql(target, meanwhile.pop())
        return spark.sql(f"SELECT DATE'{context.partition_key}' AS day, {n} AS before")

    target.create_if_missing("day DATE, before INT")
    run(log, partition="2026-01-01")
    meanwhile.append("DELETE FROM {t} WHERE day = '2026-01-01'")
    run(log, partition="2026-01-02")

    assert seen == [("2026-01-01", 0), ("2026-01-02", 1), ("2026-01-02", 0)]
    assert [(str(day), n) for day, n in rows(target)] == [("2026-01-02", 0)]


def test_a_table_that_another_writer_creates_meanwhile_is_not_overwritten(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    target = table("orders")

    @asset(metadata={"deltaweave/write": "overwrite", "deltaweave/retries": 0})
    def orders() -> DataFrame:
        sql(target, "CREATE TABLE {t} USING delta AS SELECT 9 AS id, 'z' AS letter")
        return spark.createDataFrame([(1, "a")], SCHEMA)

    with pytest.raises(CommitConflictError, match="created the table with rows in the meantime"):
        run(orders)
    assert rows(target) == [(9, "z")]


def test_none_rebuilds_nothing_and_is_recorded_for_the_runs_partitions(
    run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    target = made(table("orders"), (1, "a"))

    @merge_asset(keys=["id"], partitions_def=LETTERS, partition_expr="letter")
    def orders():  # type: ignore[no-untyped-def]
        return None

    result = run(orders, partition="a", tags=REFRESH, raise_on_error=False)
    assert not result.success
    assert "returned None, and no table can be rebuilt from None" in failure_messages(result)
    assert rows(target) == [(1, "a")]

    result = run(orders, tags=partition_tags(["a", "c"]))
    assert instance.get_materialized_partitions(AssetKey("orders")) == {"a", "c"}
    shown = [each.metadata for each in result.asset_materializations_for_node("orders")]
    assert any(
        each["write/mode"].value == "nothing: the asset returned None"
        for each in shown
        if "write/mode" in each
    )
    assert target.version() == 2  # which records that a and c are merged, and changes no row
    assert rows(target) == [(1, "a")]


# After a write, a merge, and either.
@pytest.mark.parametrize(
    "broken",
    [
        "dagster_deltaweave.metadata.metadata_entries.write_metadata",
        "dagster_deltaweave.metadata.metadata_entries.merge_metadata",
        "dagster_deltaweave.metadata.materialization.record_data_version",
        *[
            pytest.param(each, marks=pytest.mark.full_matrix)
            for each in (
                "dagster_deltaweave.io_manager.output.table_metadata",
                "dagster_deltaweave.metadata.materialization.merge_observation",
            )
        ],
    ],
)
def test_nothing_that_fails_after_the_commit_fails_the_run(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    def breaks(*args: Any, **kwargs: Any) -> None:
        raise CommitConflictError("the log went away.")  # an error after which a run tries again

    monkeypatch.setattr(broken, breaks)

    @merge_asset(keys=["id"])
    def merged() -> DataFrame:
        return spark.createDataFrame([(1, "a")], SCHEMA)

    @asset(metadata={"deltaweave/write": "append"})
    def appended() -> DataFrame:
        return spark.createDataFrame([(1, "a")], SCHEMA)

    result = run(merged, appended)

    assert result.success
    assert (rows(table("merged")), rows(table("appended"))) == ([(1, "a")], [(1, "a")])
    warned = [
        each.name
        for each in (merged.op, appended.op)
        if "deltaweave/warnings" in materialized(result, each.name)
    ]
    expected = {
        "dagster_deltaweave.metadata.metadata_entries.write_metadata": ["appended"],
        "dagster_deltaweave.metadata.metadata_entries.merge_metadata": ["merged"],
        "dagster_deltaweave.metadata.materialization.merge_observation": ["merged"],
    }
    assert warned == expected.get(broken, ["merged", "appended"])
    [name, *_] = warned
    assert "the log went away" in materialized(result, name)["deltaweave/warnings"].value


@pytest.mark.parametrize("retried_by", ["step", "run"])
def test_an_append_that_dies_after_its_commit_is_not_appended_again(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    monkeypatch: pytest.MonkeyPatch,
    retried_by: str,
) -> None:
    write, died = stores.write_output, []

    def dies_once(*args: Any, **kwargs: Any) -> Any:
        written = write(*args, **kwargs)
        if not died:
            died.append(True)
            raise OSError("the process went away")
        return written

    monkeypatch.setattr(stores, "write_output", dies_once)
    policy = RetryPolicy(max_retries=1) if retried_by == "step" else None

    @asset(metadata={"deltaweave/write": "append"}, retry_policy=policy)
    def log() -> DataFrame:
        return spark.createDataFrame([(1, "a")], SCHEMA)

    def executed_again(before: ExecuteInProcessResult) -> ExecuteInProcessResult:
        tags = {PARENT_RUN_ID_TAG: before.run_id, ROOT_RUN_ID_TAG: before.run_id}
        return run(log, tags=tags)

    result = run(log, raise_on_error=False)
    assert result.success == (retried_by == "step")
    if retried_by == "run":
        result = executed_again(result)
    assert rows(table("log")) == [(1, "a")]

    # What a run executed again brings is new where the run before it had succeeded.
    executed_again(result)
    assert rows(table("log")) == [(1, "a"), (1, "a")]


def test_warnings_of_a_merge_are_in_the_log_and_the_metadata_of_its_run(
    spark: SparkSession, run: Run, table: AssetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, warnings = deltaweave.merge, ("the key index lacks two files.",)

    def warned(*args: Any, **kwargs: Any) -> MergeResult:
        return replace(merge(*args, **kwargs), warnings=warnings)

    monkeypatch.setattr(deltaweave, "merge", warned)

    @merge_asset(keys=["id"])
    def orders() -> DataFrame:
        return spark.createDataFrame([(1, "a")], SCHEMA)

    result = run(orders)

    assert materialized(result, "orders")["deltaweave/warnings"].value == (
        "the key index lacks two files."
    )


def test_an_append_is_not_repeated_after_another_output_fails_the_step(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    fails = [True]

    @multi_asset(
        outs={
            "first": AssetOut(metadata={"deltaweave/write": "append"}),
            "second": AssetOut(metadata={"deltaweave/write": "append"}),
        }
    )
    def both() -> Iterator[Any]:
        yield Output(spark.createDataFrame([(1, "a")], SCHEMA), "first")
        if fails:
            fails.clear()
            raise OSError("the second cannot be had")
        yield Output(spark.createDataFrame([(2, "b")], SCHEMA), "second")

    before = run(both, raise_on_error=False)
    assert [each.is_step_failure for each in before.all_events].count(True) == 1
    assert rows(table("first")) == [(1, "a")]
    for times in (1, 2):  # what follows a step that succeeded is new
        tags = {PARENT_RUN_ID_TAG: before.run_id, ROOT_RUN_ID_TAG: before.run_id}
        before = run(both, tags=tags)
        assert rows(table("first")) == [(1, "a")] * times
        assert rows(table("second")) == [(2, "b")] * times


@pytest.mark.parametrize(
    ("is_graph", "meanwhile", "attempts"),
    [
        (False, None, 1),
        (True, None, 1),
        (False, "DELETE FROM {t} WHERE id = 0", 2),  # another writer's commit still conflicts
    ],
)
def test_outputs_of_one_function_replace_parts_of_one_table(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    is_graph: bool,
    meanwhile: str | None,
    attempts: int,
) -> None:
    target, seen = made(table("shared"), (0, "b"), (9, "c")), list[str]()

    def part(name: str) -> DataFrame:
        seen.append(name)
        if meanwhile is not None and seen == ["a", "b"]:
            sql(target, meanwhile)
        return spark.createDataFrame([(len(seen), name)], SCHEMA)

    def out(name: str) -> AssetOut:
        metadata = {"deltaweave/write": "replace_where", "deltaweave/table": target.path_or_name}
        return AssetOut(metadata={**metadata, "deltaweave/replace_where": f"letter = '{name}'"})

    outs = {name: out(name) for name in "ab"}

    @op
    def first() -> DataFrame:
        return part("a")

    @op
    def second(_first: DataFrame) -> DataFrame:
        return part("b")

    @graph_multi_asset(outs=outs)
    def graph():  # type: ignore[no-untyped-def]
        one = first()
        return {"a": one, "b": second(one)}

    @multi_asset(outs=outs)
    def function() -> Iterator[Any]:
        for name in "ab":
            yield Output(part(name), name)

    for _ in range(2):
        seen.clear()
        run(graph if is_graph else function)
        assert seen == ["a", "b"] * attempts
        meanwhile, attempts = None, 1
    assert rows(target) == [(1, "a"), (2, "b"), (9, "c")]


@pytest.mark.parametrize(
    ("part_of_second", "later", "seen"),
    [
        (0, 500, 0),  # the storage may have rounded it down from after the function began
        (0, 999, 1),
        (1, 500, 1),  # its times have parts of a second
    ],
)
def test_a_commit_in_the_second_in_which_a_function_began_counts_as_later(
    spark: SparkSession, table: AssetTable, part_of_second: int, later: int, seen: int
) -> None:
    target, second = made(table("orders"), (1, "a")), 1_700_000_000_000
    for version, ms in ((0, second - 5000), (1, second + part_of_second)):
        log = f"{target.path_or_name}/_delta_log/{version:020}.json"
        os.utime(log, ns=(ms * 10**6, ms * 10**6))
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    assert version_with_rows_of(target, second + later) == seen


def test_nothing_that_fails_after_events_are_appended_fails_the_run(
    spark: SparkSession, run: Run, table: AssetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*args: Any, **kwargs: Any) -> None:
        raise CommitConflictError("the log went away.")  # an error after which a run tries again

    monkeypatch.setattr("dagster_deltaweave.io_manager.change_events.record_data_version", breaks)

    @merge_on_read_asset(keys=["id"], sequence_by="v")
    def orders() -> DataFrame:
        return spark.createDataFrame([(1, 1)], "id INT, v INT")

    result = run(orders.changes)

    assert result.success
    assert table("orders_changes").read().count() == 1
    warned = materialized(result, "orders_changes")["deltaweave/warnings"].value
    assert "the log went away" in warned
