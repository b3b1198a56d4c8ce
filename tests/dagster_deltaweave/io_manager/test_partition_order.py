"""The order of partitions: an older one never overwrites what a newer one wrote."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    ExecuteInProcessResult,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    RunsFilter,
    StaticPartitionsDefinition,
    asset,
    instance_for_test,
    materialize,
    with_source_code_references,
)
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import merge_asset
from dagster_deltaweave.io_manager import merge_order
from dagster_deltaweave.partitions import ORDER_TAG, partition_positions
from dagster_deltaweave.tables import MergeDeclaration
from deltaweave import MergeResult, Table, clauses
from deltaweave.errors import OutOfOrderError, StatementError
from tests.dagster_deltaweave.conftest import Run, eventually, failure_messages, rows

AssetTable = Callable[[str], Table]

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-10")
REGIONS = StaticPartitionsDefinition(["eu", "us"])
BERLIN_HOURS = HourlyPartitionsDefinition("2025-10-01-00:00", timezone="Europe/Berlin")
LANDED = DynamicPartitionsDefinition(name="landed")
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"


def prices(
    spark: SparkSession,
    partitions: PartitionsDefinition[str] = DAYS,
    before: Callable[[str], object] = lambda key: None,
    **arguments: Any,
) -> AssetsDefinition:
    """An asset of one item, whose price each partition sets to its own key."""

    @merge_asset(keys=["item"], partitions_def=partitions, **arguments)
    def prices(context: AssetExecutionContext) -> DataFrame:
        key = context.partition_keys[-1]
        before(key)
        return spark.createDataFrame([("tea", key)], "item STRING, price STRING")

    return prices


def partition_range(first: str, last: str) -> dict[str, str]:
    name = "dagster/asset_partition_range"
    return {f"{name}_start": first, f"{name}_end": last}


def log_of(instance: DagsterInstance, partition: str) -> str:
    """What the runs of a partition logged."""
    runs = instance.get_runs(RunsFilter(tags={"dagster/partition": partition}))
    return "\n".join(each.message for run in runs for each in instance.all_logs(run.run_id))


@pytest.mark.minutes
def test_an_older_partition_is_refused_after_a_newer_one(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    asset = prices(spark)
    run(asset, partition=FIRST)
    run(asset, partition=SECOND)
    run(asset, partition=SECOND)  # once more: it is the newest
    version = table("prices").version()

    with pytest.raises(OutOfOrderError, match="would replace newer ones") as raised:
        run(asset, partition=FIRST)

    assert rows(table("prices")) == [("tea", SECOND)]
    assert table("prices").version() == version
    assert (raised.value.partition, raised.value.others) == (FIRST, (SECOND,))
    assert "Nothing was committed" in str(raised.value)
    for remedy in ("deltaweave/order: any", "full refresh", "sequence_by=", "order='any'"):
        assert remedy in str(raised.value)


@pytest.mark.minutes
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param({"order": "any"}, id="any_order"),
        pytest.param({"clauses": [clauses.when_not_matched_insert_all()]}, id="insert_only"),
        pytest.param({"sequence_by": "price"}, id="sequence"),
    ],
)
def test_merges_for_which_order_does_not_matter_are_not_refused(
    spark: SparkSession, run: Run, table: AssetTable, declared: dict[str, Any]
) -> None:
    asset = prices(spark, **declared)
    run(asset, partition=SECOND)
    assert run(asset, partition=FIRST).success
    kept = FIRST if declared.get("order") == "any" else SECOND
    assert rows(table("prices")) == [("tea", kept)]


@pytest.mark.minutes
def test_a_run_may_go_back_in_the_order_and_newer_partitions_follow_it(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    asset = prices(spark)
    for partition in (FIRST, SECOND, THIRD):
        run(asset, partition=partition)

    run(asset, partition=FIRST, tags={ORDER_TAG: "any"})
    assert rows(table("prices")) == [("tea", FIRST)]
    run(asset, partition=SECOND)
    run(asset, partition=THIRD)
    assert rows(table("prices")) == [("tea", THIRD)]
    with pytest.raises(OutOfOrderError, match=f"partition {THIRD}, which is newer than {SECOND}"):
        run(asset, partition=SECOND)


@pytest.mark.minutes
def test_partitions_that_a_restore_took_back_are_merged_again_in_order(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    asset = prices(spark)
    for partition in (FIRST, SECOND, THIRD):
        run(asset, partition=partition)
    path, version = table("prices").path_or_name, table("prices").version()
    spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {version - 2}")

    run(asset, partition=SECOND)
    assert rows(table("prices")) == [("tea", SECOND)]
    with pytest.raises(OutOfOrderError, match=f"partition {SECOND}, which is newer than {FIRST}"):
        run(asset, partition=FIRST)
    run(asset, partition=THIRD)
    assert rows(table("prices")) == [("tea", THIRD)]


@pytest.mark.minutes
def test_a_full_refresh_is_newer_than_all_its_partitions(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    letters = StaticPartitionsDefinition(["c", "b", "a"])  # c is the oldest
    asset = prices(spark, letters)
    everything = partition_range("c", "a")
    run(asset, tags={"deltaweave/full_refresh": "true", **everything})

    with pytest.raises(OutOfOrderError, match="partition a, which is newer than b"):
        run(asset, partition="b")
    with pytest.raises(OutOfOrderError, match="partition a, which is newer than c"):
        run(asset, tags=partition_range("c", "b"))
    run(asset, tags=everything)  # older ones together with all newer ones
    run(asset, partition="a")
    assert rows(table("prices")) == [("tea", "a")]


@pytest.mark.minutes
def test_a_newer_partition_is_refused_after_an_older_ones_run_failed(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    broken = [True]
    asset = prices(spark, before=lambda key: 1 / 0 if key == FIRST and broken else None)
    failed = run(asset, partition=FIRST, raise_on_error=False)

    with pytest.raises(OutOfOrderError, match=f"because its run {failed.run_id} failed") as raised:
        run(asset, partition=SECOND)
    assert (raised.value.partition, raised.value.others) == (SECOND, (FIRST,))
    assert not table("prices").exists()

    broken.clear()
    run(asset, partition=FIRST)
    run(asset, partition=SECOND)
    assert rows(table("prices")) == [("tea", SECOND)]


@pytest.mark.minutes
def test_of_two_concurrent_commits_the_older_is_retried_and_refused(
    spark: SparkSession, run: Run, table: AssetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset, merge = prices(spark), deltaweave.merge

    def overtaken(*arguments: Any, **named: Any) -> MergeResult:
        monkeypatch.setattr(deltaweave, "merge", merge)
        run(asset, partition=SECOND, tags={ORDER_TAG: "any"})  # it waits for no other run
        return merge(*arguments, **named)

    monkeypatch.setattr(deltaweave, "merge", overtaken)
    result = run(asset, partition=FIRST, raise_on_error=False)

    kinds = [event.event_type_value for event in result.all_node_events]
    assert kinds.count("STEP_UP_FOR_RETRY") == 1
    assert f"partition {SECOND}, which is newer than {FIRST}" in failure_messages(result)
    assert rows(table("prices")) == [("tea", SECOND)]


ONE_SLOT = {"concurrency": {"pools": {"default_limit": 1, "granularity": "op"}}}


@pytest.mark.minutes
@pytest.mark.parametrize("settings", [{}, ONE_SLOT], ids=["no_limit", "one_slot_in_the_pool"])
def test_a_run_waits_for_the_run_of_an_older_partition(
    spark: SparkSession,
    resources: dict[str, Any],
    table: AssetTable,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_PAUSE_SECONDS", 0.5)
    has_begun, may_merge = Event(), Event()
    begun: list[str] = []

    @asset(partitions_def=DAYS)
    def landed(context: AssetExecutionContext) -> None:
        if context.partition_key == FIRST:
            has_begun.set()
            assert may_merge.wait(120)

    merged = prices(spark, before=begun.append, deps=[landed])
    with instance_for_test(settings) as instance, ThreadPoolExecutor(2) as threads:

        def run(partition: str) -> ExecuteInProcessResult:
            return materialize(
                [landed, merged], partition_key=partition, instance=instance, resources=resources
            )

        older = threads.submit(run, FIRST)
        # Two runs that begin at once in one process may block each other: Python's logging does.
        assert has_begun.wait(120)
        newer = threads.submit(run, SECOND)
        [of_older] = instance.get_runs()[-1:]
        awaited = f"waits for run {of_older.run_id} of partition {FIRST}"
        eventually(lambda: awaited in log_of(instance, SECOND))
        may_merge.set()
        assert older.result().success
        assert newer.result().success

    assert begun == [FIRST, SECOND]  # it waits before its function is called
    assert rows(table("prices")) == [("tea", SECOND)]
    history = table("prices").read(table("prices").version() - 1)
    assert [row.price for row in history.collect()] == [FIRST]


@pytest.mark.parametrize(
    ("partitions", "in_order"),
    [
        (DailyPartitionsDefinition("01-12-2025", fmt="%d-%m-%Y"), ["31-12-2025", "01-01-2026"]),
        (StaticPartitionsDefinition(["small", "large"]), ["small", "large"]),
        (DynamicPartitionsDefinition(name="landed"), ["2026-01", "2026-02"]),
        (MultiPartitionsDefinition({"z": DAYS, "a": REGIONS}), [f"us|{FIRST}", f"eu|{SECOND}"]),
    ],
)
def test_partitions_are_ordered_by_time_or_as_defined_or_by_their_keys(
    partitions: PartitionsDefinition[str], in_order: list[str], instance: DagsterInstance
) -> None:
    position = partition_positions(partitions, instance)
    assert position is not None
    if isinstance(partitions, DynamicPartitionsDefinition):
        assert position(in_order[0]) is None  # those that were deleted do not count, either
        instance.add_dynamic_partitions("landed", in_order)
    older, newer = map(position, in_order)
    assert older < newer


@pytest.mark.parametrize(
    ("partitions", "key", "is_there"),
    [
        # The asset was daily once.
        (MonthlyPartitionsDefinition("2025-01-01"), "2026-01-15", False),
        (MonthlyPartitionsDefinition("2025-01-01"), "2026-01-01", True),
        (BERLIN_HOURS, "2025-10-26-02:30", False),
        (BERLIN_HOURS, "2025-10-26-02:00", True),  # which comes twice
        (BERLIN_HOURS, "2025-10-26-02:00+0100", True),
        (MultiPartitionsDefinition({"z": DAYS, "a": REGIONS}), f"uk|{FIRST}", False),
        (MultiPartitionsDefinition({"z": DAYS, "a": LANDED}), f"uk|{FIRST}", False),
    ],
)
def test_partitions_that_the_asset_lacks_now_do_not_count(
    partitions: PartitionsDefinition[str], key: str, is_there: bool, instance: DagsterInstance
) -> None:
    position = partition_positions(partitions, instance)
    assert position is not None
    assert (position(key) is not None) == is_there


def test_links_to_the_code_of_an_ordered_asset_show_its_function() -> None:
    asset = prices(cast("SparkSession", None))
    [linked] = with_source_code_references([asset])
    [metadata] = cast("AssetsDefinition", linked).metadata_by_key.values()
    [link] = metadata["dagster/code_references"].code_references
    lines = Path(link.file_path).read_text(encoding="utf-8").splitlines()
    assert lines[link.line_number - 1].strip().startswith('@merge_asset(keys=["item"]')


def test_partitions_without_time_have_no_order_and_those_of_a_day_tie(
    instance: DagsterInstance,
) -> None:
    letters = StaticPartitionsDefinition(["a", "b"])
    assert (
        partition_positions(MultiPartitionsDefinition({"x": letters, "y": REGIONS}), instance)
        is None
    )
    position = partition_positions(MultiPartitionsDefinition({"z": DAYS, "a": REGIONS}), instance)
    assert position is not None
    assert position(f"us|{FIRST}") == position(f"eu|{FIRST}")


UPDATE, INSERT = clauses.when_matched_update_all(), clauses.when_not_matched_insert_all()
DELETE = clauses.when_matched_delete("s.op = 'delete'")
SOFT_DELETE = clauses.when_matched_update({"gone": "true", "at": "s.at"}, "s.op = 'delete'")
INSERT_LIVE = clauses.when_not_matched_insert_all("s.op <> 'delete'")
UPDATE_OF_SOME = clauses.when_matched_update({"v": "s.v", "at": "s.at"})


@pytest.mark.parametrize(
    ("declared", "needs_order"),
    [
        ({"clauses": (UPDATE, INSERT)}, True),
        ({"clauses": (DELETE,)}, True),
        ({"clauses": (clauses.when_not_matched_by_source_delete(), INSERT)}, True),
        ({"merge_text": "MERGE INTO {target} USING {source}"}, True),
        ({"clauses": (INSERT,)}, False),
        ({"clauses": (UPDATE, INSERT), "order": "any"}, False),
        ({"clauses": (UPDATE, INSERT), "sequence_by": "at"}, False),
        # An older row would be inserted again after a newer delete,
        ({"clauses": (DELETE, UPDATE, INSERT), "sequence_by": "at"}, True),
        # or after a delete that only marks rows, and marks none that is not there,
        ({"clauses": (SOFT_DELETE, UPDATE, INSERT_LIVE), "sequence_by": "at"}, True),
        # and columns that only the older row sets would be missing.
        ({"clauses": (UPDATE_OF_SOME, INSERT), "sequence_by": "at"}, True),
        ({"clauses": (UPDATE, INSERT), "sequence_by": "at", "schema_policy": "add"}, True),
    ],
)
def test_which_merges_need_their_partitions_in_order(
    declared: dict[str, Any], needs_order: bool
) -> None:
    assert MergeDeclaration(**declared).needs_order is needs_order


@pytest.mark.minutes
def test_the_newer_row_wins_by_its_sequence_also_for_deletes(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    schema = "id INT, name STRING, at INT, op STRING"
    batches = {
        "before": [(k, "old", 5, "") for k in range(1, 7)] + [(7, "old", None, "")],
        "after": [
            (1, "new", 6, ""),
            (2, "new", 5, ""),  # as old: the later merge wins
            (3, "new", 4, ""),
            (4, "", 6, "delete"),
            (5, "", 4, "delete"),
            (6, "new", None, ""),
            (7, "new", 1, ""),  # what has no sequence is older than all
            (8, "new", None, ""),
        ],
    }
    batch = ["before"]

    @merge_asset(
        keys=["id"],
        clauses=[DELETE, UPDATE, INSERT],
        schema="id INT, name STRING, at INT",
        except_column_list=["op"],
        sequence_by="at",
    )
    def customers() -> DataFrame:
        return spark.createDataFrame(batches[batch[0]], schema)

    run(customers)
    batch[:] = ["after"]
    run(customers)

    names = {row[0]: row[1] for row in rows(table("customers"))}
    kept = {1: "new", 2: "new", 3: "old", 5: "old", 6: "old", 7: "new", 8: "new"}
    assert names == kept


@pytest.mark.minutes
def test_a_sequence_that_the_table_would_cut_is_refused(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    hours = [18]

    @merge_asset(keys=["id"], schema="id INT, name STRING, at DATE", sequence_by="at")
    def customers() -> DataFrame:
        at = f"TIMESTAMP '2026-01-01 {hours[0]:02}:00:00' AS at"
        return spark.sql(f"SELECT 1 AS id, 'at {hours[0]}' AS name, {at}")

    run(customers)  # into a table that it creates
    hours[:] = [10]
    with pytest.raises(StatementError, match="at is timestamp in the changes and date in"):
        run(customers)
    assert [row[1] for row in rows(table("customers"))] == ["at 18"]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"order": "newest"}, "order is 'newest'"),
        ({"sequence_by": "at", "except_column_list": ["AT"]}, "do not except it"),
        (
            {"sequence_by": "at", "clauses": [clauses.when_matched_update({"n": "s.n"})]},
            "must set at to that of the changes",
        ),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused_at_load(
    declared: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match=problem):
        merge_asset(keys=["id"], **declared)(lambda: None)
    text = {"merge_text": "MERGE INTO {target} USING {source}", "sequence_by": "at"}
    with pytest.raises(DagsterInvalidDefinitionError, match="compare the sequences there"):
        merge_asset(**text)(lambda: None)  # type: ignore[arg-type]
