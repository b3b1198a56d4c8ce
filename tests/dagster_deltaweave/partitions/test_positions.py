"""Positions of partitions: how often they are computed, and what a deleted partition leaves."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetMaterialization,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    InputContext,
    IOManager,
    MonthlyPartitionsDefinition,
    OutputContext,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
    asset,
    build_sensor_context,
    materialize,
)
from dagster._core.test_utils import freeze_time

from dagster_deltaweave import build_partition_sensor
from dagster_deltaweave.io_manager import merge_order
from dagster_deltaweave.io_manager.merge_order import lease_of_run
from dagster_deltaweave.partitions import partition_positions
from dagster_deltaweave.sensors.run_requests import known_partitions
from dagster_deltaweave.tables import UPSERT_CLAUSES, MergeDeclaration
from tests.dagster_deltaweave.io_manager.test_earlier_runs import STARTED, created
from tests.support.sensor_ticks import requested, tick

LANDED = DynamicPartitionsDefinition(name="landed")


def calls_of(monkeypatch: pytest.MonkeyPatch, method: str) -> list[object]:
    """Count the calls of a method of definitions of time windows."""
    calls: list[object] = []
    before = getattr(TimeWindowPartitionsDefinition, method)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return before(*arguments, **named)

    monkeypatch.setattr(TimeWindowPartitionsDefinition, method, counted)
    return calls


def test_a_windows_position_is_computed_once(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster computes one in 0.2 ms, so ticks over 100,000 partitions would take 20 s each."""
    computed = calls_of(monkeypatch, "time_window_for_partition_key")
    for _ in range(2):
        positions = partition_positions(DailyPartitionsDefinition("1999-01-01"), instance)
        assert positions is not None
        assert positions("1999-01-02") == positions("1999-01-02")
    assert len(computed) == 1


