"""A full refresh of some partitions undoes nothing of newer ones, and leaves no key twice."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import pytest
from dagster import (
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    multi_asset,
)

from dagster_deltaweave import merge_asset, partition_keys, partition_tags
from deltaweave import Table, clauses
from deltaweave.errors import AmbiguousMatchError, OutOfOrderError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows

AssetTable = Callable[[str], Table]
Rows = list[tuple[Any, ...]]

LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
REFRESH = {"deltaweave/full_refresh": "true"}
ANY_ORDER = {"deltaweave/order": "any"}
SCHEMA = "id BIGINT, part STRING, v BIGINT"


def orders_of(
    by_partition: Mapping[str, Rows],
    called: list[list[str]],
    partitions: PartitionsDefinition[str] = LETTERS,
    **arguments: Any,
) -> AssetsDefinition:
    """Orders whose rows (id, part, v, op) each partition has; `d` deletes."""

    @merge_asset(
        **{
            "keys": ["id"],
            "partition_expr": "part",
            "partitions_def": partitions,
            "except_column_list": ["op"],
            "schema": SCHEMA,
            **arguments,
        }
    )
    def orders(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        keys = partition_keys(context)
        called.append(keys)
        found = [row for key in keys for row in by_partition[key]]
        types = {"id": "Int64", "part": "str", "v": "int64", "op": "str"}
        return pd.DataFrame(found, columns=["id", "part", "v", "op"]).astype(types)

    return orders


def refresh_of(*partitions: str, **tags: str) -> dict[str, str]:
    return {**partition_tags(partitions), **REFRESH, **tags}


DELETES = clauses.when_matched_delete(condition="s.op = 'd'")
INSERTS = clauses.when_not_matched_insert_all(condition="s.op <> 'd'")
UPDATES_V = [DELETES, clauses.when_matched_update(set={"v": "s.v"}), INSERTS]
UPDATES_ROW = [DELETES, clauses.when_matched_update_all(), INSERTS]
HISTORY: dict[str, Rows] = {
    "a": [(1, "a", 1, "u"), (2, "a", 1, "u")],
    "b": [(1, "b", 2, "u"), (2, "b", 2, "d")],
    "c": [],
}


@pytest.mark.minutes
def test_what_newer_partitions_wrote_is_not_undone(run: Run, table: AssetTable) -> None:
    called: list[list[str]] = []
    orders = orders_of(HISTORY, called, clauses=UPDATES_V)
    run(orders, partition="a")
    run(orders, partition="b")
    held = [(1, "a", 2)]  # b updated 1 and deleted 2
    assert rows(table("orders")) == held
    called.clear()

    for tags in (refresh_of("a"), refresh_of("a", "c")):  # c is not merged, and b not in the run
        with pytest.raises(OutOfOrderError, match="are merged: b") as raised:
            run(orders, tags=tags)
        assert (raised.value.partition, raised.value.others) == ("a", ("b",))
        for way in ("together with all newer", "deltaweave/order: any"):
            assert way in str(raised.value)
    assert called == []  # refused before the function is called
    with pytest.raises(AmbiguousMatchError, match="id=1") as doubled:
        run(orders, tags=refresh_of("b"))  # the newest; its key 1 is in a row of a
    assert doubled.value.keys == ({"id": 1},)
    assert rows(table("orders")) == held

    run(orders, tags=refresh_of("a", **ANY_ORDER))
    assert rows(table("orders")) == [
        (1, "a", 1),  # b's update is lost,
        (2, "a", 1),  # and its delete undone, as the tag allows
    ]
    run(orders, partition="b")  # the order goes on from a
    assert rows(table("orders")) == held


@pytest.mark.minutes
def test_a_key_that_moved_to_a_newer_partition_is_not_left_twice(
    run: Run, table: AssetTable
) -> None:
    orders = orders_of(HISTORY, [], clauses=UPDATES_ROW)
    run(orders, partition="a")
    run(orders, partition="b")
    held = [(1, "b", 2)]  # b moved 1 to itself, and deleted 2
    assert rows(table("orders")) == held

    refused: list[tuple[dict[str, str], type[Exception], str]] = [
        (refresh_of("a"), OutOfOrderError, "are merged: b"),
        (refresh_of("a", **ANY_ORDER), AmbiguousMatchError, "id=1"),
    ]
    for tags, error, why in refused:
        with pytest.raises(error, match=why):
            run(orders, tags=tags)
        assert rows(table("orders")) == held
    for partitions in ("b", "ab", "bc", "abc"):  # the newest, all merged ones, c too, all
        run(orders, tags=refresh_of(*partitions))
        assert rows(table("orders")) == held, partitions


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("declared", "refused"),
    [
        ({"order": "any"}, True),
        ({"clauses": [INSERTS]}, True),
        ({"order": "any", "unique_keys": False}, False),
    ],
    ids=["any_order", "insert_only", "several_rows_for_a_key"],
)
def test_without_an_order_only_keys_of_other_rows_are_refused(
    run: Run, table: AssetTable, declared: dict[str, Any], refused: bool
) -> None:
    by_partition: dict[str, Rows] = {
        "a": [(1, "a", 1, "u"), (None, "a", 1, "u")],
        "b": [(2, "b", 1, "u"), (None, "b", 1, "u")],
    }
    orders = orders_of(by_partition, [], **declared)
    run(orders, partition="a")
    run(orders, partition="b")

    by_partition["a"] = [(3, "a", 2, "u"), (None, "a", 2, "u")]
    run(orders, tags=refresh_of("a"))
    of_b = [(2, "b", 1), (None, "b", 1)]
    assert rows(table("orders")) == [
        (2, "b", 1),
        (3, "a", 2),  # 1 is no longer there
        (None, "a", 2),  # a null is equal to nothing, also to the null of b
        (None, "b", 1),
    ]

    by_partition["a"] = [(2, "a", 3, "u"), (4, "a", 3, "u")]
    if refused:
        with pytest.raises(AmbiguousMatchError, match="id=2"):  # which b has
            run(orders, tags=refresh_of("a"))
        assert len(rows(table("orders"))) == 4
    else:
        run(orders, tags=refresh_of("a"))
        assert rows(table("orders")) == [(2, "a", 3), *of_b[:1], (4, "a", 3), *of_b[1:]]


DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
DAYS_OF_REGIONS = MultiPartitionsDefinition(
    {"day": DAYS, "region": StaticPartitionsDefinition(["eu", "us"])}
)
LANDED = DynamicPartitionsDefinition(name="landed")


@pytest.mark.minutes
def test_the_order_of_a_refresh_is_that_of_the_partitions(
    run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    """Ranges of days, several dimensions, and a dynamic partition that was deleted."""

    def order_of(name: str, *keys: str, **arguments: Any) -> AssetsDefinition:
        by_partition = {key: [(number, key, 1, "u")] for number, key in enumerate(keys)}
        orders = orders_of(by_partition, [], name=name, **arguments)
        for key in keys:
            run(orders, partition=key)
        return orders

    def refused(orders: AssetsDefinition, tags: Mapping[str, str], *newer: str) -> None:
        with pytest.raises(OutOfOrderError) as raised:
            run(orders, tags={**tags, **REFRESH})
        assert raised.value.others == newer

    def day_range(first: str, last: str) -> dict[str, str]:
        name = "dagster/asset_partition_range"
        return {f"{name}_start": first, f"{name}_end": last}

    first, second, third = "2026-01-01", "2026-01-02", "2026-01-03"
    days = order_of("days", first, second, third, partitions=DAYS)
    refused(days, day_range(first, second), third)
    refused(days, day_range(first, first), third, second)
    run(days, tags={**day_range(second, third), **REFRESH})
    run(days, partition=third)  # still the newest

    regions = order_of(
        "regions",
        *(f"{day}|{region}" for day in (first, second) for region in ("eu", "us")),
        partitions=DAYS_OF_REGIONS,
        partition_expr={"day": "split(part, '[|]')[0]", "region": "split(part, '[|]')[1]"},
    )
    refused(regions, partition_tags([f"{first}|us"]), f"{second}|eu")
    run(regions, tags=refresh_of(f"{second}|eu"))  # us of the same day is not newer

    instance.add_dynamic_partitions("landed", ["1", "2", "3"])
    landed = order_of("landed", "1", "2", partitions=LANDED)
    refused(landed, partition_tags(["1"]), "2")
    instance.delete_dynamic_partition("landed", "2")
    run(landed, tags=refresh_of("1"))  # what Dagster lacks has no place in the order
    assert rows(table("landed")) == [(0, "1", 1), (1, "2", 1)]


@pytest.mark.minutes
def test_each_asset_of_a_step_is_looked_at_for_itself(run: Run, table: AssetTable) -> None:
    merged = {"deltaweave/write": "merge", "deltaweave/keys": "part", "partition_expr": "part"}
    called: list[str] = []

    @multi_asset(
        outs={
            "any": AssetOut(metadata={**merged, "deltaweave/order": "any"}),
            "by": AssetOut(metadata=merged),
        },
        partitions_def=LETTERS,
    )
    def both(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        called.append(context.partition_key)
        one = pd.DataFrame({"part": [context.partition_key], "n": [len(called)]})
        return one, one

    run(both, partition="a")
    run(both, partition="b")
    result = run(both, partition="a", tags=REFRESH, raise_on_error=False)

    assert "are merged: b" in failure_messages(result)
    assert rows(table("any")) == [("a", 3), ("b", 2)]  # refreshed: it has no order
    assert rows(table("by")) == [("a", 1), ("b", 2)]  # refused


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("declared", "others", "why"),
    [
        ({}, [(5, "c", 1)], "are merged: c"),
        ({"order": "any"}, [(6, "c", 1)], "id=6"),
    ],
    ids=["newer", "same_key"],
)
def test_a_commit_during_a_refresh_makes_it_look_again(
    run: Run,
    table: AssetTable,
    monkeypatch: pytest.MonkeyPatch,
    declared: dict[str, Any],
    others: Sequence[tuple[Any, ...]],
    why: str,
) -> None:
    monkeypatch.setattr("dagster_deltaweave.io_manager.step_attempts.SECONDS_BEFORE_RETRY", 0)
    by_partition: dict[str, Rows] = {"b": [(1, "b", 1, "u")]}
    orders = orders_of(by_partition, [], **declared)
    run(orders, partition="b")
    by_partition["b"].append((6, "b", 1, "u"))
    by_partition["c"] = [(*row, "u") for row in others]
    write, committed = Table.write, list[int]()

    def overtaken(target: Table, *arguments: Any, **named: Any) -> Any:
        if not committed:  # just before the refresh is written
            committed.append(1)
            run(orders_of(by_partition, [], **declared), partition="c", tags=ANY_ORDER)
        return write(target, *arguments, **named)

    monkeypatch.setattr(Table, "write", overtaken)
    result = run(orders, tags=refresh_of("b"), raise_on_error=False)

    kinds = [event.event_type_value for event in result.all_node_events]
    assert kinds.count("STEP_UP_FOR_RETRY") == 1
    assert why in failure_messages(result)
    assert rows(table("orders")) == [(1, "b", 1), *others]
