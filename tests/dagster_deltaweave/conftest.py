from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetsDefinition,
    DagsterInstance,
    ExecuteInProcessResult,
    instance_for_test,
    materialize,
)
from pyspark.sql import SparkSession

from dagster_deltaweave import SparkDeltaIOManager, SparkResource
from deltaweave import Table

Run = Callable[..., ExecuteInProcessResult]


def _event_log(home: Path) -> dict[str, Any]:
    """One database for the events of all runs; by default, Dagster makes one for each run."""
    storage = {
        "module": "dagster._core.storage.event_log",
        "class": "ConsolidatedSqliteEventLogStorage",
        "config": {"base_dir": str(home / "history")},
    }
    return {"event_log_storage": storage}


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of Dagster with its databases: to make them takes most of a small test's time."""
    home = tmp_path_factory.mktemp("dagster")
    with instance_for_test(temp_dir=str(home), overrides=_event_log(home)) as instance:
        instance.get_runs(limit=1)
        instance.all_logs("no run")
        instance.all_instigator_state()
    return home


@pytest.fixture
def instance(
    empty_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DagsterInstance]:
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(empty_home, home, dirs_exist_ok=True)
    with instance_for_test(temp_dir=str(home), overrides=_event_log(home)) as instance:
        yield instance


@pytest.fixture
def resources(spark: SparkSession, tmp_path: Path) -> dict[str, Any]:
    # getOrCreate sets the resource's configuration on the session of all tests: give it its own.
    same = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    settings = {key: spark.conf.get(key) for key in same}
    # VACUUM lists files in this many tasks; Spark's default is 10,000.
    settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = "2"
    resource = SparkResource(spark_config=settings)
    return {
        "spark": resource,
        "io_manager": SparkDeltaIOManager(root=str(tmp_path / "tables"), spark=resource),
    }


@pytest.fixture
def run(instance: DagsterInstance, resources: dict[str, Any]) -> Run:
    """Materializes assets in a real run; `selection` leaves the others as upstreams."""

    def materialized(
        *assets: AssetsDefinition, partition: str | None = None, **arguments: Any
    ) -> ExecuteInProcessResult:
        return materialize(
            assets, resources=resources, instance=instance, partition_key=partition, **arguments
        )

    return materialized


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Callable[[str], Table]:
    def of_asset(name: str) -> Table:
        return Table(spark, str(tmp_path / "tables" / name))

    return of_asset


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in table.read().collect()), key=repr)


def failure_messages(result: ExecuteInProcessResult) -> str:
    """The messages of the step failure event's error and all its causes, as the UI shows them."""
    [event] = [each for each in result.all_events if each.is_step_failure]
    error = event.step_failure_data.error
    messages = []
    while error is not None:
        messages.append(error.message)
        error = error.cause
    return "\n".join(messages)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds, for two minutes at most."""
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)
