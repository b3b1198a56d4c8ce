"""The landing sensor of a table: it requests what has landed and is not in the table."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    RunsFilter,
    StaticPartitionsDefinition,
    instance_for_test,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.test_utils import create_run_for_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_partition_sensor,
    merge_asset,
)
from dagster_deltaweave.logs import (
    merged_partitions,
    record_of,
    records_id,
    records_of_merge,
)
from dagster_deltaweave.logs.merged_batch import LogAt
from dagster_deltaweave.partitions import unmerged_attempts
from tests.dagster_deltaweave.ticks import requested, tick

DAYS = ["day-1", "day-2", "day-3", "day-4"]
ORDERS = AssetKey("orders")
RECORDS = records_id("11111111", ORDERS)
SUCCESS, FAILURE = DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE


class Shop:
    """Days that land, a sensor, and runs that merge them into a table, of which only a log is made.

    Runs keep the order of partitions as real ones do.
    """

    def __init__(self, instance: DagsterInstance, place: Path, **declared: Any) -> None:
        self.instance, self.landing, self.declared = instance, place / "landing", declared
        self.landing.mkdir(parents=True)
        self.root = place / "tables"
        self.delivered: dict[str, int] = {}
        self.bad: set[str] = set()
        self.number = 0
        self.merged: list[tuple[str, int]] = []
        self.arguments: dict[str, Any] = {"retry_after_seconds": 0}
        self.name = "orders_landed"

    @property
    def log(self) -> Path:
        return self.root / "orders" / "_delta_log"

    def land(self, *days: str, bad: bool = False) -> None:
        for day in days:
            self.number += 1
            self.delivered[day] = self.number
            (self.bad.add if bad else self.bad.discard)(day)
            (self.landing / day).mkdir(exist_ok=True)
            marker = self.landing / day / "_SUCCESS"
            marker.touch()
            os.utime(marker, ns=(0, self.number * 10**9))
        time.sleep(0.06)  # a run that begins now has read them

    def tick(self, cursor: str | None = None) -> SensorExecutionData:
        return tick(self.definitions(), self.instance, cursor)

    def definitions(self) -> Definitions:
        @merge_asset(keys=["id"], partitions_def=StaticPartitionsDefinition(DAYS), **self.declared)
        def orders(context: AssetExecutionContext) -> None: ...

        sensor = build_partition_sensor(
            name=self.name,
            target=AssetSelection.assets(orders),
            directory=self.landing,
            partitions_def=orders.partitions_def,  # type: ignore[arg-type]
            **self.arguments,
        )
        spark = SparkResource()
        manager = SparkDeltaIOManager(root=str(self.root), spark=spark)
        return Definitions([orders], sensors=[sensor], resources={"io_manager": manager})

    def said(self) -> str:
        data = self.tick()
        assert requested(data) == []
        return data.skip_message or ""

    def run(self, day: str, tags: dict[str, str] | None = None) -> bool:
        """A run of a day, by hand without tags."""
        tags = {"dagster/partition": day, **(tags or {})}
        held = self.held()
        older = [
            each
            for each, _ in unmerged_attempts(self.instance, ORDERS)
            if each < day and each not in held and each > max(held, default="")
        ]
        is_late = "deltaweave/order" not in tags and any(each > day for each in held)
        fails = day in self.bad or bool(older) or is_late
        if older:
            tags["deltaweave/waited_for"] = older[0]
        status = FAILURE if fails else SUCCESS
        run = create_run_for_test(
            self.instance, "shop", tags=tags, status=status, asset_selection=frozenset([ORDERS])
        )
        planned = AssetMaterializationPlannedData(ORDERS, partition=day)
        event = DagsterEvent.build_asset_materialization_planned_event("shop", "orders", planned)
        self.instance.report_dagster_event(event, run.run_id)
        if fails:
            return False
        self.merge(day, tags.get("deltaweave/fingerprint"))
        self.instance.report_runless_asset_event(AssetMaterialization(ORDERS, partition=day))
        return True

    def merge(self, day: str, identity: str | None = None) -> None:
        self.log.mkdir(parents=True, exist_ok=True)
        version = len(list(self.log.iterdir()))
        if not version:
            self.commit(0, {"metaData": {"id": "11111111"}})
            version = 1
        record = record_of(identity, time.time_ns())
        log = LogAt(str(self.log.parent))
        pairs = records_of_merge(log, version - 1, RECORDS, {day: record})
        self.commit(version, *({"txn": {"appId": n, "version": v}} for n, v in pairs.items()))
        self.merged.append((day, self.delivered[day]))

    def commit(self, version: int, *actions: object) -> None:
        self.log.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"operation": "MERGE", "operationParameters": {}}}, *actions]
        (self.log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)))

    def restore(self, to: int) -> None:
        info = {"operation": "RESTORE", "operationParameters": {"version": to}}
        version = len(list(self.log.iterdir()))
        (self.log / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}))

    def held(self) -> Sequence[str]:
        found = merged_partitions(str(self.log.parent), ORDERS)
        return [] if found is None else sorted(found.records)

    def run_all(self, data: SensorExecutionData) -> list[str]:
        """Run what a tick requested; return what was merged."""
        wanted = {str(r.partition_key): dict(r.tags) for r in data.run_requests or []}
        return [day for day, tags in wanted.items() if self.run(day, tags)]


@pytest.fixture
def shop(instance: DagsterInstance, tmp_path: Path) -> Shop:
    return Shop(instance, tmp_path)


def test_what_is_in_the_table_is_requested_no_more_whoever_merged_it(shop: Shop) -> None:
    shop.land(*DAYS)
    shop.run("day-1")  # by hand
    shop.merge("day-2")  # by a run of an instance that is no more
    data = shop.tick()
    assert requested(data) == ["day-3", "day-4"]
    assert shop.run_all(data) == ["day-3", "day-4"]
    # A lost cursor, another name of the sensor, and of the code location, which no run knows.
    shop.name = "renamed"
    assert shop.said() == f"No new partition in {shop.landing}: 4 merged."
    with instance_for_test() as other:
        shop.instance = other
        assert "4 merged" in shop.said()


def test_what_a_backfill_goes_on_to_merge_is_under_way(shop: Shop) -> None:
    shop.land(*DAYS)
    graph = shop.definitions().resolve_asset_graph()
    backfill = PartitionBackfill.from_asset_partitions(
        backfill_id="all",
        asset_graph=graph,
        partition_names=DAYS[:3],
        asset_selection=[ORDERS],
        backfill_timestamp=time.time(),
        tags={},
        dynamic_partitions_store=shop.instance,
        all_partitions=False,
        title=None,
        description=None,
        run_config=None,
    )
    shop.instance.add_backfill(backfill)
    data = shop.tick()
    assert requested(data) == ["day-4"]


def test_what_a_restore_or_a_drop_took_back_is_requested_again(shop: Shop) -> None:
    shop.land("day-1", "day-2")
    shop.run_all(shop.tick())
    shop.restore(to=1)
    assert requested(data := shop.tick()) == ["day-2"]
    assert shop.run_all(data) == ["day-2"]
    for file in shop.log.iterdir():
        file.unlink()
    assert requested(shop.tick()) == ["day-1", "day-2"]


def test_newer_days_wait_for_one_that_failed_and_come_once_it_is_merged(shop: Shop) -> None:
    shop.arguments = {"retry_after_seconds": 60, "attempts": 2}
    shop.land("day-1")
    shop.land("day-2", bad=True)
    assert shop.run_all(shop.tick()) == ["day-1"]
    shop.land("day-3", "day-4")
    said = shop.said()
    assert "1 merged; day-2: run" in said
    assert "failed, attempt 1 of 2; it is tried again in" in said
    assert "day-3 and 1 more wait for day-2, whose run failed." in said
    shop.arguments["retry_after_seconds"] = 0
    # Those that are requested beside the failed one do not fail by themselves.
    data = shop.tick()
    assert requested(data) == ["day-2", "day-3", "day-4"]
    assert shop.run_all(data) == []
    assert "attempt 2 of 2: deliver it again, or run it yourself" in shop.said()
    shop.land("day-2")  # repaired
    assert requested(data := shop.tick()) == ["day-2", "day-3", "day-4"]
    assert [r.tags["deltaweave/attempt"] for r in data.run_requests or []] == ["1", "1", "1"]
    assert shop.run_all(data) == ["day-2", "day-3", "day-4"]
    assert "4 merged." in shop.said()


def test_a_day_that_failed_in_a_backfill_and_has_not_landed_is_waited_for(shop: Shop) -> None:
    shop.land("day-2")
    shop.bad.add("day-1")
    assert not shop.run("day-1")
    assert "0 merged; day-2 waits for day-1, whose run failed." in shop.said()
    shop.delivered["day-1"] = 0
    shop.bad.clear()
    shop.run("day-1")
    assert requested(shop.tick()) == ["day-2"]


def test_a_day_that_comes_after_newer_ones_is_not_launched_to_fail(shop: Shop) -> None:
    shop.land("day-1", "day-3")
    shop.run_all(shop.tick())
    shop.land("day-2", "day-1")
    said = shop.said()
    for day in ("day-1", "day-2"):
        assert f"{day} is older than day-3, which is merged: run it with the tag" in said
    shop.land("day-4")
    assert requested(shop.tick()) == ["day-4"]
    shop.run("day-2", {"deltaweave/order": "any"})
    assert "day-2 is older" not in (shop.tick().skip_message or "")
    shop.land("day-3")  # the newest one again
    assert requested(shop.tick()) == ["day-3", "day-4"]


def test_without_an_order_a_day_that_failed_holds_up_no_other(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path, order="any")
    shop.arguments = {"retry_after_seconds": 60}
    shop.land("day-2", bad=True)
    shop.run_all(shop.tick())
    shop.land("day-1", "day-3")
    assert requested(shop.tick()) == ["day-1", "day-3"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["land", "land_bad", "tick", "die", "lose", "rename", "by_hand", "again"]),
        st.sampled_from(DAYS),
    ),
    max_size=14,
)


@pytest.mark.minutes
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_whatever_happens_each_delivery_is_merged_once_and_in_order(
    steps: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with instance_for_test() as instance:
        shop = Shop(instance, tmp_path_factory.mktemp("shop"))
        cursor: str | None = None
        for kind, day in steps:
            newest = max(shop.held(), default="")
            if kind in ("land", "land_bad") and day >= newest:
                shop.land(day, bad=kind == "land_bad")
            elif kind == "tick":
                data = shop.tick(cursor)
                cursor = data.cursor
                shop.run_all(data)
            elif kind == "die":
                shop.run_all(shop.tick(cursor))  # the cursor was not saved
            elif kind == "lose":
                cursor = None
            elif kind == "rename":
                shop.name += "_again"
            elif kind == "by_hand":
                left = [each for each in shop.delivered if each not in shop.held()]
                if left:
                    shop.run(min(left))
            elif kind == "again" and newest and newest in shop.delivered:
                shop.land(newest)
        # Days that landed late are merged by hand, as the tick says; bad ones are delivered again.
        newest = max(shop.held(), default="")
        shop.land(*sorted(shop.bad))
        for day in sorted(shop.delivered):
            if day < newest and day not in shop.held():
                shop.run(day, {"deltaweave/order": "any"})
        for _ in range(6):
            shop.run_all(shop.tick())
        assert requested(shop.tick()) == []

        last = dict(shop.merged)
        assert last == shop.delivered
        assert len(shop.merged) == len(set(shop.merged))
        for day in last:
            runs = instance.get_runs(RunsFilter(tags={"dagster/partition": day}), limit=1)
            assert [run.status for run in runs] == [SUCCESS]
