from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
    build_sensor_context,
    define_asset_job,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData

from dagster_deltaweave import build_partition_sensor

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
    max_requests_per_tick: int = 20,
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
        max_requests_per_tick=max_requests_per_tick,
    )
    return Definitions(assets=[orders], jobs=[orders_job], sensors=[landed])


def tick(
    defs: Definitions, instance: DagsterInstance, cursor: str | None = None
) -> SensorExecutionData:
    # The reference lets the sensor look up dynamic partitions.
    context = build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, definitions=defs
    )
    return defs.resolve_sensor_def("orders_landed").evaluate_tick(context)


def requested(data: SensorExecutionData) -> list[str | None]:
    return [request.partition_key for request in data.run_requests or []]


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


def test_a_partition_without_its_marker_waits(landing: Path, instance: DagsterInstance) -> None:
    sensor = orders_sensor(landing)
    (landing / "2000-03").mkdir()

    before = tick(sensor, instance)
    land(landing, "2000-03")
    after = tick(sensor, instance, before.cursor)

    assert before.skip_message == (
        f"No new partition in {landing}: 0 requested before, 1 incomplete (2000-03)."
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
    keys = [request.run_key for data in (first, second) for request in data.run_requests or []]
    assert keys == [f"2000-03@{EARLIER}", f"2000-04@{EARLIER}", f"2000-03@{LATER}"]


def test_a_lost_cursor_repeats_run_keys_and_so_no_run(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")

    before = [request.run_key for request in tick(sensor, instance).run_requests or []]
    after = [request.run_key for request in tick(sensor, instance, None).run_requests or []]

    assert before == after == [f"2000-03@{EARLIER}"]


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


def test_the_cursor_forgets_partitions_that_are_gone(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")
    land(landing, "2000-04")
    cursor = tick(sensor, instance).cursor
    shutil.rmtree(landing / "2000-03")

    data = tick(sensor, instance, cursor)

    assert json.loads(data.cursor or "") == {"2000-04": str(EARLIER)}


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
