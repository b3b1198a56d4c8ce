"""The landing sensor on a disk: what it requests, and what its cursor keeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    Definitions,
    DynamicPartitionsDefinition,
    MonthlyPartitionsDefinition,
    PartitionsDefinition,
    RunsFilter,
    SensorEvaluationContext,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    job,
    op,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemotePartitionSetOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dagster_deltaweave import build_partition_sensor, build_table_sensor
from dagster_deltaweave.landing.listing import Delivery, LandingCursor, groups
from dagster_deltaweave.partitions import ATTEMPT_TAG, DELIVERY_TAG, HIDDEN
from tests.support.sensor_ticks import launch, requested, run_keys
from tests.support.sensor_ticks import launched_tick as tick
from tests.support.sensor_ticks import tick as raw_tick

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
    attempts: int = 3,
    retry_after_seconds: float = 60,
    **arguments: Any,
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
        attempts=attempts,
        retry_after_seconds=retry_after_seconds,
        **arguments,
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
    assert second.skip_message == f"No new partition in {landing}: 3 merged."


def test_dagsters_own_arguments_and_tags_of_runs_are_passed_on(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(
        landing,
        tags={"tier": "gold"},
        owners=["team:sales"],
        metadata={"runbook": "orders"},
        run_tags={"team": "sales", "deltaweave/delivery": "not of the sensor"},
    )
    land(landing, "2000-03")
    definition = sensor.get_unresolved_sensor_def("orders_landed")
    assert (definition.tags, definition.owners) == ({"tier": "gold"}, ["team:sales"])
    [request] = tick(sensor, instance).run_requests or []
    assert request.tags[DELIVERY_TAG].isdigit()
    # All others are the platform's, which Dagster's pages hide, and Dagster's own.
    shown = {name for name in request.tags if not name.startswith(("dagster/", HIDDEN))}
    assert shown == {"team"}


def test_a_tick_requests_fixed_partitions_in_their_order(
    landing: Path, instance: DagsterInstance
) -> None:
    months = MonthlyPartitionsDefinition("12-1999", fmt="%m-%Y", end_date="12-2000")
    for partition in ("01-2000", "02-2000", "12-1999"):
        land(landing, partition)

    in_order = ["12-1999", "01-2000", "02-2000"]
    all_of_them = raw_tick(orders_sensor(landing, partitions_def=months), instance)
    assert requested(all_of_them) == in_order

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
        f"No new partition in {landing}: 0 merged, "
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
    assert len({*run_keys(first), *run_keys(second)}) == 3


@pytest.mark.parametrize("kind", ["a selection", "an asset job", "a definition", "a job of ops"])
def test_a_target_without_partitions_is_refused_in_words(
    landing: Path, instance: DagsterInstance, kind: str
) -> None:
    @asset
    def orders() -> None: ...

    @job
    def of_ops() -> None: ...

    of_kind: dict[str, Any] = {
        "a selection": AssetSelection.assets(orders),
        "an asset job": define_asset_job("orders_job", selection=[orders]),
        "a definition": orders,
        "a job of ops": of_ops,
    }
    target = of_kind[kind]
    is_known = kind in ("a definition", "a job of ops")  # when definitions load
    land(landing, "a")
    jobs = [target] if "job" in kind else []
    watched: list[tuple[Any, dict[str, Any]]] = [
        (build_partition_sensor, {"directory": landing}),
        (build_table_sensor, {"table": landing}),
    ]

    def load_and_tick(build: Any, what: dict[str, Any]) -> None:
        sensor = build(name="landed", target=target, partitions_def=DYNAMIC, **what)
        assert not is_known
        tick(Definitions(assets=[orders], jobs=jobs, sensors=[sensor]), instance)

    name = "sensor landed" if is_known else f"sensor on {landing}"
    problem = f"^{name}: .* has no partitions, and the sensor requests a run for each"
    for build, what in watched:
        with pytest.raises(DagsterInvalidDefinitionError, match=problem):
            load_and_tick(build, what)


def test_the_runs_of_a_target_without_tables_show_what_is_done(
    landing: Path, instance: DagsterInstance
) -> None:
    """Whoever started them."""
    sensor = orders_sensor(landing)
    names = ["a", "b", "c", "d", "e", "f", "g"]
    for partition in names:
        land(landing, partition)
    time.sleep(0.06)  # a run that begins now has read them
    wanted = {each.partition_key: each for each in raw_tick(sensor, instance).run_requests or []}
    statuses = DagsterRunStatus.SUCCESS, DagsterRunStatus.STARTED, DagsterRunStatus.NOT_STARTED
    done, under_way, not_launched = statuses

    def ran(partition: str, status: DagsterRunStatus, *assets: str, **tags: str) -> None:
        tags = {"dagster/partition": partition, **tags}
        keys = frozenset(map(AssetKey, assets or ["orders"]))
        create_run_for_test(instance, tags=tags, status=status, asset_selection=keys)

    ran("a", done, **wanted["a"].tags)  # by a sensor of whatever name
    ran("b", done)  # by hand, after it landed
    ran("c", done, "others")
    ran("d", under_way)
    both = {"asset_partition_range_start": "e", "asset_partition_range_end": "f"}
    instance.add_dynamic_partitions("orders_partitions", names)
    tags = {f"dagster/{name}": value for name, value in both.items()}
    create_run_for_test(
        instance, tags=tags, status=under_way, asset_selection=frozenset([AssetKey("orders")])
    )
    key = {RUN_KEY_TAG: str(wanted["g"].run_key)}
    ran("g", not_launched, **wanted["g"].tags, **key)  # the daemon died before it launched it

    for cursor in (None, json.dumps({"a": "of another make"}), "no JSON"):
        data = raw_tick(sensor, instance, cursor)
        assert requested(data) == ["c", "g"]
        assert run_keys(data)[1] == wanted["g"].run_key
    launch(instance, "orders_landed", data)
    ran("g", done, **wanted["g"].tags)
    for run in instance.get_runs(RunsFilter(statuses=[not_launched])):
        instance.delete_run(run.run_id)
    assert raw_tick(sensor, instance, None).skip_message == (
        f"No new partition in {landing}: 4 merged, 3 under way (d, e, f)."
    )


def code_location(name: str) -> RemoteRepositoryOrigin:
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=name)
    origin = InProcessCodeLocationOrigin(target, location_name=name)
    return RemoteRepositoryOrigin(code_location_origin=origin, repository_name="__repository__")


@pytest.mark.parametrize("of_ops", [True, False])
def test_a_job_of_the_same_name_in_another_code_location_is_another_job(
    landing: Path, instance: DagsterInstance, of_ops: bool
) -> None:
    """But what the sensor requested counts, also under an earlier name of the location."""

    @op
    def one() -> None: ...

    @job(name="orders_job", partitions_def=DYNAMIC)
    def orders_job() -> None:
        one()

    landed = build_partition_sensor(
        name="landed", target=orders_job, directory=landing, partitions_def=DYNAMIC
    )
    defs = Definitions(jobs=[orders_job], sensors=[landed]) if of_ops else orders_sensor(landing)
    [sensor] = defs.sensors or []
    here = code_location("here")

    def look() -> SensorExecutionData:
        context = SensorEvaluationContext(
            instance_ref=instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            log_key=None,
            repository_name=here.repository_name,
            repository_def=defs.get_repository_def(),
            instance=instance,
            code_location_origin=here.code_location_origin,
        )
        return defs.resolve_sensor_def(sensor.name).evaluate_tick(context)

    def ran(location: str, partition: str, status: DagsterRunStatus, **tags: str) -> None:
        create_run_for_test(
            instance,
            "orders_job",
            tags={"dagster/partition": partition, **tags},
            status=status,
            remote_job_origin=RemoteJobOrigin(code_location(location), job_name="orders_job"),
        )

    for partition in "abc":
        land(landing, partition)
    instance.add_dynamic_partitions(str(DYNAMIC.name), [*"abc"])
    time.sleep(0.06)  # a run that begins now has read them
    first = look()
    assert requested(first) == [*"abc"]
    ran("elsewhere", "a", DagsterRunStatus.SUCCESS)
    ran("elsewhere", "b", DagsterRunStatus.STARTED)
    backfill = PartitionBackfill(
        backfill_id="elsewhere",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        partition_names=["c"],
        partition_set_origin=RemotePartitionSetOrigin(
            repository_origin=code_location("elsewhere"),
            partition_set_name="orders_job_partition_set",
        ),
    )
    instance.add_backfill(backfill)
    assert requested(look()) == [*"abc"]

    if of_ops:  # of assets, what a run was to do is known
        tags = {each.partition_key: each.tags for each in first.run_requests or []}
        ran("before", "a", DagsterRunStatus.SUCCESS, **tags["a"])
        ran("here", "b", DagsterRunStatus.SUCCESS)
        assert requested(look()) == ["c"]


def test_a_run_of_checks_alone_merges_nothing(landing: Path, instance: DagsterInstance) -> None:
    """Nor does one that executes other steps of the job again."""
    sensor = orders_sensor(landing)
    land(landing, "a")
    time.sleep(0.06)
    [wanted] = raw_tick(sensor, instance).run_requests or []
    tags = {"dagster/partition": "a", **wanted.tags}
    for selected in (frozenset[AssetKey](), None, frozenset({AssetKey("orders")})):
        create_run_for_test(
            instance,
            "orders_job",
            tags=tags,
            status=DagsterRunStatus.SUCCESS,
            asset_selection=selected,
            step_keys_to_execute=["orders_is_not_empty"] if selected else None,
        )
        assert requested(raw_tick(sensor, instance)) == ["a"]


def test_a_run_whose_plan_is_not_recorded_yet_is_under_way(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing)
    for partition in "ab":
        land(landing, partition)
    instance.add_dynamic_partitions(str(DYNAMIC.name), [*"ab"])
    create_run_for_test(
        instance,
        "orders_job",
        tags={"dagster/partition": "a"},
        status=DagsterRunStatus.NOT_STARTED,
    )
    assert requested(raw_tick(sensor, instance)) == ["b"]


def test_a_failed_run_is_retried_after_a_pause_and_a_new_delivery_at_once(
    landing: Path, instance: DagsterInstance
) -> None:
    def sensor(retry_after_seconds: float) -> Definitions:
        return orders_sensor(landing, attempts=2, retry_after_seconds=retry_after_seconds)

    def failed(data: SensorExecutionData) -> SensorExecutionData:
        launch(instance, "orders_landed", data, DagsterRunStatus.FAILURE)
        return data

    land(landing, "a")
    land(landing, "b")
    first = failed(raw_tick(sensor(60), instance))
    said = raw_tick(sensor(60), instance).skip_message or ""
    again = failed(raw_tick(sensor(0), instance))
    over = raw_tick(sensor(0), instance).skip_message or ""
    land(landing, "a", LATER)
    repaired = tick(sensor(60), instance)

    assert re.search(r"a: run \w{8} failed, attempt 1 of 2; it is tried again in (60|5\d) s", said)
    assert [requested(each) for each in (first, again, repaired)] == [["a", "b"]] * 2 + [["a"]]
    assert [r.tags[ATTEMPT_TAG] for r in again.run_requests or []] == ["2", "2"]
    assert "attempt 2 of 2: deliver it again, or run it yourself" in over
    keys = [key for each in (first, again, repaired) for key in run_keys(each)]
    assert len(set(keys)) == len(keys)
    launch(instance, "other", raw_tick(sensor(0), instance), DagsterRunStatus.CANCELED)


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
    sensor = orders_sensor(landing, max_requests_per_tick=3)
    for number in reversed(range(8)):
        land(landing, f"p{number}")
    ticks = [tick(sensor, instance)]
    land(landing, "p0", LATER)  # again, after it was requested
    land(landing, "p1a")
    for _ in range(5):
        ticks.append(tick(sensor, instance, ticks[-1].cursor))

    assert [requested(each) for each in ticks] == [
        ["p0", "p1", "p2"],
        ["p0", "p1a", "p3"],
        ["p4", "p5", "p6"],
        ["p7"],
        [],
        [],
    ]
    assert len(ticks[-1].cursor or "") < 100


def test_the_cursor_saves_looks_at_the_runs_of_what_is_done(
    landing: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"p{number:04}" for number in range(1_000)]
    cursor = LandingCursor(done=[digest for digest, _ in groups(map(a_delivery, names))])
    done = frozenset(cursor.done)
    looked = [each for each, _ in groups(map(a_delivery, names)) if each not in done]
    later = [*map(a_delivery, [*names, "p1000"]), Delivery("p0500", "again", 1)]
    later.sort(key=lambda each: each.partition)
    again = [group for each, group in groups(later) if each not in done]

    assert looked == []
    assert 1 < len(done) < 20
    assert len(again) <= 2
    assert len(cursor.to_cursor()) < 500


def a_delivery(name: str) -> Delivery:
    return Delivery(name, "1", 1)


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
    assert requested(third) == ["2000-03"]


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
        f"No new partition in {landing}: 0 merged, "
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
        f"No new partition in {landing}: 1 merged, 2 unknown (today, tomorrow)."
    )
    ticks = (first, third, fourth, fifth)
    assert [requested(each) for each in ticks] == [["yesterday"], ["today"], ["tomorrow"], []]


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
    assert second.skip_message == (f"No new partition in {landing}: 1 merged, 1 unknown (mars).")


def test_arrivals_are_recorded_at_the_landing_asset(
    landing: Path, instance: DagsterInstance
) -> None:
    sensor = orders_sensor(landing, landing_asset=AssetKey("orders_landing"))
    land(landing, "2000-03")

    [arrival] = tick(sensor, instance).asset_events

    assert (arrival.asset_key, arrival.partition) == (AssetKey("orders_landing"), "2000-03")
    assert arrival.metadata["dagster/uri"].value == (landing / "2000-03").as_uri()
