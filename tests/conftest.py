from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import deltaweave

# Before the JVM starts: without it, Spark resolves the host's name, which a sandbox may not have.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

TINY_DATA = {
    "spark.master": "local[1]",  # each of pytest's workers has a session: one core for each
    "spark.ui.enabled": "false",
    # What the UI would show of past queries; their plans filled the driver's memory.
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.log.level": "OFF",  # failing tasks of tests that expect a failure fill pages otherwise
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # As built-in MERGE does, with which most tests compare: no file is rewritten where rows can be
    # marked (see tests/engine/test_files_left.py).
    "spark.deltaweave.merge.maxMarkedFraction": "1",
    # A tiny merge spends its time compiling expressions that run once: interpret them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a worker; each test works on tables of its own."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = deltaweave.local_session(**TINY_DATA, **{"spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _delta_forgets_the_tables_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delta keeps the log and cached file list of every table it saw, for an hour."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        session.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
