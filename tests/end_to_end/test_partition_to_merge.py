"""A landed partition, found by the daemon's sensor tick, run, merged, and seen in Dagster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetObservation,
    DagsterInstance,
    DagsterRunStatus,
    EventLogEntry,
    instance_for_test,
)
from dagster._core.definitions.assets.graph.remote_asset_graph import RemoteAssetGraph
from dagster._core.remote_representation.external import RemoteSensor
from dagster._core.scheduler.instigation import InstigatorTick, SensorInstigatorData, TickStatus
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.sensor import execute_sensor_iteration
from pyspark.sql import SparkSession

from deltaweave import Table
from tests.deployment.deployed import deliver_again, deployed, land_rows, web_return

KEYS = [AssetKey(name) for name in ("web_returns_landing", "web_returns", "returns_by_reason")]
LANDING, WEB_RETURNS, RETURNS_BY_REASON = KEYS


class Daemon:
    """The sensor daemon over the code location `assets.definitions`, ticking when it is asked to.

    Location and daemon are as `dagster dev` has them; only the clock is the test's, and runs are
    launched in this process.
    """

    def __init__(self, instance: DagsterInstance, workspace: WorkspaceProcessContext) -> None:
        self.instance, self.workspace = instance, workspace
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        [location] = workspace.create_request_context().code_locations
        [self.repository] = location.get_repositories().values()
        instance.start_sensor(self.sensor)

    @property
    def sensor(self) -> RemoteSensor:
        return self.repository.get_sensor("web_returns_landed")

    @property
    def asset_graph(self) -> RemoteAssetGraph[Any]:
        return self.repository.asset_graph

    def tick(self) -> InstigatorTick:
        """Let the daemon evaluate the sensor, a minute after the last time."""
        self.now += timedelta(minutes=1)
        with freeze_time(self.now):
            logger = logging.getLogger("SensorDaemon")
            list(execute_sensor_iteration(self.workspace, logger, None, None))
        ticks = self.instance.get_ticks(
            self.sensor.get_remote_origin_id(), self.sensor.selector_id, limit=1
        )
        return ticks[0]

    def lose_cursor(self) -> None:
        state = self.instance.get_instigator_state(
            self.sensor.get_remote_origin_id(), self.sensor.selector_id
        )
        assert state is not None
        data = state.instigator_data
        assert isinstance(data, SensorInstigatorData)
        self.instance.update_instigator_state(
            state.with_data(
                SensorInstigatorData(
                    last_tick_timestamp=data.last_tick_timestamp,
                    min_interval=data.min_interval,
                    sensor_type=data.sensor_type,
                )
            )
        )

    def runs(self) -> list[tuple[str, DagsterRunStatus]]:
        """Partition and status of each run, oldest first."""
        runs = reversed(self.instance.get_runs())
        return [(run.tags["dagster/partition"], run.status) for run in runs]

    def metadata(self, key: AssetKey) -> dict[str, Any]:
        """The metadata of an asset's newest materialization."""
        event: EventLogEntry | None = self.instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        return {k: v.value for k, v in event.asset_materialization.metadata.items()}

    def observation(self, key: AssetKey) -> AssetObservation:
        """An asset's newest observation."""
        [record] = self.instance.fetch_observations(key, limit=1).records
        assert record.asset_observation is not None
        return record.asset_observation


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    lake.mkdir()
    return lake


@pytest.fixture
def daemon(lake: Path, spark: SparkSession) -> Iterator[Daemon]:
    location = ModuleTarget("assets.definitions", None, None, "assets")
    with (
        deployed(lake, spark),
        instance_for_test(
            synchronous_run_launcher=True, synchronous_run_coordinator=True
        ) as instance,
        create_test_daemon_workspace_context(location, instance) as workspace,
    ):
        yield Daemon(instance, workspace)


def returns(spark: SparkSession, lake: Path) -> list[tuple[Any, ...]]:
    table = Table(spark, str(lake / "tables" / "web_returns"))
    columns = ("wr_order_number", "wr_item_sk", "wr_reason_sk", "wr_return_quantity")
    return sorted(tuple(row) for row in table.read().select(*columns).collect())


def by_reason(spark: SparkSession, lake: Path) -> dict[int | None, tuple[int, int]]:
    table = Table(spark, str(lake / "tables" / "returns_by_reason"))
    return {row.wr_reason_sk: (row.returns, row.quantity) for row in table.read().collect()}


