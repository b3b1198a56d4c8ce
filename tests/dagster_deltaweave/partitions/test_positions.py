"""Positions of partitions: how often they are computed, and what a deleted partition leaves."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetMaterialization,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    InputContext,
    IOManager,
    OutputContext,
    TimeWindowPartitionsDefinition,
    asset,
    build_sensor_context,
    materialize,
)
from dagster._core.test_utils import freeze_time

from dagster_deltaweave.io_manager import merge_order
from dagster_deltaweave.io_manager.merge_order import lease_of_run
from dagster_deltaweave.partitions import partition_positions
from dagster_deltaweave.sensors.run_requests import known_partitions
from dagster_deltaweave.tables import UPSERT_CLAUSES, MergeDeclaration
from tests.dagster_deltaweave.io_manager.test_earlier_runs import STARTED, created

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


class Leases(IOManager):
    """Waits as a merge does, and keeps the marks of the lease."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}

    def handle_output(self, context: OutputContext, obj: object) -> None:
        table: Any = SimpleNamespace(path_or_name="letters", exists=lambda: False)
        declared = MergeDeclaration(on="t.id = s.id", clauses=UPSERT_CLAUSES)
        output: Any = SimpleNamespace(
            context=context,
            table=table,
            declaration=declared,
            partitions=[context.partition_key],
            wait_seconds=60,
        )
        lease = lease_of_run(output)
        assert lease is not None
        self.marks = dict(lease.marks)

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
    assert "deltaweave/order/letters#b" in manager.marks
