from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

import deltaweave
from tests.support.remaining_time import RemainingTime
from tests.support.turns import Share, Turns

# Before the JVM starts: without it, Spark resolves the host's name, which a sandbox may not have.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

# A busy machine makes no test fail.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

TINY_DATA = {
    "spark.master": "local[1]",  # each of pytest's workers has a session: one core for each
    "spark.ui.enabled": "false",
    # What the UI would show of past queries; their plans filled the driver's memory.
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    # What error messages and the UI would tell of each operation: a tenth of a tiny merge's time.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.driver.memory": "3g",  # with 2, a worker spent every 20th second in full collections
    # Hadoop starts a program for each file that it makes or renames, 40 for a commit: without the
    # JVM's helper process each in half the time.
    # The optimizing compiler took a quarter of the time: leave it the code that is hottest by far.
    "spark.driver.extraJavaOptions": "-XX:-UseSerialGC -XX:+UseParallelGC "
    "-Djdk.lang.Process.launchMechanism=VFORK "
    "-XX:Tier4InvocationThreshold=40000 -XX:Tier4MinInvocationThreshold=5000 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=300000",
    "spark.log.level": "OFF",  # failing tasks of tests that expect a failure fill pages otherwise
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # As built-in MERGE does, with which most tests compare: no file is rewritten where rows can be
    # marked (see tests/deltaweave/engine/strategies/test_files_left.py).
    "spark.deltaweave.merge.maxMarkedFraction": "1",
    # Tables of tests are tiny, and most tests are about what Spark does with larger ones. Tests of
    # merges on the driver turn this on.
    "spark.deltaweave.merge.onDriver": "false",
    # A tiny merge spends its time compiling expressions that run once: interpret them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# For half as many programs. Processes that are killed, and Dagster's, have Hadoop's usual disk.
WITHOUT_CHECKSUM_FILES = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}


# Modules whose tests share what takes long to make: a cluster, a store, a running Dagster, a warm
# driver.
MADE_ONCE = (
    "tests/deltaweave/engine/backends/test_object_store.py",
    "tests/end_to_end/test_through_kafka.py",
    "tests/deltaweave/changes/test_crashes.py",
    "tests/end_to_end/test_cluster_failures.py",
    "tests/end_to_end/test_running_deployment.py",
    "tests/end_to_end/test_browser.py",
    "tests/deployment/test_warm_driver.py",
)


# Begun first, so that no worker waits for the other's last.
LONGEST_FIRST = (
    "tests/end_to_end/test_running_deployment.py",
    "tests/end_to_end/test_browser.py",
    "tests/deployment/test_warm_driver.py",
    "tests/end_to_end/test_through_kafka.py",
    "tests/end_to_end/test_cluster_failures.py",
    "tests/deltaweave/engine/backends/test_object_store.py",
    "tests/deltaweave/changes/test_recorded_messages.py",
    "tests/deployment/test_dbt_example.py",
    "tests/properties/test_merge_equals_built_in.py",
    "tests/properties/test_rivals.py",
    "tests/deltaweave/changes/restores/test_restores.py",
    "tests/deltaweave/changes/test_other_logs.py",
    "tests/deltaweave/changes/test_histories.py",
    "tests/deltaweave/changes/test_versions.py",
    "tests/deltaweave/changes/test_current_rows.py",
    "tests/deltaweave/changes/restores/test_restored_lines.py",
    "tests/deltaweave/changes/side_tables/test_changed_columns.py",
    "tests/deltaweave/changes/merge_on_read/test_readers.py",
    "tests/deltaweave/cli/test_commands.py",
    "tests/deltaweave/engine/test_statistics_pruning.py",
    "tests/deltaweave/engine/commit/test_rebase.py",
    "tests/deployment/test_tutorial.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Turns())
    if share := os.environ.get("DELTAWEAVE_SHARE"):
        config.pluginmanager.register(Share(share, run_together))
    if not hasattr(config, "workerinput"):  # which a worker of xdist has
        config.pluginmanager.register(RemainingTime(config))


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: Any) -> list[Any] | None:
    """Makes no test of the whole matrix where none is run: they are most of the tests."""
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    is_left_out = "not full_matrix" in collector.config.getoption("markexpr")
    return [] if "full_matrix" in marks and is_left_out else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {module: place for place, module in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))


# All that compare a case with the oracle, which runs once for them.
OF_ONE_CASE = re.compile(r"(tests/merge_cases/test_merge_cases.py)::.*\[(\w+)")


def run_together(nodeid: str) -> str:
    """Return a name that a test shares with those that the same worker should run."""
    module = nodeid.split("::")[0]
    if module in MADE_ONCE:
        return module
    of_case = OF_ONE_CASE.match(nodeid)
    return "::".join(of_case.groups()) if of_case else nodeid


class ModulesOrTests(LoadScopeScheduling):
    """Gives each worker the next test, and to one worker what shares something long to make."""

    def _split_scope(self, nodeid: str) -> str:
        return run_together(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModulesOrTests:
    # Not --dist loadgroup: xdist 3.8 marks groups in a way that pytest 9.2 does not see.
    return ModulesOrTests(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a worker; each test works on tables of its own."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    # `make test-slow` turns the optimizing compiler off for JVMs that soon end: not for this one.
    java = f"{TINY_DATA['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=4"
    place = {"spark.sql.warehouse.dir": str(warehouse), "spark.driver.extraJavaOptions": java}
    session = deltaweave.local_session(**{**TINY_DATA, **WITHOUT_CHECKSUM_FILES, **place})
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _delta_forgets_the_tables_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delta keeps the log and cached file list of every table it saw, for an hour."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        assert session.sparkContext._jsc is not None, "this test, or one before, stopped Spark"
        session.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
