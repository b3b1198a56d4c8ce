"""The table sensor over logs that start over, are cleaned up, or hold strange entries."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance, StaticPartitionsDefinition
from deltalake import DeltaTable

from dagster_deltaweave.logs.delta_log import LogReader, Position
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.sensors.test_table import DAYS, append, run, sensor_on, versions
from tests.support.sensor_ticks import requested, run_keys, tick


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events"


def test_a_table_recreated_during_a_backlog_loses_no_partition(
    events: Path, instance: DagsterInstance
) -> None:
    sensor = sensor_on(events, DAYS, max_requests_per_tick=2)
    append(events, *((f"day {number}", number) for number in range(5)))
    first = tick(sensor, instance)
    run(instance, first)
    shutil.rmtree(events)
    append(events, ("day 0", 0), ("day 4", 4))
    second = tick(sensor, instance, first.cursor)

    assert [requested(each) for each in (first, second)] == [["day 0", "day 1"], ["day 0", "day 4"]]


def test_what_was_unknown_is_remembered_when_the_log_is_cleaned_up(
    events: Path, instance: DagsterInstance
) -> None:
    append(events, ("tue", 1))
    first = tick(sensor_on(events, StaticPartitionsDefinition(["mon"])), instance)
    for id_ in range(3):
        append(events, ("mon", id_))
    DeltaTable(events).create_checkpoint()
    for version in (0, 1):
        (events / "_delta_log" / f"{version:020}.json").unlink()
    known = StaticPartitionsDefinition(["mon", "tue"])
    second = tick(sensor_on(events, known), instance, first.cursor)

    assert sorted(map(str, requested(second))) == ["mon", "tue"]


def test_versions_without_a_time_of_their_own_are_known_by_their_files(
    events: Path, instance: DagsterInstance
) -> None:
    sensor = sensor_on(events)
    log = events / "_delta_log"
    seen = []
    for seconds in (1_000_000_000, 2_000_000_000):  # the table is recreated
        log.mkdir(parents=True, exist_ok=True)
        add = {"path": "f", "partitionValues": {}, "dataChange": True}
        (log / f"{0:020}.json").write_text(json.dumps({"add": add}))
        os.utime(log / f"{0:020}.json", (seconds, seconds))
        data = tick(sensor, instance, seen[-1].cursor if seen else None)
        run(instance, data)
        seen.append(data)

    assert [run_keys(each) for each in seen] == [["0@1000000000000"], ["0@2000000000000"]]


def test_a_cursor_of_an_earlier_release_without_time_continues(
    events: Path, instance: DagsterInstance
) -> None:
    sensor = sensor_on(events, DAYS)
    log = events / "_delta_log"
    log.mkdir(parents=True)

    def commit(version: int, day: str) -> None:
        add = {"path": "f", "partitionValues": {"day": day}, "dataChange": True}
        (log / f"{version:020}.json").write_text(json.dumps({"add": add}))

    commit(0, "mon")
    kept = {"seen": {"version": 0, "timestamp": 0}, "until": None, "after": "", "unknown": {}}
    same = tick(sensor, instance, json.dumps(kept))
    commit(1, "tue")
    more = tick(sensor, instance, json.dumps(kept))
    # If commits have times, it belongs to another table.
    append(events.parent / "dated", ("mon", 1))

    assert (requested(same), requested(more)) == ([], ["tue"])
    assert LogReader(events).holds(Position(0, 0))
    assert not LogReader(events).holds(Position(0, 1))
    assert not LogReader(events.parent / "dated").holds(Position(0, 0))


def test_a_partition_that_is_no_key_is_left_out_and_the_others_go_on(
    events: Path, instance: DagsterInstance
) -> None:
    append(events, ("a...b", 1), ("line\nbreak", 2), ("mon", 3), ("../etc", 4), ("größe 100%", 5))
    data = tick(sensor_on(events, DAYS), instance)

    assert requested(data) == ["../etc", "größe 100%", "mon"]
    for request in data.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))


UNREADABLE = [
    "5",
    "[]",
    "no JSON",
    '{"seen": 3}',
    '{"seen": {"version": "x", "timestamp": 1}}',
    '{"seen": {"version": 0, "timestamp": 1}, "unknown": []}',
    '{"seen": {"version": 0, "timestamp": 1}, "until": "x"}',
]


def test_a_cursor_that_cannot_be_read_is_as_none(events: Path, instance: DagsterInstance) -> None:
    sensor = sensor_on(events)
    append(events, ("mon", 1))

    for cursor in UNREADABLE:
        assert versions(tick(sensor, instance, cursor)) == ["0"]


@pytest.mark.parametrize(
    "text", ["no JSON", '"text"', '{"add": 5}', '{"add": {"path": "f"}}', "[]"]
)
def test_a_commit_that_is_none_is_one_error(
    events: Path, instance: DagsterInstance, text: str
) -> None:
    (events / "_delta_log").mkdir(parents=True)
    (events / "_delta_log" / f"{0:020}.json").write_text(text)

    with pytest.raises(SourceError, match=f"{0:020}.json holds no commit"):
        tick(sensor_on(events), instance)


@pytest.mark.parametrize("name", ["with space", "100%", "a%20b", "c#1", "größe", "q?", "a*[b]"])
def test_a_table_may_lie_at_any_path(tmp_path: Path, name: str) -> None:
    append(tmp_path / "events", ("mon", 1))
    (tmp_path / "events").rename(tmp_path / name)

    for location in (tmp_path / name, str(tmp_path / name), f"file:{tmp_path / name}"):
        assert [each.version for each in LogReader(location).all()] == [0]
    assert [each.version for each in LogReader((tmp_path / name).as_uri()).all()] == [0]
