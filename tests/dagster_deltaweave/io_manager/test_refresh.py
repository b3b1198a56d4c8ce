"""One asset, incremental or rebuilt: partition merges, full refresh, lists of partitions, ids."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    StaticPartitionsDefinition,
    asset,
)
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from dagster_deltaweave import Changes, is_full_refresh, merge_asset, partition_keys, partition_tags
from dagster_deltaweave.io_manager.transaction_ids import ids_of_run
from dagster_deltaweave.logs import merged_partitions
from dagster_deltaweave.tables.declaration import MergeDeclaration
from deltaweave import Table, clauses
from deltaweave.errors import CommitConflictError, StatementError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows

AssetTable = Callable[[str], Table]

LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
REFRESH = {"deltaweave/full_refresh": "true"}
ADD_UP = [
    clauses.when_matched_update(set={"n": "t.n + s.n"}),
    clauses.when_not_matched_insert_all(),
]


def partition_range(start: str, end: str) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": start,
        "dagster/asset_partition_range_end": end,
    }


def orders_of(spark: SparkSession, asked: list[Any], **arguments: Any) -> AssetsDefinition:
    """Orders by letter: row (letter, n) each time; `d` is a deleted one, of no partition's own."""

    @merge_asset(
        keys=["letter"],
        clauses=[
            clauses.when_matched_delete(condition="s.op = 'delete'"),
            clauses.when_matched_update_all(),
            clauses.when_not_matched_insert_all(condition="s.op <> 'delete'"),
        ],
        schema="letter STRING, n BIGINT",
        except_column_list=["op"],
        partitions_def=LETTERS,
        **arguments,
    )
    def orders(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        keys = partition_keys(context)
        asked.append((keys, is_full_refresh(context)))
        changes = [(key, len(asked), "upsert") for key in keys] + [("d", 0, "delete")]
        return spark.createDataFrame(changes, "letter STRING, n INT, op STRING")

    return orders


@pytest.mark.minutes
def test_a_full_refresh_of_all_partitions_rebuilds_the_table_in_one_commit(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """Before it, partitions are merged one by one."""
    asked: list[Any] = []
    orders = orders_of(spark, asked)
    run(orders, partition="a")
    run(orders, partition="b")
    spark.sql(f"INSERT INTO delta.`{table('orders').path_or_name}` VALUES ('stale', 9)")
    before = table("orders").version()

    with pytest.raises(StatementError, match="nothing says which rows a partition has"):
        run(orders, partition="a", tags=REFRESH)
    with pytest.raises(StatementError, match="the run names none of the asset's partitions"):
        run(orders, tags=REFRESH)
    assert table("orders").version() == before

    result = run(orders, tags={**REFRESH, **partition_range("a", "c")})

    assert asked == [
        (["a"], False),
        (["b"], False),
        (["a"], True),
        ([], True),
        (["a", "b", "c"], True),
    ]
    assert rows(table("orders")) == [
        ("a", 5),
        ("b", 5),
        ("c", 5),  # neither the stale row nor the deleted one
    ]
    assert table("orders").version() == before + 1
    metadata = result.asset_materializations_for_node("orders")[0].metadata
    assert metadata["write/mode"].value == "full refresh"
    assert metadata["write/rows"].value == 3


@pytest.mark.minutes
def test_a_full_refresh_of_some_partitions_replaces_their_rows_alone(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    orders = orders_of(spark, [], partition_expr="letter", order="any")
    run(orders, tags=partition_range("a", "c"))

    result = run(orders, partition="b", tags=REFRESH)

    assert rows(table("orders")) == [("a", 1), ("b", 2), ("c", 1)]
    [materialization] = result.asset_materializations_for_node("orders")
    assert materialization.metadata["write/replaced_where"].value == "(letter) IN ('b')"


@pytest.mark.minutes
def test_one_run_merges_partitions_that_are_not_adjacent(
    spark: SparkSession, run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    asked: list[Any] = []
    orders = orders_of(spark, asked)

    run(orders, tags=partition_tags(["c", "a"]))

    assert asked == [(["c", "a"], False)]
    assert rows(table("orders")) == [("a", 1), ("c", 1)]
    assert instance.get_materialized_partitions(AssetKey("orders")) == {"a", "c"}
    with pytest.raises(StatementError, match="the asset has no partition z"):
        run(orders, tags={"deltaweave/partitions": "a, z"})
    with pytest.raises(StatementError, match="also has a partition or range of Dagster's own"):
        run(orders, partition="a", tags={"deltaweave/partitions": "b"})
    assert rows(table("orders")) == [("a", 1), ("c", 1)]


def counts_of(spark: SparkSession, **arguments: Any) -> AssetsDefinition:
    @merge_asset(
        keys=["who"],
        clauses=ADD_UP,
        schema="who STRING, n BIGINT",
        partitions_def=LETTERS,
        **arguments,
    )
    def counts(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        n = len(partition_keys(context))
        return spark.createDataFrame([("x", n)], "who STRING, n BIGINT")

    return counts


@pytest.mark.minutes
def test_a_counting_partition_is_applied_once_also_after_a_full_refresh(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    counts = counts_of(spark, idempotent_by="partition")

    for partition in ("a", "b", "a"):
        run(counts, partition=partition)
    assert rows(table("counts")) == [("x", 2)]
    with pytest.raises(StatementError, match="the run has 2 partitions, and a commit records one"):
        run(counts, tags=partition_tags(["b", "c"]))

    for _ in range(2):
        run(counts, tags={**REFRESH, **partition_range("a", "c")})
    run(counts, partition="c")

    # The refresh holds c, so that c of its own is applied already.
    assert rows(table("counts")) == [("x", 3)]


@pytest.mark.minutes
def test_a_partition_undone_by_a_restore_is_counted_once_more_and_recorded(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    counts = counts_of(spark, idempotent_by="partition")

    @asset(
        partitions_def=LETTERS,
        metadata={"deltaweave/write": "append", "deltaweave/idempotent_by": "partition"},
    )
    def letters(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(context.partition_key,)], "letter STRING")

    def held(name: str) -> list[str]:
        found = merged_partitions(table(name).path_or_name, AssetKey(name))
        return [] if found is None else sorted(found.records)

    for name, each in (("counts", counts), ("letters", letters)):
        run(each, partition="a")
        run(each, partition="b")
        path, version = table(name).path_or_name, table(name).version()
        spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {version - 1}")
        assert held(name) == ["a"]
        for partition in ("b", "b", "a"):
            run(each, partition=partition)
        assert table(name).version() == version + 3  # the RESTORE, its record and b
        assert held(name) == ["a", "b"]
        # A release that recorded nothing has applied c.
        table(name).write(table(name).read().limit(0), "append", applied={f"{name}#c": 0})
        for _ in range(2):
            run(each, partition="c")
        assert table(name).version() == version + 5
        assert held(name) == ["a", "b", "c"]
    assert rows(table("counts")) == [("x", 2)]
    assert rows(table("letters")) == [("a",), ("b",)]


@pytest.mark.minutes
def test_a_delivery_is_applied_once_and_a_later_one_again(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    counts = counts_of(spark, idempotent_by="delivery", order="any")

    for partition, delivery in (
        ("a", "100"),
        ("a", "100"),  # the same once more
        ("b", "100"),  # of another partition
        ("a", "200"),  # delivered again
        ("a", "150"),  # what came before it is over
    ):
        run(counts, partition=partition, tags={"deltaweave/delivery": delivery})

    assert rows(table("counts")) == [("x", 3)]
    with pytest.raises(StatementError, match="the run has no tag deltaweave/delivery"):
        run(counts, partition="a")
    with pytest.raises(StatementError, match="cannot know which deliveries"):
        run(counts, tags={**REFRESH, **partition_range("a", "c")})
    assert rows(table("counts")) == [("x", 3)]


def test_deliveries_that_no_time_names_have_their_own_transaction_ids(table: AssetTable) -> None:
    def ids(partitions: list[str], delivery: str) -> Mapping[str, int]:
        output: Any = SimpleNamespace(
            context=SimpleNamespace(asset_key=AssetKey("counts")),
            table=table("counts"),
            declaration=MergeDeclaration(idempotent_by="delivery"),
            changes=Changes(None),
            upstreams=[],
            partitions=partitions,
            tags={"deltaweave/delivery": delivery},
        )
        return ids_of_run(output).applied

    found = [ids(["a"], "100"), ids(["a"], "sha-1"), ids([], "100")]
    assert found == [{"counts#a": 100}, {"counts#a@sha-1": 0}, {"counts": 100}]


@pytest.mark.minutes
def test_a_run_applies_nothing_after_another_of_its_partition_committed(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """`tests/deltaweave/engine/commit/test_conflicts.py` has commits during a merge."""
    target = table("counts")
    target.create_if_missing("who STRING, n BIGINT")
    one = spark.createDataFrame([("x", 1)], "who STRING, n BIGINT")

    @merge_asset(keys=["who"], clauses=ADD_UP, partitions_def=LETTERS, idempotent_by="partition")
    def counts():  # type: ignore[no-untyped-def]
        target.write(one, "append", applied={"counts#a": 0}, once=True)  # the other run's commit
        return one

    run(counts, partition="a")

    assert rows(target) == [("x", 1)]


@pytest.mark.minutes
def test_a_merge_commits_only_on_what_its_source_goes_on_from(
    spark: SparkSession, table: AssetTable
) -> None:
    target = table("counts")
    target.create_if_missing("who STRING, n BIGINT")
    one = spark.createDataFrame([("x", 1)], "who STRING, n BIGINT")
    one.createOrReplaceTempView("one_more")
    statement = (
        f"MERGE INTO delta.`{target.path_or_name}` t USING one_more s ON t.who = s.who "
        "WHEN MATCHED THEN UPDATE SET n = t.n + s.n WHEN NOT MATCHED THEN INSERT *"
    )

    def merge(version: int, before: int) -> str:
        own = ("feed", version)
        return deltaweave.merge(spark, statement, idempotency=own, applied_before=before).strategy

    merge(3, -1)
    with pytest.raises(CommitConflictError, match="applied feed up to version 3 meanwhile"):
        merge(9, -1)
    merge(9, 3)
    assert merge(9, 3) == "already-applied"

    assert rows(target) == [("x", 2)]
    assert target.last_applied("feed") == 9


@pytest.mark.minutes
def test_a_refresh_of_touched_rows_begins_at_the_beginning(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(keys=["id"], properties={"delta.enableChangeDataFeed": "true"})
    def customers(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        changes = [[(1, "a"), (2, "a")], [(2, "b")]][int(context.run.tags["batch"])]
        return spark.createDataFrame(changes, "id INT, grp STRING")

    seen: list[Any] = []

    @merge_asset(
        keys=["grp"],
        clauses=ADD_UP,
        schema="grp STRING, n BIGINT",
        ins={"customers": AssetIn(metadata={"deltaweave/read": "changes"})},
    )
    def counts(customers):  # type: ignore[no-untyped-def]
        columns = ("id", "grp", "_change_type")
        seen.append(sorted(tuple(row) for row in customers.rows.select(*columns).collect()))
        signed = customers.rows.where("_change_type <> 'none'").selectExpr(
            "grp", "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END n"
        )
        change = signed.groupBy("grp").sum("n").withColumnRenamed("sum(n)", "n")
        return Changes(change, applied=customers)

    for batch in "01":
        run(customers, counts, tags={"batch": batch})
    run(customers, counts, selection=[counts])
    assert seen == [
        [(1, "a", "insert"), (2, "a", "insert")],
        [(2, "a", "update_preimage"), (2, "b", "update_postimage")],
        [],
    ]
    assert rows(table("counts")) == [("a", 1), ("b", 1)]

    run(customers, counts, selection=[counts], tags=REFRESH)
    run(customers, counts, selection=[counts])

    assert seen[3:] == [[(1, "a", "insert"), (2, "b", "insert")], []]
    assert rows(table("counts")) == [("a", 1), ("b", 1)]


@pytest.mark.minutes
def test_a_full_refresh_is_refused_where_it_cannot_be_recognized(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(
        merge_text="MERGE INTO {target} t USING {source} s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1,)], "id INT")

    run(customers)

    result = run(customers, tags=REFRESH, raise_on_error=False)

    assert "a full refresh cannot be derived from a MERGE text" in failure_messages(result)
    assert rows(table("customers")) == [(1,)]


@pytest.mark.minutes
def test_touched_rows_are_not_refreshed_for_some_partitions_alone(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, "a"), (2, "b")], "id INT, letter STRING")

    @merge_asset(
        keys=["id"],
        schema="id INT, letter STRING",
        partitions_def=LETTERS,
        partition_expr="letter",
        ins={"customers": AssetIn(metadata={"deltaweave/read": "touched"})},
    )
    def by_letter(context: AssetExecutionContext, customers):  # type: ignore[no-untyped-def]
        wanted = customers.added.where(F.col("letter").isin(partition_keys(context)))
        return Changes(wanted, applied=customers)

    run(customers)
    every = partition_range("a", "c")
    run(customers, by_letter, selection=[by_letter], tags=every)
    run(customers)
    before = table("by_letter").version()

    # If recorded as applied with c alone, what is new of b would never come.
    with pytest.raises(
        StatementError, match="a full refresh of some partitions cannot be recorded"
    ):
        run(customers, by_letter, selection=[by_letter], partition="c", tags=REFRESH)
    assert table("by_letter").version() == before
    run(customers, by_letter, selection=[by_letter], tags={**REFRESH, **every})
    assert rows(table("by_letter")) == [(1, "a"), (2, "b")]