def test_a_landed_partition_is_merged_and_shown(
    daemon: Daemon, spark: SparkSession, lake: Path
) -> None:
    tick = daemon.tick()
    assert tick.status == TickStatus.SKIPPED
    assert tick.skip_reason == f"The landing directory is missing: {lake}/landing/web_returns"

    # The first partition lands, and a part of the second.
    first = [
        web_return(1, 1, reason=7, quantity=2),
        web_return(1, 2, reason=7, quantity=3),
        web_return(2, 1, reason=None, quantity=None),
        web_return(3, 1, reason=8, quantity=1),
    ]
    land_rows(spark, lake, "1999-11", first)
    corrections = [
        web_return(1, 2, reason=9, quantity=4),
        web_return(3, 1, op="delete"),
        web_return(4, 1, reason=None, quantity=6),
    ]
    second = land_rows(spark, lake, "1999-12", corrections, complete=False)

    assert daemon.tick().status == TickStatus.SUCCESS
    assert daemon.runs() == [("1999-11", DagsterRunStatus.SUCCESS)]
    assert returns(spark, lake) == [(1, 1, 7, 2), (1, 2, 7, 3), (2, 1, None, None), (3, 1, 8, 1)]
    assert by_reason(spark, lake) == {7: (2, 5), None: (1, 0), 8: (1, 1)}

    tick = daemon.tick()
    assert tick.status == TickStatus.SKIPPED
    assert "1 incomplete (1999-12; their marker is _SUCCESS)" in (tick.skip_reason or "")

    # The second is complete: it corrects a return, deletes one, and adds one.
    (second / "_SUCCESS").touch()
    assert daemon.tick().status == TickStatus.SUCCESS
    assert daemon.runs()[1:] == [("1999-12", DagsterRunStatus.SUCCESS)]
    assert returns(spark, lake) == [
        (1, 1, 7, 2),
        (1, 2, 9, 4),
        (2, 1, None, None),
        (4, 1, None, 6),
    ]
    assert by_reason(spark, lake) == {7: (1, 2), 9: (1, 4), None: (2, 6)}

    # Dagster shows what the merge did, as materialization and as observation of the partition.
    merge = {
        "merge/source_rows": 3,
        "merge/rows_updated": 1,
        "merge/rows_deleted": 1,
        "merge/rows_inserted": 1,
        "merge/source_rows_unaffected": 0,
        "merge/rows_copied": 0,
        "merge/strategy": "deletion-vectors",
    }
    metadata = daemon.metadata(WEB_RETURNS)
    assert {**metadata, **merge} == metadata
    assert metadata["dagster/row_count"] == 4
    assert [column.name for column in metadata["dagster/column_schema"].columns][
        -1
    ] == "wr_net_loss"
    observed = daemon.observation(WEB_RETURNS)
    assert observed.partition == "1999-12"
    assert observed.description == metadata["merge/summary"]
    counts = daemon.metadata(RETURNS_BY_REASON)
    assert (counts["merge/rows_deleted"], counts["merge/rows_inserted"]) == (1, 1)

    # And the lineage from the source to the downstream, with the partitions that landed.
    graph = daemon.asset_graph
    assert [graph.get(key).parent_keys for key in KEYS] == [set(), {LANDING}, {WEB_RETURNS}]
    assert daemon.instance.get_materialized_partitions(LANDING) == {"1999-11", "1999-12"}
    assert daemon.instance.get_materialized_partitions(WEB_RETURNS) == {"1999-11", "1999-12"}


@pytest.mark.minutes
def test_a_delivery_is_merged_once_though_the_cursor_is_lost(
    daemon: Daemon, spark: SparkSession, lake: Path
) -> None:
    """The delivery is merged again when it is delivered again."""
    directory = land_rows(spark, lake, "1999-11", [web_return(1, 1, reason=7, quantity=2)])
    daemon.tick()

    daemon.lose_cursor()
    daemon.tick()
    assert daemon.runs() == [("1999-11", DagsterRunStatus.SUCCESS)]

    deliver_again(directory)
    daemon.tick()
    assert daemon.runs() == [("1999-11", DagsterRunStatus.SUCCESS)] * 2
    assert returns(spark, lake) == [(1, 1, 7, 2)]
    assert by_reason(spark, lake) == {7: (1, 2)}
