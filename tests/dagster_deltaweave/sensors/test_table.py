"""The sensor on a source table, over tables that another engine (delta-rs) writes; no Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    SensorDefinition,
    SensorEvaluationContext,
    StaticPartitionsDefinition,
    TextMetadataValue,
    asset,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from deltalake import DeltaTable, write_deltalake

from dagster_deltaweave import build_table_sensor
from tests.support.sensor_ticks import requested, run_keys, tick

SOURCE_VERSION = "deltaweave/source_version"
SOURCE_TABLE = ".dagster/deltaweave.source_table"
DAYS = DynamicPartitionsDefinition(name="days")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    return tmp_path / "events"


def append(events: Path, *rows: tuple[str | None, int], **arguments: Any) -> None:
    days, ids = zip(*rows, strict=True)
    table = pa.table({"day": pa.array(days, pa.string()), "id": pa.array(ids, pa.int64())})
    write_deltalake(events, table, mode="append", partition_by=["day"], **arguments)


def sensor_on(
    events: Path, partitions_def: PartitionsDefinition[str] | None = None, **arguments: Any
) -> Definitions:
    @asset(partitions_def=partitions_def)
    def merged() -> None: ...

    @asset(partitions_def=partitions_def)
    def counted() -> None: ...

    chosen = {"name": "events_changed", "target": AssetSelection.assets(merged), **arguments}
    sensor = build_table_sensor(table=events, partitions_def=partitions_def, **chosen)
    return Definitions(assets=[merged, counted], sensors=[sensor])


def run(instance: DagsterInstance, data: SensorExecutionData, **more: str) -> None:
    """Let the requested runs be in the instance, as after the daemon launched them."""
    for run_key in run_keys(data):
        tags = {RUN_KEY_TAG: str(run_key), SENSOR_NAME_TAG: "events_changed", **more}
        create_run_for_test(instance, tags=tags, status=DagsterRunStatus.SUCCESS)


def versions(data: SensorExecutionData) -> list[Mapping[str, str]]:
    return [request.tags["deltaweave/source_version"] for request in data.run_requests or []]


def test_new_versions_give_one_run_for_the_newest(events: Path, instance: DagsterInstance) -> None:
    sensor = sensor_on(
        events,
        source_asset=AssetKey("events"),
        run_tags={"team": "sales"},
        tags={"tier": "gold"},
        owners=["team:sales"],
        metadata={"runbook": "events"},
    )
    nothing = tick(sensor, instance)
    append(events, ("mon", 1))
    first = tick(sensor, instance, nothing.cursor)
    quiet = tick(sensor, instance, first.cursor)
    append(events, ("mon", 2))
    append(events, ("tue", 3))
    second = tick(sensor, instance, quiet.cursor)
    DeltaTable(events).optimize.compact()
    DeltaTable(events).alter.set_table_properties({"delta.appendOnly": "false"})
    compacted = tick(sensor, instance, second.cursor)
    # The newest version changed no rows: the run is for the one before it that did.
    from_the_start = tick(sensor, instance)

    [definition] = sensor.sensors or []
    assert isinstance(definition, SensorDefinition)
    assert (definition.tags, definition.owners) == ({"tier": "gold"}, ["team:sales"])
    assert definition.metadata["runbook"] == TextMetadataValue("events")
    assert [each.tags["team"] for each in second.run_requests or []] == ["sales"]
    assert nothing.skip_message == f"There is no Delta table at {events} yet."
    assert [versions(each) for each in (first, second)] == [["0"], ["2"]]
    assert quiet.skip_message == f"No new version of {events}: 0 was the newest before."
    assert compacted.skip_message == (
        f"Nothing to request for versions 3 to 4 of {events} (OPTIMIZE, SET TBLPROPERTIES): "
        "no rows were changed."
    )
    assert run_keys(from_the_start) == run_keys(second)
    assert from_the_start.cursor == compacted.cursor
    [arrival] = second.asset_events
    assert (arrival.asset_key, arrival.metadata["commit/version"].value) == (AssetKey("events"), 2)


def test_a_lost_cursor_doubles_no_run_and_a_recreated_table_loses_none(
    events: Path, instance: DagsterInstance
) -> None:
    sensor = sensor_on(events)
    append(events, ("mon", 1))
    first = tick(sensor, instance)
    run(instance, first)
    lost = tick(sensor, instance, None)
    shutil.rmtree(events)
    append(events, ("mon", 1))
    anew = tick(sensor, instance, lost.cursor)

    assert lost.skip_message == (
        f"Nothing to request for version 0 of {events} (WRITE): the runs were requested before."
    )
    assert versions(anew) == versions(first) == ["0"]
    assert run_keys(anew) != run_keys(first)


BOTH = frozenset({AssetKey("merged"), AssetKey("counted")})
FORMER = {SENSOR_NAME_TAG: "former_name"}
OTHER_TABLE = {SOURCE_TABLE: "0" * 16}
NO_SENSOR_HERE = {SOURCE_VERSION: None}
NEW, SUCCEEDED = DagsterRunStatus.NOT_STARTED, DagsterRunStatus.SUCCESS


@pytest.mark.parametrize(
    ("changed", "status", "assets", "wanted"),
    [
        ({}, SUCCEEDED, BOTH, None),
        ({}, NEW, BOTH, ("", None)),  # Dagster launches it
        (FORMER, SUCCEEDED, BOTH, None),
        (FORMER, DagsterRunStatus.FAILURE, BOTH, None),
        (FORMER, NEW, BOTH, ("#2", None)),  # the sensor that launches it no longer exists
        # Earlier releases did not name the table.
        ({SOURCE_TABLE: None}, SUCCEEDED, BOTH, None),
        (FORMER | {SOURCE_TABLE: None}, SUCCEEDED, BOTH, None),
        (FORMER, SUCCEEDED, frozenset({AssetKey("merged")}), ("#2", [AssetKey("counted")])),
        (FORMER, SUCCEEDED, frozenset({AssetKey("other")}), ("#2", None)),
        (FORMER | NO_SENSOR_HERE | {SOURCE_TABLE: None}, SUCCEEDED, BOTH, ("#2", None)),
        # Dagster drops the run key of a sensor's run, whatever its table was.
        (OTHER_TABLE, SUCCEEDED, BOTH, ("#2", None)),
        (OTHER_TABLE | FORMER, SUCCEEDED, BOTH, ("#2", None)),
    ],
)
def test_runs_of_a_table_count_under_whatever_name_of_the_sensor(
    events: Path,
    instance: DagsterInstance,
    changed: Mapping[str, str | None],
    status: DagsterRunStatus,
    assets: frozenset[AssetKey],
    wanted: tuple[str, list[AssetKey] | None] | None,
) -> None:
    sensor = sensor_on(events, target=AssetSelection.assets(*sorted(BOTH)))
    append(events, ("mon", 1))
    [first] = tick(sensor, instance).run_requests or []
    own = {RUN_KEY_TAG: first.run_key, SENSOR_NAME_TAG: "events_changed", **first.tags}
    tags = {name: text for name, text in {**own, **changed}.items() if text is not None}
    create_run_for_test(instance, tags=tags, status=status, asset_selection=assets)
    again = tick(sensor, instance).run_requests or []

    expected = [] if wanted is None else [(f"{first.run_key}{wanted[0]}", wanted[1])]
    assert [(each.run_key, each.asset_selection) for each in again] == expected
    # What was requested by the other key counts as well.
    for each in again:
        create_run_for_test(
            instance,
            tags={**own, **each.tags, RUN_KEY_TAG: str(each.run_key), **FORMER},
            asset_selection=BOTH,
            status=SUCCEEDED,
        )
        assert status == NEW or not tick(sensor, instance).run_requests


def test_a_sensor_requests_its_assets_whatever_another_one_requested(
    events: Path, instance: DagsterInstance
) -> None:
    both = sensor_on(events, target=AssetSelection.assets(*sorted(BOTH)))
    one = sensor_on(events, name="merged_changed", target=AssetSelection.assets("merged"))
    sensors = [*(both.sensors or ()), *(one.sensors or ())]
    defs = Definitions(assets=both.assets, sensors=sensors)
    append(events, ("mon", 1))
    [first] = tick(defs, instance, name="merged_changed").run_requests or []
    create_run_for_test(
        instance,
        tags={RUN_KEY_TAG: str(first.run_key), SENSOR_NAME_TAG: "merged_changed", **first.tags},
        status=DagsterRunStatus.FAILURE,
        asset_selection=frozenset({AssetKey("merged")}),
    )
    [own] = tick(defs, instance, name="events_changed").run_requests or []
    assert (own.asset_selection, own.run_key) == (None, f"{first.run_key}#2")
    assert not tick(defs, instance, name="merged_changed").run_requests


def test_a_renamed_code_location_requests_no_run_twice(
    events: Path, instance: DagsterInstance
) -> None:
    append(events, ("mon", 1))
    defs = sensor_on(events, DAYS)

    def tick_in(location: str) -> SensorExecutionData:
        context = SensorEvaluationContext(
            instance_ref=instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            log_key=None,
            repository_name="__repository__",
            repository_def=defs.get_repository_def(),
            instance=instance,
            code_location_origin=code_location(location).code_location_origin,
        )
        return defs.resolve_sensor_def("events_changed").evaluate_tick(context)

    [first] = tick_in("former").run_requests or []
    create_run_for_test(
        instance,
        tags={RUN_KEY_TAG: str(first.run_key), SENSOR_NAME_TAG: "events_changed", **first.tags},
        status=SUCCEEDED,
        asset_selection=frozenset({AssetKey("merged")}),
        remote_job_origin=RemoteJobOrigin(code_location("former"), "__ASSET_JOB"),
    )
    assert [requested(tick_in(each)) for each in ("former", "renamed")] == [[], []]


def code_location(name: str) -> RemoteRepositoryOrigin:
    origin = ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(module_name="shop"), name)
    return RemoteRepositoryOrigin(code_location_origin=origin, repository_name="__repository__")


def test_a_table_recreated_with_the_same_times_is_requested(
    events: Path, instance: DagsterInstance
) -> None:
    """Only its id differs then. The cursor keeps the id, so that no tick looks for it."""
    sensor = sensor_on(events, DAYS)
    append(events, ("mon", 1))
    first = tick(sensor, instance)
    run(instance, first, **{SOURCE_TABLE: (first.run_requests or [])[0].tags[SOURCE_TABLE]})
    append(events, ("tue", 1))
    second = tick(sensor, instance, first.cursor)
    log = events / "_delta_log" / f"{0:020}.json"
    table_id = str(DeltaTable(events).metadata().id)
    log.write_text(log.read_text().replace(table_id, "another"))
    lost = tick(sensor, instance)

    assert [requested(each) for each in (second, lost)] == [["tue"], ["mon", "tue"]]
    assert run_keys(lost) == [f"{run_keys(first)[0]}#2", *run_keys(second)]
    tables = [
        [each.tags[SOURCE_TABLE] for each in data.run_requests or []] for data in (first, second)
    ]
    assert tables[0] == tables[1] != [(lost.run_requests or [])[0].tags[SOURCE_TABLE]]


def test_each_changed_partition_gives_a_run(events: Path, instance: DagsterInstance) -> None:
    sensor = sensor_on(events, DAYS, max_requests_per_tick=2, source_asset=AssetKey("events"))
    append(events, ("tue", 1), (None, 2))
    append(events, ("mon", 3))
    append(events, ("tue", 4))
    first = tick(sensor, instance)
    # While the first three are being requested, a later version changes one again.
    append(events, ("mon", 5))
    second = tick(sensor, instance, first.cursor)
    third = tick(sensor, instance, second.cursor)
    DeltaTable(events).optimize.compact()
    compacted = tick(sensor, instance, third.cursor)
    DeltaTable(events).delete("day = 'tue'")  # rows that went are a change too
    deleted = tick(sensor, instance, compacted.cursor)
    for each in (first, second, third, deleted):
        run(instance, each)
    lost = tick(sensor, instance)

    ticks = (first, second, third, deleted)
    assert [requested(each) for each in ticks] == [
        ["__HIVE_DEFAULT_PARTITION__", "mon"],
        ["tue"],
        ["mon"],
        ["tue"],
    ]
    assert [versions(each) for each in ticks] == [["0", "1"], ["2"], ["3"], ["5"]]
    arrivals = [[e.metadata["commit/version"].value for e in each.asset_events] for each in ticks]
    assert arrivals == [[2], [], [3], [5]]  # once, also where it takes several ticks
    additions = [
        key for request in first.dynamic_partitions_requests or [] for key in request.partition_keys
    ]
    assert additions == requested(first)
    assert "no rows were changed" in (compacted.skip_message or "")
    assert requested(lost) == []


def test_no_run_is_requested_for_a_key_that_two_partitions_would_have(
    events: Path, instance: DagsterInstance
) -> None:
    named = {"day": ["mon|am", "mon", "tue"], "hour": ["9", "am|9", "8"], "id": [1, 2, 3]}
    write_deltalake(events, pa.table(named), partition_by=["day", "hour"])
    first = tick(sensor_on(events, DAYS), instance)
    assert requested(first) == ["tue|8"]
    assert requested(tick(sensor_on(events, DAYS), instance, first.cursor)) == []
    of_function = sensor_on(events, DAYS, partition_key=lambda of: f"{of['day']}/{of['hour']}")
    assert requested(tick(of_function, instance)) == ["mon/am|9", "mon|am/9", "tue/8"]


def test_fixed_partitions_are_requested_once_they_are_known(
    events: Path, instance: DagsterInstance
) -> None:
    append(events, ("mon", 1), ("tue", 2))
    early = tick(sensor_on(events, StaticPartitionsDefinition(["mon"])), instance)
    quiet = tick(sensor_on(events, StaticPartitionsDefinition(["mon"])), instance, early.cursor)
    later = tick(
        sensor_on(events, StaticPartitionsDefinition(["mon", "tue"])), instance, quiet.cursor
    )

    assert [requested(each) for each in (early, quiet, later)] == [["mon"], [], ["tue"]]
    assert quiet.skip_message == (
        f"No new version of {events}: 0 was the newest before, 1 unknown (tue)."
    )


def test_a_log_that_was_cleaned_up_meanwhile_is_taken_up_where_it_begins(
    events: Path, instance: DagsterInstance
) -> None:
    sensor = sensor_on(events, DAYS, max_requests_per_tick=1)
    for id_ in range(4):
        append(events, (f"day {id_}", id_))
    DeltaTable(events).create_checkpoint()
    first = tick(sensor, instance)
    run(instance, first)
    for version in (0, 1):  # as Delta does with what its log retention has passed
        (events / "_delta_log" / f"{version:020}.json").unlink()
    ticks = [first]
    for _ in range(3):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert [requested(each) for each in ticks] == [["day 0"], ["day 2"], ["day 3"], []]
    assert ticks[-1].skip_message == f"No new version of {events}: 3 was the newest before."


def test_partition_values_may_be_made_partition_keys_by_a_function(
    events: Path, instance: DagsterInstance
) -> None:
    weeks = StaticPartitionsDefinition(["weekend", "workdays"])
    append(events, ("sat", 1), ("sun", 2))

    def week(values: Mapping[str, str | None]) -> str:
        return "weekend" if values["day"] in ("sat", "sun") else "workdays"

    data = tick(sensor_on(events, weeks, partition_key=week), instance)

    assert requested(data) == ["weekend"]
