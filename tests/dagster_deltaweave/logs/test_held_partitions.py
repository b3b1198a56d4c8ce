"""Which partitions a table holds, by its log, without Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    DailyPartitionsDefinition,
    asset,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import merge_asset
from dagster_deltaweave.io_manager import merge_order
from dagster_deltaweave.io_manager.merge_order import MergedPartitions
from dagster_deltaweave.logs.delta_log import LogAt, last_change
from dagster_deltaweave.logs.held_partitions import (
    holds_delivery,
    merged_partitions,
    record_of,
    records_id,
    records_of_merge,
)
from deltaweave import Table
from tests.dagster_deltaweave.conftest import Run
from tests.support.made_logs import CREATED, ID, MadeTable, checkpoint, commit, restore

ORDERS = AssetKey("orders")
RECORDS = records_id(ID, ORDERS)


def merge(
    table: Path,
    version: int,
    *partitions: str,
    order: str | None = None,
    more_ids: Mapping[str, int] | None = None,
) -> None:
    """Commit a merge as a run does, which looks at the log."""
    merged = dict.fromkeys(partitions, 7)
    ids = records_of_merge(LogAt(str(table)), version - 1, RECORDS, merged, order=order)
    ids |= more_ids or {}
    commit(table, version, *({"txn": {"appId": n, "version": v}} for n, v in ids.items()))


def held(table: Path) -> list[str] | None:
    found = merged_partitions(str(table), ORDERS)
    return None if found is None else sorted(found.records)


def test_what_a_restore_took_back_is_merged_no_more(tmp_path: Path) -> None:
    assert held(tmp_path) is None
    commit(tmp_path, 0, CREATED, operation="CREATE TABLE")
    assert held(tmp_path) == []
    for version, partition in enumerate(("a", "b", "c"), 1):
        merge(tmp_path, version, partition)
    assert held(tmp_path) == ["a", "b", "c"]
    restore(tmp_path, 4, to=1)
    assert held(tmp_path) == ["a"]
    commit(tmp_path, 5, operation="OPTIMIZE")
    restore(tmp_path, 6, to=2)  # as if the first one had not been
    assert held(tmp_path) == ["a", "b"]
    merge(tmp_path, 7, "d")
    assert held(tmp_path) == ["a", "b", "d"]
    # The merge recorded what was taken back, so nothing before it is read again.
    for version in range(1, 7):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    ids = {f"{RECORDS}#{key}": 7 for key in "abc"}
    checkpoint(tmp_path, 6, {**ids, RECORDS: 3})
    assert held(tmp_path) == ["a", "b", "d"]
    merge(tmp_path, 8, "c")
    assert held(tmp_path) == ["a", "b", "c", "d"]


def test_commits_since_a_restore_hide_nothing_that_it_took_back(tmp_path: Path) -> None:
    commit(tmp_path, 0, CREATED)
    merge(tmp_path, 1, "a")
    merge(tmp_path, 2, "b")
    restore(tmp_path, 3, to=1)
    for version in range(4, 604):  # while nothing is merged
        commit(tmp_path, version, operation="OPTIMIZE")
    assert held(tmp_path) == ["a"]
    ids = records_of_merge(LogAt(str(tmp_path)), 603, RECORDS, {"c": 7}, looked=1)
    assert ids == {f"{RECORDS}#b": -1, f"{RECORDS}#c": 7, RECORDS: 603}


class OrderedTable(MadeTable):
    """One whose days are merged in order."""

    def merge(self, day: str) -> None:
        """Merge a day as a run does, in order."""
        merged = MergedPartitions.of(ORDERS, cast("Table", self), str)
        assert merged.newer_than([day]) == []
        order_ids = merged.lease_of([day]).marks
        merge(self.path, merged.version + 1, day, order=merged.lease, more_ids=order_ids)

    @property
    def newest(self) -> str | None:
        return MergedPartitions.of(ORDERS, cast("Table", self), str).newest


def test_what_was_taken_back_is_merged_in_order_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_order, "LogOf", lambda snapshot: LogAt(snapshot.data_path))
    table = OrderedTable(tmp_path)
    commit(tmp_path, 0, CREATED)
    for day in "1234":
        table.merge(day)
    assert table.newest == "4"
    restore(tmp_path, 5, to=2)
    assert table.newest == "2"
    table.merge("2")  # no newer one is merged, so this marks nothing in the order
    for day in "34":
        table.merge(day)
    assert (table.newest, held(tmp_path)) == ("4", ["1", "2", "3", "4"])
    restore(tmp_path, 9, to=0)
    assert (table.newest, held(tmp_path)) == (None, [])
    for day in "12":
        table.merge(day)
    assert (table.newest, held(tmp_path)) == ("2", ["1", "2"])
    commit(tmp_path, 12, CREATED, operation="CREATE OR REPLACE TABLE")
    assert (table.newest, held(tmp_path)) == (None, [])


def test_a_recreated_table_and_another_asset_hold_nothing(tmp_path: Path) -> None:
    commit(tmp_path, 0, CREATED)
    merge(tmp_path, 1, "a")
    others = merged_partitions(str(tmp_path), AssetKey("others"))
    assert others is not None
    assert others.records == {}
    commit(tmp_path, 2, {"metaData": {"id": "33333333"}}, operation="CREATE OR REPLACE TABLE")
    assert held(tmp_path) == []


def test_a_hundred_thousand_partitions_are_read_at_once(tmp_path: Path) -> None:
    commit(tmp_path, 0, CREATED)
    ids = {f"{RECORDS}#day-{number:06}": 7 for number in range(100_000)}
    checkpoint(tmp_path, 0, {**ids, RECORDS: 0})
    merge(tmp_path, 1, "day-100000")
    assert (tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet").stat().st_size < 3_000_000
    began = time.perf_counter()
    found = held(tmp_path)
    assert len(found or ()) == 100_001
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    ("record", "is_held"),
    [
        (record_of("5@7", 0), True),
        (record_of("6@7", 0), False),  # another delivery, also if it is older
        (record_of(None, 101), True),  # whatever had landed when a run by hand began
        (record_of(None, 100), False),
        (record_of(None, 2**63), True),
    ],
)
def test_a_record_is_of_one_delivery_or_of_all_before_a_time(record: int, is_held: bool) -> None:
    assert holds_delivery(record, "5@7", 100) is is_held
    assert record < 2**63


DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-10")
FIRST, SECOND, THIRD = "2026-01-01", "2026-01-02", "2026-01-03"


@pytest.mark.minutes
def test_each_kind_of_write_records_its_partitions(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    def rows(key: str) -> DataFrame | None:
        return None if key == THIRD else spark.createDataFrame([(1, key)], "id INT, day STRING")

    @merge_asset(keys=["id"], partitions_def=DAYS, partition_expr="day")
    def ordered(context: AssetExecutionContext) -> DataFrame | None:
        return rows(context.partition_key)

    @merge_asset(keys=["id"], partitions_def=DAYS, order="any", skip_unchanged_updates=True)
    def unordered(context: AssetExecutionContext) -> DataFrame | None:
        return rows(context.partition_key)

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def replaced(context: AssetExecutionContext) -> DataFrame | None:
        return rows(context.partition_key)

    def found(name: str) -> Mapping[str, int]:
        held = merged_partitions(table(name).path_or_name, AssetKey(name))
        return {} if held is None else held.records

    began = time.time_ns() - 10**9
    for each in (ordered, unordered, replaced):
        name = each.key.to_user_string()
        run(each, partition=FIRST, tags={"deltaweave/fingerprint": "5@7"})
        run(each, partition=SECOND)
        changed = last_change(table(name)).version
        run(each, partition=THIRD)  # nothing is merged of it, which counts, too
        assert last_change(table(name)).version == changed
        assert sorted(found(name)) == [FIRST, SECOND, THIRD]
        assert found(name)[FIRST] == record_of("5@7", 0)
        assert began < found(name)[SECOND] < time.time_ns()

    spark.sql(f"RESTORE delta.`{table('ordered').path_or_name}` TO VERSION AS OF 1")
    assert list(found("ordered")) == [FIRST]
    run(ordered, partition=SECOND, tags={"deltaweave/order": "any"})
    assert sorted(found("ordered")) == [FIRST, SECOND]
    run(ordered, partition=SECOND, tags={"deltaweave/full_refresh": "true"})
    assert sorted(found("ordered")) == [FIRST, SECOND]
