from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster import AssetKey, DagsterInstance, Definitions, build_schedule_context
from pyspark.sql import SparkSession

from dagster_deltaweave import build_upkeep_schedule, merge_asset
from deltaweave import Table
from tests.orchestration.conftest import rows


@merge_asset(keys=["id"], key_prefix="sales")
def customers() -> None: ...


def upkeep(resources: dict[str, Any]) -> Definitions:
    schedule = build_upkeep_schedule(name="nightly", tables=[customers], cron_schedule="0 3 * * *")
    return Definitions(assets=[customers], schedules=[schedule], resources=resources)


def test_small_files_are_compacted_and_kept_versions_stay_readable(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    table = Table(spark, str(tmp_path / "tables" / "sales" / "customers"))
    for id_ in range(3):
        one = spark.range(id_, id_ + 1).coalesce(1)
        one.write.format("delta").mode("append").save(table.path_or_name)
    job = upkeep(resources).resolve_job_def("nightly_job")

    assert job.execute_in_process(instance=instance).success

    [record] = instance.fetch_observations(AssetKey(["sales", "customers"]), limit=10).records
    assert record.asset_observation is not None
    done = {key: entry.value for key, entry in record.asset_observation.metadata.items()}
    assert done["upkeep/files_compacted"] == 3
    assert done["upkeep/files_added"] == 1
    # Within the retention VACUUM deletes nothing: the newest version and those before it are there.
    assert done.get("upkeep/files_deleted", 0) == 0
    assert rows(table) == [(0,), (1,), (2,)]
    assert table.read(version=1).count() == 2


def test_a_table_that_does_not_exist_yet_is_left_alone(
    resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    job = upkeep(resources).resolve_job_def("nightly_job")

    assert job.execute_in_process(instance=instance).success
    assert not (tmp_path / "tables").exists()


def test_the_schedule_requests_its_job(
    resources: dict[str, Any], instance: DagsterInstance
) -> None:
    defs = upkeep(resources)
    schedule = defs.resolve_schedule_def("nightly")

    with build_schedule_context(
        instance=instance, repository_def=defs.get_repository_def()
    ) as context:
        data = schedule.evaluate_tick(context)

    assert (schedule.cron_schedule, schedule.job_name) == ("0 3 * * *", "nightly_job")
    assert len(data.run_requests or []) == 1
