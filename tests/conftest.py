from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import deltaweave

# Before the JVM starts: without it, Spark resolves the host's name, which a sandbox may not have.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

TINY_DATA = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",  # failing tasks of tests that expect a failure fill pages otherwise
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # A tiny merge spends its time compiling expressions that run once: interpret them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests; each test works on tables of its own."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = deltaweave.local_session(**TINY_DATA, **{"spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()