def test_the_keys_of_windows_are_computed_once_for_each_window(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = calls_of(monkeypatch, "get_partition_keys")
    days = DailyPartitionsDefinition("2019-01-01", end_offset=1)
    context, known = build_sensor_context(instance=instance), []
    for day, hour in ((1, 1), (1, 5), (2, 6)):
        with freeze_time(datetime(2019, 1, day, hour, tzinfo=timezone.utc)):
            known.append(known_partitions(context, days))
    assert [len(each or ()) for each in known] == [1, 1, 2]
    assert len(computed) == 2


# Zones and the days around which their clocks, or their calendars, were changed.
TURNS = {
    "Pacific/Apia": ["2011-12-30", "2011-09-24"],  # a day that its calendar has not
    "Pacific/Kwajalein": ["1993-08-21"],
    "Pacific/Kiritimati": ["1994-12-31"],
    "Australia/Lord_Howe": ["2025-10-05", "2026-04-05"],  # by half an hour
    "Asia/Kathmandu": ["1986-01-01"],  # by a quarter of an hour
    "America/Sao_Paulo": ["2018-11-04", "2018-02-17"],  # at midnight
    "Antarctica/Troll": ["2026-03-29"],  # by two hours
    "Europe/Berlin": ["2026-03-29", "2026-10-25"],
    "America/New_York": ["2026-03-08", "2026-11-01"],
}


def windows_around(zone: str, day: str) -> Iterator[TimeWindowPartitionsDefinition]:
    middle = datetime.fromisoformat(day)
    start, end = middle - timedelta(days=3), middle + timedelta(days=3)
    of_days: dict[str, Any] = {"start_date": start, "end_date": end, "timezone": zone}
    of_months = {**of_days, "start_date": start - timedelta(days=99)}
    yield from (
        DailyPartitionsDefinition(**of_days, hour_offset=hour, minute_offset=minute)
        for hour, minute in ((0, 0), (2, 30), (23, 59))
    )
    yield from (HourlyPartitionsDefinition(**of_days, minute_offset=at) for at in (0, 30))
    yield from (
        WeeklyPartitionsDefinition(**of_months, day_offset=at, hour_offset=hour, minute_offset=15)
        for at in range(7)
        for hour in (0, 2)
    )
    yield MonthlyPartitionsDefinition(**of_months, hour_offset=2, minute_offset=30)
    for schedule in (
        "0 */6 * * *",
        "*/15 * * * *",
        "0 2,3 * * *",
        "0 0 * * 1-5",
        "30 23 29-31 * *",
    ):
        of_schedule: dict[str, Any] = {"start": start, "end": end, "timezone": zone}
        yield TimeWindowPartitionsDefinition(
            **of_schedule, cron_schedule=schedule, fmt="%d.%m.%Y %H:%M"
        )


@pytest.mark.parametrize("zone", TURNS)
def test_each_window_that_dagster_lists_has_its_place(instance: DagsterInstance, zone: str) -> None:
    """Also where the clock or the calendar is changed, and Dagster lists what no clock shows."""
    for definition in [each for day in TURNS[zone] for each in windows_around(zone, day)]:
        positions = partition_positions(definition, instance)
        assert positions is not None
        keys = definition.get_partition_keys()
        places = {key: positions(key) for key in keys}
        assert None not in places.values(), (definition, places)
        in_order = list(places.values())
        assert in_order == sorted(set(in_order)), definition


def test_a_key_of_another_schedule_has_no_place(instance: DagsterInstance) -> None:
    months = MonthlyPartitionsDefinition("2011-01-01", timezone="Pacific/Apia")
    positions = partition_positions(months, instance)
    assert positions is not None
    assert [positions(key) for key in ("2011-12-30", "2011-12-31", "2011-12", "x")] == [None] * 4


def test_a_skipped_day_has_its_place_once_dagster_lists_it(instance: DagsterInstance) -> None:
    days = DailyPartitionsDefinition("2011-12-28", timezone="Pacific/Apia")
    positions = partition_positions(days, instance)
    assert positions is not None
    with freeze_time(datetime(2011, 12, 29, 20, tzinfo=timezone.utc)):
        assert positions("2011-12-30") is None
    with freeze_time(datetime(2012, 1, 1, 20, tzinfo=timezone.utc)):
        assert positions("2011-12-29") < positions("2011-12-30") < positions("2011-12-31")


def test_days_that_a_zone_skipped_are_requested_in_order(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    for definition in (
        DailyPartitionsDefinition("2011-12-16", end_date="2012-01-20", timezone="Pacific/Apia"),
        WeeklyPartitionsDefinition(
            "2011-12-16", end_date="2012-01-20", day_offset=5, timezone="Pacific/Apia"
        ),
    ):

        @asset(partitions_def=definition)
        def orders() -> None: ...

        days = ["2011-12-23", "2011-12-30", "2012-01-06"]
        for day in days:
            (tmp_path / day).mkdir(exist_ok=True)
            (tmp_path / day / "_SUCCESS").touch()
        sensor = build_partition_sensor(
            name="s", target=orders, directory=tmp_path, partitions_def=definition
        )
        assert requested(tick(Definitions([orders], sensors=[sensor]), instance)) == days


class Leases(IOManager):
    """Waits as a merge does, and keeps the transaction ids of the lease."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def handle_output(self, context: OutputContext, obj: object) -> None:
        table: Any = SimpleNamespace(path_or_name="letters", exists=lambda: False)
        declared = MergeDeclaration(on="t.id = s.id", clauses=UPSERT_CLAUSES)
        output: Any = SimpleNamespace(
            context=context,
            table=table,
            declaration=declared,
            partitions=[context.partition_key],
            options=SimpleNamespace(wait_seconds=60),
        )
        lease = lease_of_run(output)
        assert lease is not None
        self.ids = dict(lease.marks)

    def load_input(self, context: InputContext) -> None: ...


def test_a_partition_that_is_deleted_while_its_run_waits_is_merged(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asset(partitions_def=LANDED)
    def letters() -> int:
        return 1

    pauses = []

    def pause(_: float) -> None:
        pauses.append(1)
        instance.delete_dynamic_partition("landed", "b")
        if len(pauses) == 2:
            instance.report_runless_asset_event(AssetMaterialization("letters", partition="a"))

    monkeypatch.setattr(merge_order, "time", SimpleNamespace(sleep=pause, time=time.time))
    instance.add_dynamic_partitions("landed", ["a", "b"])
    created(instance, "a", STARTED)
    manager = Leases()
    resources: dict[str, Any] = {"io_manager": manager}
    assert materialize([letters], resources=resources, instance=instance, partition_key="b").success
    assert len(pauses) == 2
    assert "deltaweave/order/letters#b" in manager.ids
