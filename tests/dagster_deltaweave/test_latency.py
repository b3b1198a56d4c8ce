from __future__ import annotations

import pytest
from dagster import DagsterInstance, asset
from pyspark.sql import DataFrame

from dagster_deltaweave import SparkResource, merge_asset
from dagster_deltaweave.latency import latencies
from tests.dagster_deltaweave.conftest import Run


@asset
def no_merge() -> None: ...


@merge_asset(keys=["id"])
def numbers(spark: SparkResource) -> DataFrame:
    return spark.session.range(3)


def test_the_seconds_of_a_run_add_up_to_those_of_its_events(
    run: Run, instance: DagsterInstance
) -> None:
    run(no_merge)
    merged = run(numbers)

    [latency] = latencies(instance)

    assert (latency.run_id, latency.asset) == (merged.run_id, "numbers")
    [materialization] = merged.asset_materializations_for_node("numbers")
    assert latency.merging == materialization.metadata["merge/seconds"].value
    [stored] = [
        each.timestamp
        for each in instance.all_logs(merged.run_id)
        if each.asset_materialization is not None
    ]
    record = instance.get_run_record_by_id(merged.run_id)
    assert record is not None
    assert record.start_time is not None
    parts = (latency.starting, latency.preparing, latency.storing, latency.recording)
    assert sum(parts) + latency.merging == pytest.approx(stored - record.start_time, abs=0.05)
    assert latency.beyond_the_merge == pytest.approx(sum(parts) - latency.recording)
    assert min(parts[1:]) > 0
    assert latency.queued == 0
