"""Deliveries on a disk that are hard to tell apart, to name or to read; and the sensor's cursor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._core.test_utils import create_run_for_test

from dagster_deltaweave import partition_path
from dagster_deltaweave.landing.source_partition import look_at_delivery
from dagster_deltaweave.partitions import DELIVERY_TAG
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.sensors.test_landing import EARLIER, LATER, land, orders_sensor
from tests.support.sensor_ticks import launch, requested, run_keys
from tests.support.sensor_ticks import launched_tick as tick
from tests.support.sensor_ticks import tick as raw_tick

NO_LATENESS = {"max_lateness_seconds": 0}


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    directory = tmp_path / "orders"
    directory.mkdir()
    return directory


def copied(source: Path, target: Path) -> None:
    """Copy as `cp -a` does: every file keeps its time."""
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


def in_turn(ticks: list[SensorExecutionData]) -> list[str | None]:
    return [partition for data in ticks for partition in requested(data)]


def delivery_tags(*ticks: SensorExecutionData) -> list[int]:
    return [
        int(request.tags[DELIVERY_TAG]) for data in ticks for request in data.run_requests or []
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["with the cursor", "without a cursor"])
def test_a_delivery_again_whose_marker_keeps_its_time_is_requested(
    landing: Path, tmp_path: Path, instance: DagsterInstance, lost: bool
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")
    shutil.copytree(landing / "2000-03", tmp_path / "corrected")
    shutil.copystat(landing / "2000-03" / "_SUCCESS", tmp_path / "corrected" / "_SUCCESS")
    first = tick(sensor, instance)
    (tmp_path / "corrected" / "part-0").write_bytes(b"corrected")
    copied(tmp_path / "corrected", landing / "2000-03")
    second = tick(sensor, instance, None if lost else first.cursor)
    third = tick(sensor, instance, None if lost else second.cursor)

    assert (landing / "2000-03" / "_SUCCESS").stat().st_mtime_ns == EARLIER
    assert [requested(each) for each in (first, second, third)] == [["2000-03"], ["2000-03"], []]
    assert run_keys(first) != run_keys(second)
    # A merge that is idempotent by delivery takes the second for the newer one.
    assert delivery_tags(first) < delivery_tags(second)


@pytest.mark.parametrize("marker", ["_SUCCESS", None], ids=["marker", "sizes"])
def test_an_earlier_delivery_put_back_is_requested_as_the_newest(
    landing: Path, tmp_path: Path, instance: DagsterInstance, marker: str | None
) -> None:
    sensor = orders_sensor(landing, marker=marker, **NO_LATENESS)
    cursor, tags, keys = None, [], []

    def ticked() -> list[str | None]:
        nonlocal cursor
        partitions = []
        for _ in range(3):  # without a marker, one tick sees that sizes have settled
            data = tick(sensor, instance, cursor)
            cursor = data.cursor
            partitions += requested(data)
            keys.extend(run_keys(data))
            tags.extend(request.tags[DELIVERY_TAG] for request in data.run_requests or [])
        return partitions

    place, aside = landing / "2000-03", tmp_path / "aside"
    land(landing, "2000-03", EARLIER)
    (place / "part-0").write_bytes(b"a")
    first = ticked()
    place.rename(aside)
    land(landing, "2000-03", LATER)
    (place / "part-0").write_bytes(b"bb")
    second = ticked()
    shutil.rmtree(place)
    aside.rename(place)
    third = ticked()
    cursor = None
    lost = ticked()

    assert [first, second, third, lost] == [["2000-03"]] * 3 + [[]]
    assert len(set(keys)) == len(set(tags)) == 3
    if marker is not None:
        assert tags == sorted(tags, key=int)


def test_without_a_marker_a_changed_mode_is_no_delivery(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, marker=None, **NO_LATENESS)
    (landing / "2000-03").mkdir()
    (landing / "2000-03" / "part-0").write_bytes(b"1")
    ticks = [tick(sensor, instance)]
    time.sleep(0.01)
    (landing / "2000-03" / "part-0").chmod(0o640)
    for _ in range(3):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert in_turn(ticks) == ["2000-03"]


def test_ticks_killed_before_they_save_their_cursor_repeat_no_run(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")
    first = tick(sensor, instance)
    land(landing, "2000-03")  # again, with the same time
    second = raw_tick(sensor, instance, first.cursor)
    at_once = raw_tick(sensor, instance, first.cursor)
    # The daemon made the run, and died before it launched it or saved the cursor.
    launch(instance, "orders_landed", second, status=DagsterRunStatus.NOT_STARTED)
    died = raw_tick(sensor, instance, first.cursor)

    assert requested(second) == ["2000-03"]
    assert run_keys(second) == run_keys(at_once) == run_keys(died)


def test_runs_and_cursors_of_an_older_release_are_understood(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    for partition in ("a", "b"):
        land(landing, partition)
        tags = {RUN_KEY_TAG: f"{partition}@{EARLIER}", "dagster/partition": partition}
        keys = frozenset([AssetKey("orders")])
        create_run_for_test(
            instance, tags=tags, status=DagsterRunStatus.SUCCESS, asset_selection=keys
        )
    recent = {"a": str(EARLIER), "b": str(EARLIER)}
    cursor = {"through": 0, "until": 1, "after": "", "recent": recent, "unsettled": {}}

    assert requested(tick(sensor, instance, json.dumps({**cursor, "unknown": []}))) == []


UNREADABLE = ["5", "null", "[]", '"a"', "{", '{"until": "x"}', '{"recent": []}', '{"unknown": "x"}']


def test_a_cursor_that_cannot_be_read_is_as_none(landing: Path, instance: DagsterInstance) -> None:
    sensor = orders_sensor(landing)
    land(landing, "2000-03")

    for cursor in UNREADABLE:
        assert requested(raw_tick(sensor, instance, cursor)) == ["2000-03"]


def test_a_link_to_a_directory_older_than_the_lateness_is_requested(
    landing: Path, tmp_path: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, **NO_LATENESS)
    for directory, name in ((tmp_path, "v1"), (tmp_path, "v2"), (landing, "1999-12")):
        land(directory, name)
        time.sleep(0.01)  # a disk tells times by some milliseconds
    ticks = [tick(sensor, instance)]
    ticks.append(tick(sensor, instance, ticks[-1].cursor))

    def linked(link: Path, target: Path) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        time.sleep(0.01)
        ticks.append(tick(sensor, instance, ticks[-1].cursor))
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    linked(tmp_path / "current", tmp_path / "v1")
    linked(landing / "2000-03", Path("..") / "current")
    # The link that is seen stays, the one it leads to does not.
    linked(tmp_path / "current", tmp_path / "v2")
    linked(tmp_path / "current", tmp_path / "v1")

    assert [requested(each) for each in ticks] == [
        *(["1999-12"], [], [], []),
        *(["2000-03"], []) * 3,
    ]


def test_files_behind_links_are_a_part_of_a_delivery_without_a_marker(
    landing: Path, tmp_path: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, marker=None, **NO_LATENESS)
    (tmp_path / "files").mkdir()
    (landing / "2000-03").mkdir()
    (landing / "2000-03" / "files").symlink_to(tmp_path / "files")
    ticks = [tick(sensor, instance)]
    for content in (b"1", b"12"):
        (tmp_path / "files" / "part-0").write_bytes(content)
        for _ in range(3):
            ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert in_turn(ticks) == ["2000-03", "2000-03"]


@pytest.mark.parametrize("marker", ["_SUCCESS", None], ids=["marker", "sizes"])
def test_an_unreadable_delivery_is_skipped_and_requested_once_readable(
    landing: Path, tmp_path: Path, instance: DagsterInstance, marker: str | None
) -> None:
    """The tick says why it skips the delivery."""
    sensor = orders_sensor(landing, marker=marker, **NO_LATENESS)
    land(landing, "good")
    land(tmp_path, "behind")
    for name in ("loop", "late"):
        (landing / name).symlink_to(landing / name)
    (landing / "loops_within").mkdir()
    (landing / "loops_within" / "up").symlink_to(landing / "loops_within")
    (landing / "nowhere").symlink_to(tmp_path / "missing")
    ticks = [tick(sensor, instance)]
    for _ in range(2):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))
    before = list(ticks)
    (landing / "late").unlink()
    (landing / "late").symlink_to(tmp_path / "behind")
    for _ in range(3):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert in_turn(before) == ["good"]
    said = before[-1].skip_message or ""
    assert "'loop': Too many levels of symbolic links" in said
    assert ("'loops_within': A link in it leads to a directory above" in said) == (marker is None)
    assert in_turn(ticks) == ["good", "late"]


@pytest.mark.parametrize("marker", ["_SUCCESS", None], ids=["marker", "sizes"])
def test_a_directory_without_list_permission_is_skipped_and_others_go_on(
    landing: Path, marker: str | None
) -> None:
    """In a process of a user without rights: root may list everything."""
    for name in ("closed", "good"):
        land(landing, name)
    (landing / "closed").chmod(0o000)
    for directory in (landing, *landing.parents):
        if directory.stat().st_uid == os.getuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    program = (
        "import os, sys; from dagster_deltaweave.landing.listing import list_deliveries\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        f"for each in list_deliveries({str(landing)!r}, {marker!r}):\n"
        "    print(each.partition, each.problem, each.fingerprint is not None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    (landing / "closed").chmod(0o700)

    assert sorted(done.stdout.splitlines()) == [
        "closed Permission denied False",
        "good None True",
    ], done.stderr


def test_directories_named_as_hive_names_them_land_as_their_values(
    landing: Path, instance: DagsterInstance
) -> None:
    days = DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-05")
    sensor = orders_sensor(landing, days, landing_asset=AssetKey("orders_landing"))
    for name in ("dt=2024-01-01", "2024-01-02", "dt=2024-01-02", "day=2024-01-03", "dt=2023-01-01"):
        land(landing, name)
    data = tick(sensor, instance)
    quiet = tick(sensor, instance, data.cursor)

    assert requested(data) == ["2024-01-01", "2024-01-02", "2024-01-03"]
    assert quiet.skip_message == (
        f"No new partition in {landing}: 3 merged, 2 unknown (dt=2023-01-01, dt=2024-01-02)."
    )
    uris = [event.metadata["dagster/uri"].value for event in data.asset_events]
    assert [str(uri).rsplit("/", 1)[1] for uri in uris] == [
        "dt%3D2024-01-01",
        "2024-01-02",
        "day%3D2024-01-03",
    ]
    assert [partition_path(landing, str(each)) for each in requested(data)] == [
        str(landing / "dt=2024-01-01"),
        str(landing / "2024-01-02"),
        str(landing / "day=2024-01-03"),
    ]


def test_a_partition_key_with_a_colon_is_escaped_in_a_directory_of_hive(landing: Path) -> None:
    (landing / "hour=2024-01-01-00%3A00").mkdir()

    assert partition_path(landing, "2024-01-01-00:00") == str(landing / "hour=2024-01-01-00%3A00")


@pytest.mark.parametrize(
    "key",
    ["/etc", "..", ".", "", "a/b", "../x", "*", "a?", "[ab]", "{a,b}", "a\\b", "a\nb", "a\0b"],
)
def test_a_partition_key_leads_nowhere_else_and_is_no_pattern(landing: Path, key: str) -> None:
    with pytest.raises(SourceError, match="has no directory") as refused:
        partition_path(landing, key)
    with pytest.raises(SourceError, match="has no directory"):
        partition_path("s3://lake/landing", key)
    assert refused.value.table == str(landing)


@pytest.mark.parametrize("link", ["", "part-1", "deeper", "_SUCCESS"])
def test_links_of_a_delivery_are_followed_unless_that_is_refused(
    landing: Path, tmp_path: Path, link: str
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "part-0").write_bytes(b"1")
    place = landing / "2000-03"
    if link:
        place.mkdir()
        (place / "part-0").write_bytes(b"1")
        assert partition_path(landing, "2000-03", follow_links=False) == str(place)
    (place / link).symlink_to(private if link in ("", "deeper") else private / "part-0")

    assert partition_path(landing, "2000-03") == str(place)
    with pytest.raises(SourceError, match="links are not followed") as refused:
        partition_path(landing, "2000-03", follow_links=False)
    assert str(private) not in str(refused.value)


def test_a_key_whose_directory_could_be_either_of_two_is_refused(landing: Path) -> None:
    for name in ("dt=mon", "day=mon"):
        (landing / name).mkdir()

    with pytest.raises(SourceError, match="day=mon and dt=mon are both its own"):
        partition_path(landing, "mon")


NAMES = ["with space", "100%", "a%20b", "c#1", "größe", "日本", "a:b", "a,b", "k=v", "~", "a'b\"c"]


def test_names_that_can_be_keys_land_and_others_are_skipped_with_a_reason(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, landing_asset=AssetKey("orders_landing"))
    for name in [*NAMES, "*", "a[1]", "a...b", "line\nbreak", "q?", os.fsdecode(b"\xff")]:
        land(landing, name)
    data = tick(sensor, instance)
    quiet = tick(sensor, instance, data.cursor)

    assert sorted(map(str, requested(data))) == sorted(NAMES)
    for request in data.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    for event in data.asset_events:
        instance.report_runless_asset_event(event)
    assert [partition_path(landing, name) for name in NAMES] == [str(landing / n) for n in NAMES]
    assert requested(quiet) == []
    assert ", skipped 6 ('*': '*' cannot be in a partition key; 'a...b': " in str(
        quiet.skip_message
    )
    assert str(quiet.skip_message).isascii()


def test_a_landing_directory_that_others_replaced_is_looked_at_again(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    for version in ("blue", "green"):
        (tmp_path / version).mkdir()
    land(tmp_path / "green", "2000-03")
    time.sleep(0.01)
    land(tmp_path / "blue", "2000-04")
    landing = tmp_path / "landing"
    landing.symlink_to(tmp_path / "blue")
    sensor = orders_sensor(landing, **NO_LATENESS)
    ticks = [tick(sensor, instance)]
    for _ in range(2):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))
    landing.unlink()
    landing.symlink_to(tmp_path / "green")
    ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert [requested(each) for each in ticks] == [["2000-04"], [], [], ["2000-03"]]


def test_a_storage_whose_clock_is_behind_loses_no_delivery(
    landing: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = orders_sensor(landing)
    ahead = time.time_ns() + 86_400_000_000_000  # the sensor's clock, by a day
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    ticks = []
    for partition in ("a", "b", "c"):
        time.sleep(0.01)
        land(landing, partition)
        for _ in range(3):
            ticks.append(tick(sensor, instance, ticks[-1].cursor if ticks else None))

    assert in_turn(ticks) == ["a", "b", "c"]


def test_hours_of_a_day_that_has_one_twice_are_requested_each(
    landing: Path, instance: DagsterInstance
) -> None:
    hours = HourlyPartitionsDefinition(
        start_date=datetime(2024, 11, 3, 4, tzinfo=timezone.utc),
        end_date=datetime(2024, 11, 3, 9, tzinfo=timezone.utc),
        timezone="America/New_York",
    )
    keys = hours.get_partition_keys()
    for key in keys:
        land(landing, key)

    assert len(keys) == 5
    assert sorted(map(str, requested(tick(orders_sensor(landing, hours), instance)))) == keys


def test_partitions_with_a_dynamic_dimension_land(landing: Path, instance: DagsterInstance) -> None:
    both = MultiPartitionsDefinition(
        {
            "day": StaticPartitionsDefinition(["mon"]),
            "country": DynamicPartitionsDefinition(name="countries"),
        }
    )
    instance.add_dynamic_partitions("countries", ["nl"])
    land(landing, "nl|mon")

    assert requested(tick(orders_sensor(landing, both), instance)) == ["nl|mon"]


def test_deliveries_with_one_time_have_data_versions_of_their_own(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, landing_asset=AssetKey("orders_landing"))
    land(landing, "2000-03")
    first = tick(sensor, instance)
    land(landing, "2000-03")
    second = tick(sensor, instance, first.cursor)

    versions = [e.tags[DATA_VERSION_TAG] for data in (first, second) for e in data.asset_events]
    assert len(set(versions)) == 2


def test_single_files_land_with_a_marker_or_once_their_sizes_settle(
    landing: Path, instance: DagsterInstance
) -> None:
    def write(name: str, text: str = "id\n1\n") -> None:
        (landing / name).write_text(text)

    marked = orders_sensor(landing, marker=".done", suffix=".csv", **NO_LATENESS)
    others = ("_x.csv", ".csv", ".CSV", "README", "a?.csv", "b.CSV", "_c.CSV")
    for name in ("2026-11-01.csv", "2026-11-02.csv", *others):
        write(name)
    (landing / "2026-11-03.csv").mkdir()  # not a file
    none = tick(marked, instance)
    assert none.skip_message is not None
    assert "2 incomplete (2026-11-01, 2026-11-02; their marker is <key>.csv.done)" in (
        none.skip_message
    )
    assert (
        "skipped 2 ('a?.csv': '?' cannot be in a partition key; 'b.CSV': its name does not end "
        in (none.skip_message)
    )
    write("2026-11-01.csv.done", "")
    write("day=2026-11-04.csv")
    write("day=2026-11-04.csv.done", "")
    known = StaticPartitionsDefinition(["2026-11-01", "2026-11-02", "2026-11-04"])
    by_day = orders_sensor(landing, known, marker=".done", suffix=".csv", **NO_LATENESS)
    first = tick(by_day, instance, None)
    assert requested(first) == ["2026-11-01", "2026-11-04"]
    # Its tag finds the file again, and knows another one that took its place.
    [request, hive] = first.run_requests or []
    assert look_at_delivery("2026-11-01", request.tags, "orders") == look_at_delivery(
        "2026-11-01", request.tags, "orders"
    )
    assert partition_path(landing, "2026-11-01", suffix=".csv") == f"{landing}/2026-11-01.csv"
    assert partition_path(landing, "2026-11-04", suffix=".csv").endswith("/day=2026-11-04.csv")
    assert look_at_delivery("2026-11-04", hive.tags, "orders") is not None
    write("2026-11-01.csv", "id\n1\n2\n")
    with pytest.raises(SourceError, match="has other files than when this run was requested"):
        look_at_delivery("2026-11-01", request.tags, "orders")
    write("2026-11-01.csv.done", "")
    again = tick(by_day, instance, first.cursor)
    assert requested(again) == ["2026-11-01"]

    settled = orders_sensor(landing, known, marker=None, suffix=".csv")
    first = tick(settled, instance)
    write("2026-11-02.csv", "id\n1\n2\n3\n")
    second = tick(settled, instance, first.cursor)
    third = tick(settled, instance, second.cursor)
    ticks = (first, second, third)
    # 2 grew between the first two, and is as it was at the third
    assert [requested(each) for each in ticks] == [[], ["2026-11-01", "2026-11-04"], ["2026-11-02"]]
