from __future__ import annotations

import subprocess
import sys

import pytest
from dagster import AssetKey, Definitions, DynamicPartitionsDefinition

LOADED = """
import sys, time
import dagster
began = time.process_time()
from assets.definitions import defs
repository = defs.get_repository_def()
repository.get_all_jobs()
seconds = time.process_time() - began  # not of the clock: the machine may be busy
from pyspark import SparkContext
assert SparkContext._gateway is None, "a JVM was started"
heavy = {"pandas", "pyarrow", "numpy", "delta"} & set(sys.modules)
assert not heavy, heavy
print(seconds)
"""


@pytest.fixture(scope="module")
def defs() -> Definitions:
    from assets.definitions import defs

    return defs


@pytest.mark.minutes
def test_loading_starts_no_jvm_imports_nothing_heavy_and_is_quick() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=False
    )

    assert loaded.returncode == 0, loaded.stderr
    assert float(loaded.stdout) < 2


def test_the_deployment_consists_of(defs: Definitions) -> None:
    repository = defs.get_repository_def()

    assert {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()} == {
        "web_returns_landing",
        "web_returns",
        "returns_by_reason",
    }
    assert {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"} == {
        "merge_web_returns",
        "nightly_upkeep_job",
    }
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly_upkeep"]
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "web_returns_landed",
        "commits_of_others",
    }
    checks = repository.asset_graph.asset_check_keys
    assert {(check.asset_key.to_user_string(), check.name) for check in checks} == {
        ("web_returns", "unique_key"),
        ("web_returns", "no_nulls"),
        ("web_returns", "source_rows_accounted_for"),
        ("returns_by_reason", "no_nulls"),
    }


def test_lineage_goes_from_source_to_table_to_downstream(defs: Definitions) -> None:
    graph = defs.get_repository_def().asset_graph
    landing, table, counts = (
        graph.get(AssetKey(name))
        for name in ("web_returns_landing", "web_returns", "returns_by_reason")
    )

    assert landing.is_external
    assert landing.child_keys == {table.key}
    assert table.parent_keys == {landing.key}
    assert table.child_keys == {counts.key}
    assert not counts.child_keys


def test_the_table_shares_the_partitions_of_its_source(defs: Definitions) -> None:
    graph = defs.get_repository_def().asset_graph

    for name in ("web_returns_landing", "web_returns"):
        partitions_def = graph.get(AssetKey(name)).partitions_def
        assert isinstance(partitions_def, DynamicPartitionsDefinition)
        assert partitions_def.name == "web_returns_partitions"


def test_each_table_has_a_pool_that_its_upkeep_shares(defs: Definitions) -> None:
    repository = defs.get_repository_def()

    for key in ("web_returns", "returns_by_reason"):
        pool = f"merge/{key}"
        assert repository.asset_graph.get(AssetKey(key)).pools == {pool}
        for operation in ("optimize", "purge", "statistics", "index_keys", "vacuum"):
            upkeep = repository.get_job("nightly_upkeep_job").get_node_named(f"{operation}_{key}")
            assert upkeep.definition.pools == {pool}
