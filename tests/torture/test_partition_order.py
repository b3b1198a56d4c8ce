"""Fifty partitions of the same keys through a daemon, four runs at once, in random order."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import AssetKey, DagsterRunStatus
from deltalake import DeltaTable, QueryBuilder

from tests.end_to_end.running import RunningDagster, running_dagster
from tests.torture.prices import DAYS, prices_of
from tests.torture.sizes import first_seed, size

pytestmark = pytest.mark.torture

SETTINGS = """
telemetry: {enabled: false}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {max_concurrent_runs: 4, dequeue_interval_seconds: 1}
"""
LOCATION = "tests.torture.prices"
SECONDS = 3_000


def merged(dagster: RunningDagster) -> set[str]:
    return dagster.instance.get_materialized_partitions(AssetKey("prices"))


def prices(lake: Path) -> dict[int, str]:
    found = QueryBuilder().register("t", DeltaTable(lake / "tables" / "prices"))
    rows = pa.table(found.execute("SELECT item, price FROM t").read_all())
    return {row["item"]: row["price"] for row in rows.to_pylist()}


def test_partitions_run_in_random_order_give_what_they_give_one_by_one(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    number = size("PARTITIONS", small=10, full=50)
    seed = first_seed()
    draw, days = random.Random(seed), DAYS[:number]
    expected: dict[int, str] = {}
    for day in days:
        expected |= prices_of(day)

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "dagster", "dev", "-m", LOCATION, "-p", str(port)]

    with running_dagster(
        command,
        tmp_path / "dagster",
        location=LOCATION,
        settings=SETTINGS,
        environment={"DELTAWEAVE_LAKE": str(tmp_path)},
    ) as dagster:
        for day in draw.sample(days, number):
            dagster.launch(["prices"], day)

        def are_merged() -> bool:
            # What made room for an older partition, or came before it, is executed again.
            for day in days:
                runs = dagster.runs(dagster_partition=day)
                if runs[-1].status == DagsterRunStatus.FAILURE and day not in merged(dagster):
                    dagster.execute_again(runs[-1].run_id)
            return merged(dagster) == set(days)

        dagster.eventually("all days are merged", are_merged, SECONDS)
        assert prices(tmp_path) == expected, f"seed {seed}"
        merging = dagster.instance.get_runs()
        made_room = sum(run.status == DagsterRunStatus.FAILURE for run in merging)

        # The newest one, which may come again, and older ones, which may not.
        drawn = [*draw.choices(days, k=2 * number // 5 - 1), days[-1]]
        again = [dagster.launch(["prices"], day) for day in drawn]
        done = [dagster.finished(run_id, SECONDS) for run_id in again]
        newest = {run.run_id for run in done if run.tags["dagster/partition"] == days[-1]}
        succeeded = {run.run_id for run in done if run.status == DagsterRunStatus.SUCCESS}
        assert succeeded == newest
        assert prices(tmp_path) == expected, f"seed {seed}"
        record_property(
            f"partitions through a daemon (seed {seed})",
            f"{number} merged by {len(merging)} runs; {made_room} of them made room for older "
            f"ones; {len(again)} run again: {len(newest)} of them were the newest and the others "
            "refused; the table equals a replay in order",
        )
