from __future__ import annotations

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


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with instance_for_test() as instance:
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
