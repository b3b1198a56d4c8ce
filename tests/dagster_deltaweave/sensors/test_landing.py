"""The landing sensor on a disk: what it requests, and what its cursor keeps."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    MonthlyPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.test_utils import create_run_for_test
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_deltaweave import build_partition_sensor
from dagster_deltaweave.landing.delivery import Delivery
from dagster_deltaweave.landing.watermark import Watermark, look_at_landing
from tests.dagster_deltaweave.ticks import requested, run_keys, tick

DYNAMIC = DynamicPartitionsDefinition(name="orders_partitions")
EARLIER, LATER = 1_000_000_000, 2_000_000_007


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    directory = tmp_path / "orders"
    directory.mkdir()
    return directory


def land(landing: Path, partition: str, delivered: int = EARLIER) -> None:
    (landing / partition).mkdir(exist_ok=True)
    marker = landing / partition / "_SUCCESS"
    marker.touch()
    os.utime(marker, ns=(delivered, delivered))


def orders_sensor(
    landing: Path,
    partitions_def: PartitionsDefinition[str] = DYNAMIC,
    *,
    landing_asset: AssetKey | None = None,
    marker: str | None = "_SUCCESS",
    suffix: str = "",
    max_requests_per_tick: int = 20,
    max_lateness_seconds: int = 600,
) -> Definitions:
    @asset(partitions_def=partitions_def)
    def orders() -> None: ...

    orders_job = define_asset_job("orders_job", selection=[orders])
    landed = build_partition_sensor(
        name="orders_landed",
        target=orders_job,
        directory=landing,
        partitions_def=partitions_def,
        landing_asset=landing_asset,
        marker=marker,
        suffix=suffix,
        max_requests_per_tick=max_requests_per_tick,
        max_lateness_seconds=max_lateness_seconds,
    )
    return Definitions(assets=[orders], jobs=[orders_job], sensors=[landed])


def test_new_partitions_are_added_and_requested_once_in_arrival_order(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    for partition in ("2000-10", "2000-03", "1999-12"):
        land(landing, partition)

    first = tick(sensor, instance)
    second = tick(sensor, instance, first.cursor)

    assert requested(first) == ["1999-12", "2000-03", "2000-10"]
    [addition] = first.dynamic_partitions_requests or []
    assert addition.partitions_def_name == "orders_partitions"
    assert addition.partition_keys == ["1999-12", "2000-03", "2000-10"]
    assert requested(second) == []
    assert second.skip_message == f"No new partition in {landing}: 3 requested before."


def test_a_tick_requests_fixed_partitions_in_their_order(
    landing: Path, instance: DagsterInstance
) -> None:
    months = MonthlyPartitionsDefinition("12-1999", fmt="%m-%Y", end_date="12-2000")
    for partition in ("01-2000", "02-2000", "12-1999"):
        land(landing, partition)

    in_order = ["12-1999", "01-2000", "02-2000"]
    assert requested(tick(orders_sensor(landing, partitions_def=months), instance)) == in_order

    # Also where a tick requests some of them: the next one requests the others, once.
    few = orders_sensor(landing, partitions_def=months, max_requests_per_tick=2)
    first = tick(few, instance)
    second = tick(few, instance, first.cursor)
    third = tick(few, instance, second.cursor)
    assert [requested(each) for each in (first, second, third)] == [in_order[:2], in_order[2:], []]


def test_a_partition_without_its_marker_waits(landing: Path, instance: DagsterInstance) -> None:
    sensor = orders_sensor(landing)
    (landing / "2000-03").mkdir()

    before = tick(sensor, instance)
    land(landing, "2000-03")
    after = tick(sensor, instance, before.cursor)

    assert before.skip_message == (
        f"No new partition in {landing}: 0 requested before, "
        "1 incomplete (2000-03; their marker is _SUCCESS)."
    )
    assert requested(after) == ["2000-03"]


def test_a_delivery_repeated_is_requested_again_under_another_run_key(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03", EARLIER)
    land(landing, "2000-04", EARLIER)
    first = tick(sensor, instance)

    land(landing, "2000-03", LATER)
    second = tick(sensor, instance, first.cursor)

    assert requested(second) == ["2000-03"]
    assert run_keys(first) + run_keys(second) == [
        f"2000-03@{EARLIER}",
        f"2000-04@{EARLIER}",
        f"2000-03@{LATER}",
    ]


def test_after_a_lost_cursor_the_runs_say_what_was_requested(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, max_requests_per_tick=2)
    for partition in ("a", "b", "c", "d", "e"):
        land(landing, partition)
    for partition, sensor_name, status in (
        ("a", "orders_landed", DagsterRunStatus.FAILURE),  # requested, whatever became of it
        ("b", "orders_landed", DagsterRunStatus.SUCCESS),  # requested
        ("c", "another_sensor", DagsterRunStatus.SUCCESS),  # not by this sensor
        ("d", "orders_landed", DagsterRunStatus.NOT_STARTED),  # the daemon died before it launched
    ):
        tags = {RUN_KEY_TAG: f"{partition}@{EARLIER}", SENSOR_NAME_TAG: sensor_name}
        create_run_for_test(instance, tags=tags, status=status)

    for cursor in (None, json.dumps({"a": "of another make"}), "no JSON"):
        data = tick(sensor, instance, cursor)
        # a and b neither fill the tick nor are added as partitions of which nothing comes.
        assert requested(data) == ["c", "d"]
        [addition] = data.dynamic_partitions_requests or []
        assert addition.partition_keys == ["c", "d"]
        assert requested(tick(sensor, instance, data.cursor)) == ["e"]


def test_a_lost_cursor_where_everything_was_requested_is_said(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "a")
    tags = {RUN_KEY_TAG: f"a@{EARLIER}", SENSOR_NAME_TAG: "orders_landed"}
    create_run_for_test(instance, tags=tags, status=DagsterRunStatus.SUCCESS)

    first = tick(sensor, instance)
    second = tick(sensor, instance, first.cursor)

    assert first.skip_message == (
        f"No new partition in {landing}: "
        "1 requested before (1 by runs that the cursor did not know of)."
    )
    assert second.skip_message == f"No new partition in {landing}: 1 requested before."


def test_one_tick_requests_no_more_than_its_cap_and_the_next_goes_on(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, max_requests_per_tick=2)
    for partition in ("a", "b", "c"):
        land(landing, partition)

    first = tick(sensor, instance)
    second = tick(sensor, instance, first.cursor)

    assert requested(first) == ["a", "b"]
    assert requested(second) == ["c"]


def test_a_missing_directory_is_named_and_the_cursor_kept(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")
    cursor = tick(sensor, instance).cursor
    shutil.rmtree(landing)

    data = tick(sensor, instance, cursor)

    assert data.skip_message == f"The landing directory is missing: {landing}"
    assert data.cursor == cursor


def test_a_backlog_is_worked_off_by_name_and_leaves_a_small_cursor(
    landing: Path, instance: DagsterInstance
) -> None:
    # Not late at all: whatever lies there at a tick is of the past.
    sensor = orders_sensor(landing, max_requests_per_tick=3, max_lateness_seconds=0)
    for number in reversed(range(8)):
        land(landing, f"p{number}")
    ticks = [tick(sensor, instance)]
    land(landing, "p0", LATER)  # again, after it was requested
    land(landing, "p1a")  # new, before where the backlog has got to
    for _ in range(4):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert [requested(each) for each in ticks] == [
        ["p0", "p1", "p2"],
        ["p3", "p4", "p5"],  # the backlog of the first tick goes on …
        ["p0", "p6", "p7"],  # … and in its last tick, the oldest first, what landed meanwhile
        ["p1a"],
        [],
    ]
    cursor = json.loads(ticks[-1].cursor or "")
    assert (cursor["recent"], cursor["unsettled"], cursor["unknown"]) == ({}, {}, [])


def test_a_delivery_moved_into_place_is_new_though_its_files_are_old(
    landing: Path, tmp_path: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, max_lateness_seconds=0)
    land(tmp_path, "2000-03", EARLIER)  # staged before the other lands
    time.sleep(0.01)
    land(landing, "2000-03", LATER)
    first = tick(sensor, instance)
    second = tick(sensor, instance, first.cursor)
    shutil.rmtree(landing / "2000-03")
    (tmp_path / "2000-03").rename(landing / "2000-03")

    third = tick(sensor, instance, second.cursor)

    assert requested(second) == []
    assert run_keys(third) == [f"2000-03@{EARLIER}"]


def test_without_a_marker_a_partition_is_complete_once_its_sizes_settle(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, marker=None)
    (landing / "empty").mkdir()
    (landing / "grows").mkdir()
    (landing / "grows" / "part-0").write_bytes(b"1")
    (landing / "done").mkdir()
    (landing / "done" / "part-0").write_bytes(b"1")

    first = tick(sensor, instance)
    (landing / "grows" / "part-1").write_bytes(b"2")
    second = tick(sensor, instance, first.cursor)
    third = tick(sensor, instance, second.cursor)
    (landing / "done" / "part-0").write_bytes(b"12")  # delivered again
    fourth = tick(sensor, instance, third.cursor)
    fifth = tick(sensor, instance, fourth.cursor)

    assert first.skip_message == (
        f"No new partition in {landing}: 0 requested before, "
        "3 incomplete (done, empty, grows; their sizes have to settle)."
    )
    ticks = (second, third, fourth, fifth)
    assert [requested(each) for each in ticks] == [["done"], ["grows"], [], ["done"]]
    assert len({key for each in ticks for key in run_keys(each)}) == 3


def test_a_partition_unknown_when_it_landed_is_requested_once_it_is_known(
    landing: Path, instance: DagsterInstance
) -> None:
    def ticked(known: list[str], cursor: str | None) -> SensorExecutionData:
        fixed = StaticPartitionsDefinition(known)
        sensor = orders_sensor(landing, fixed, max_requests_per_tick=1, max_lateness_seconds=0)
        return tick(sensor, instance, cursor)

    land(landing, "today")  # a day that has not ended is no partition of Dagster's yet
    land(landing, "tomorrow")
    land(landing, "yesterday")
    first = ticked(["yesterday"], None)
    second = ticked(["yesterday"], first.cursor)
    third = ticked(["yesterday", "today", "tomorrow"], second.cursor)
    fourth = ticked(["yesterday", "today", "tomorrow"], third.cursor)
    fifth = ticked(["yesterday", "today", "tomorrow"], fourth.cursor)

    assert second.skip_message == (
        f"No new partition in {landing}: 1 requested before, 2 unknown (today, tomorrow)."
    )
    ticks = (first, third, fourth, fifth)
    assert [requested(each) for each in ticks] == [["yesterday"], ["today"], ["tomorrow"], []]


LATENESS = 5
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["tick", "land"]),
        st.sampled_from("abcdefgh"),  # the partition
        st.integers(0, LATENESS - 1),  # how much later than its own time it comes into view
        st.integers(0, 4),  # how much time passes
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS, cap=st.integers(1, 3))
def test_every_delivery_that_a_tick_could_see_is_requested_exactly_once(
    events: list[tuple[str, str, int, int]], cap: int
) -> None:
    now, watermark = 1_000, Watermark(until=1_000 - LATENESS)
    there: dict[str, Delivery] = {}
    requested: list[tuple[str, str | None]] = []
    replaced: set[tuple[str, str | None]] = set()

    def tick() -> None:
        nonlocal watermark
        found = list(there.values())
        landed = look_at_landing(found, watermark, now - LATENESS, "_SUCCESS", None)
        now_, waiting = landed.new[:cap], landed.new[cap:]
        requested.extend((each.partition, each.fingerprint) for each in now_)
        moved = watermark.moved_by(now_, waiting, now - LATENESS)
        watermark = Watermark.of(moved.keeping(found, {}, ()).to_cursor()) or Watermark()

    for number, (kind, partition, late, passes) in enumerate(events):
        now += passes
        if kind == "tick":
            tick()
            continue
        before = there.get(partition)
        if before is not None and (partition, before.fingerprint) not in requested:
            replaced.add((partition, before.fingerprint))  # delivered again before it was seen
        there[partition] = Delivery(partition, str(number), now - late)
    for _ in range(len(there) + 1):
        tick()

    deliveries = {(e[1], str(i)) for i, e in enumerate(events) if e[0] == "land"}
    assert sorted(requested) == sorted(deliveries - replaced)
    # What was requested long ago is in the cursor no more.
    now += LATENESS + 1
    tick()
    tick()
    assert watermark.recent == {}


def test_hidden_directories_and_files_are_no_partitions(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "_temporary")
    land(landing, ".staging")
    (landing / "README").touch()

    assert requested(tick(sensor, instance)) == []


def test_fixed_partitions_are_requested_only_where_they_are_known(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, StaticPartitionsDefinition(["eu", "us"]))
    land(landing, "eu")
    land(landing, "mars")

    first = tick(sensor, instance)
    second = tick(sensor, instance, first.cursor)

    assert requested(first) == ["eu"]
    assert not first.dynamic_partitions_requests
    assert second.skip_message == (
        f"No new partition in {landing}: 1 requested before, 1 unknown (mars)."
    )


def test_arrivals_are_recorded_at_the_landing_asset(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, landing_asset=AssetKey("orders_landing"))
    land(landing, "2000-03")

    [arrival] = tick(sensor, instance).asset_events

    assert (arrival.asset_key, arrival.partition) == (AssetKey("orders_landing"), "2000-03")
    assert arrival.metadata["dagster/uri"].value == (landing / "2000-03").as_uri()
