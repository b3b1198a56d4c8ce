"""What a data engineer does with a running Dagster: webserver, daemon, and a run for each process.

All tests share one Dagster and its tables; each has orders and items of its own.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    DagsterEventType,
    DagsterRun,
    DagsterRunStatus,
)
from deltalake import DeltaTable, QueryBuilder

from tests.end_to_end.running import RunningDagster, running_dagster

pytestmark = pytest.mark.minutes

# One step of a pool at a time, as a table's merges need; a run waits in the queue until then.
SETTINGS = """
telemetry: {enabled: false}
concurrency:
  pools: {default_limit: 1, granularity: run}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""

Order = tuple[int, str | None, int]


class Shop:
    """The running deployment of `tests.end_to_end.shop`, its landing directory and its tables."""

    def __init__(self, dagster: RunningDagster, lake: Path) -> None:
        self.dagster, self.lake = dagster, lake

    def land(self, day: str, orders: Sequence[Order], *, complete: bool = False) -> None:
        """Land orders; only a complete day is one for the sensor."""
        columns = zip(*orders, strict=True)
        types = {"id": pa.int32(), "item": pa.string(), "pieces": pa.int32()}
        directory = self.lake / "landing" / day
        directory.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array(each, of) for each, of in zip(columns, types.values(), strict=True)]
        pq.write_table(pa.table(dict(zip(types, arrays, strict=True))), directory / "0.parquet")
        if complete:
            (directory / "_SUCCESS").touch()

    def orders(self, ids: range) -> list[Order]:
        """The orders in the table, of these ids."""
        return sorted(
            row for row in self._rows("orders", ("id", "item", "pieces")) if row[0] in ids
        )

    def stock(self, *items: str) -> dict[str, int]:
        return {
            row[0]: row[1] for row in self._rows("stock", ("item", "pieces")) if row[0] in items
        }

    def _rows(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        # The second engine: no JVM in the test's own process.
        found = QueryBuilder().register("t", DeltaTable(self.lake / "tables" / table))
        rows = pa.table(found.execute(f"SELECT {', '.join(columns)} FROM t").read_all())
        return [tuple(row.values()) for row in rows.to_pylist()]

    def closed(self, is_closed: bool) -> None:
        """Whether runs wait at their last step."""
        mark = self.lake / "closed"
        mark.touch() if is_closed else mark.unlink()

    def step_times(self, run: DagsterRun, step: str) -> tuple[float, float]:
        """When a run's step began and when it had stored its output, in s since 1970."""
        kinds = {DagsterEventType.STEP_START, DagsterEventType.HANDLED_OUTPUT}
        times = [
            record.timestamp
            for kind in kinds
            for record in self.dagster.instance.all_logs(run.run_id, of_type=kind)
            if record.step_key == step
        ]
        return min(times), max(times)

    def numbers(self, asset: str, run: DagsterRun) -> Mapping[str, object]:
        """The metadata of the materialization of an asset by a run."""
        for record in self.dagster.instance.fetch_materializations(
            AssetKey(asset), limit=100
        ).records:
            if record.run_id == run.run_id and record.asset_materialization:
                return {k: v.value for k, v in record.asset_materialization.metadata.items()}
        raise AssertionError(f"run {run.run_id} did not materialize {asset}")

    def checks(self, run: DagsterRun) -> list[AssetCheckEvaluation]:
        """What the run's asset checks found."""
        kind = DagsterEventType.ASSET_CHECK_EVALUATION
        records = self.dagster.instance.all_logs(run.run_id, of_type=kind)
        return [
            record.dagster_event.asset_check_evaluation_data
            for record in records
            if record.dagster_event
        ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    lake = tmp_path_factory.mktemp("shop")
    (lake / "landing").mkdir()

    def command(port: int) -> list[str]:
        module = "tests.end_to_end.shop"
        return [sys.executable, "-m", "dagster", "dev", "-m", module, "-p", str(port)]

    with running_dagster(
        command,
        lake / "dagster",
        location="tests.end_to_end.shop",
        settings=SETTINGS,
        environment={"DELTAWEAVE_LAKE": str(lake)},
    ) as dagster:
        yield Shop(dagster, lake)


def test_a_partition_that_lands_is_merged_observed_and_counted_downstream(shop: Shop) -> None:
    dagster = shop.dagster
    dagster.start_sensor("orders_landed")
    shop.land("day-31", [(3101, "tea", 2), (3102, "jam", 1)], complete=True)

    run = dagster.finished(dagster.requested("day-31").run_id)
    assert run.status == DagsterRunStatus.SUCCESS, dagster.errors()
    assert run.tags["dagster/sensor_name"] == "orders_landed"

    assert shop.orders(range(3100, 3200)) == [(3101, "tea", 2), (3102, "jam", 1)]
    assert shop.stock("tea", "jam") == {"tea": 2, "jam": 1}
    merged = shop.numbers("orders", run)
    assert (merged["merge/rows_inserted"], merged["merge/source_rows_unaffected"]) == (2, 0)
    observations = dagster.instance.fetch_observations(AssetKey("orders"), limit=20).records
    [observed] = [record for record in observations if record.run_id == run.run_id]
    assert observed.partition_key == "day-31"
    assert shop.numbers("stock", run)["merge/rows_inserted"] == 2


def test_a_backfill_over_thirty_partitions_merges_each_of_them_once(shop: Shop) -> None:
    dagster = shop.dagster
    days = [f"day-{number:02}" for number in range(1, 31)]
    for number, day in enumerate(days, 1):
        shop.land(day, [(number, "ink", 1), (1000 + number, "pen", number)])

    backfill = dagster.backfill(["orders"], days)
    # The daemon looks after a backfill's end twice a minute, after its runs all the time.
    runs = [dagster.finished(run_id) for run_id in _launched(dagster, backfill, 3)]

    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS] * 3, dagster.errors()
    # One after the other, since they merge into one table.
    times = sorted(shop.step_times(run, "orders") for run in runs)
    assert all(ended <= begun for (_, ended), (begun, _) in itertools.pairwise(times))
    assert len(shop.orders(range(1, 31))) == len(shop.orders(range(1001, 1031))) == 30
    partitions = dagster.instance.get_materialized_partitions(AssetKey("orders"))
    assert set(days) <= partitions


def test_a_failing_blocking_check_leaves_downstream_as_it_was(shop: Shop) -> None:
    dagster = shop.dagster
    shop.land("day-32", [(3201, "cup", 4), (3202, None, 1)])

    run = dagster.finished(dagster.launch(["orders", "stock"], "day-32", job="take_orders"))

    assert run.status == DagsterRunStatus.FAILURE
    assert shop.orders(range(3200, 3300)) == [(3201, "cup", 4), (3202, None, 1)]
    [check] = [each for each in shop.checks(run) if not each.passed]
    assert (check.check_name, check.blocking) == ("no_nulls", True)
    assert shop.stock("cup") == {}

    # Once the order is fixed, the run of the same day brings downstream what it lacks.
    shop.land("day-32", [(3201, "cup", 4), (3202, "lid", 1)])
    again = dagster.finished(dagster.launch(["orders", "stock"], "day-32", job="take_orders"))
    assert again.status == DagsterRunStatus.SUCCESS, dagster.errors()
    assert shop.stock("cup", "lid") == {"cup": 4, "lid": 1}


def test_of_two_runs_for_one_table_one_waits(shop: Shop) -> None:
    dagster = shop.dagster
    shop.land("day-33", [(3301, "pot", 1)])
    shop.land("day-34", [(3401, "pan", 1)])

    launched = [dagster.launch(["orders"], day) for day in ("day-33", "day-34")]
    runs = [dagster.finished(run_id) for run_id in launched]

    assert [run.status for run in runs] == [DagsterRunStatus.SUCCESS] * 2, dagster.errors()
    (_, first_ended), (second_began, _) = sorted(shop.step_times(run, "orders") for run in runs)
    assert first_ended <= second_began
    assert shop.orders(range(3300, 3500)) == [(3301, "pot", 1), (3401, "pan", 1)]


def test_a_killed_run_is_executed_again_and_counts_nothing_twice(shop: Shop) -> None:
    dagster = shop.dagster
    shop.land("day-35", [(3501, "hat", 5), (3502, "hat", 2)])
    shop.closed(True)
    killed = dagster.launch(["orders", "stock", "shelf_report"], "day-35", job="take_orders")
    dagster.eventually("the tables are merged", lambda: _has_begun(dagster, killed, "shelf_report"))

    os.kill(_process_of(dagster, killed), signal.SIGKILL)
    assert dagster.finished(killed).status == DagsterRunStatus.FAILURE
    shop.closed(False)
    again = dagster.finished(dagster.execute_again(killed))

    assert again.status == DagsterRunStatus.SUCCESS, dagster.errors()
    assert shop.orders(range(3500, 3600)) == [(3501, "hat", 5), (3502, "hat", 2)]
    assert shop.stock("hat") == {"hat": 7}


def _launched(dagster: RunningDagster, backfill: str, number: int) -> list[str]:
    """The runs of a backfill, once there are so many."""

    def runs() -> list[str] | None:
        found = [run.run_id for run in dagster.runs(dagster_backfill=backfill)]
        return found if len(found) == number else None

    return dagster.eventually(f"the backfill has {number} runs", runs)


def _has_begun(dagster: RunningDagster, run_id: str, step: str) -> bool:
    begun = dagster.instance.all_logs(run_id, of_type=DagsterEventType.STEP_START)
    return step in {record.step_key for record in begun}


def _process_of(dagster: RunningDagster, run_id: str) -> int:
    """The process that executes a run, by what it says itself."""
    for record in dagster.instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT):
        found = re.search(r"Executing steps in process \(pid: (\d+)\)", record.message)
        if found:
            return int(found.group(1))
    raise AssertionError(f"run {run_id} does not say what process executes it")
