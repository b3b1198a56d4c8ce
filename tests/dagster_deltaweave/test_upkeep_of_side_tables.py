"""Upkeep of a table covers the small tables that lie in its directory, which VACUUM passes by."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, Definitions
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import UpkeepPolicy, build_upkeep_job, cdc_asset
from deltaweave import Table

pytestmark = pytest.mark.minutes

POLICY = UpkeepPolicy(small_files=2, small_file_fraction=0)


def data_files(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("*.parquet")}


@pytest.mark.parametrize(
    ("kind", "beside"), [(1, "_deltaweave_tombstones"), (2, "_deltaweave_events")]
)
def test_files_that_no_version_of_a_side_table_needs_are_deleted(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    tmp_path: Path,
    kind: Any,
    beside: str,
) -> None:
    @cdc_asset(
        keys=["id"],
        sequence_by="at",
        apply_as_deletes="v IS NULL",
        except_column_list=["at"],
        stored_as_scd_type=kind,
    )
    def customers() -> DataFrame:
        raise NotImplementedError

    path = tmp_path / "tables" / "customers"
    for at in (1, 2, 3):
        deltaweave.apply_changes(
            spark,
            str(path),
            spark.createDataFrame([(at, at, None)], "id INT, at INT, v INT"),
            keys=["id"],
            sequence_by="at",
            apply_as_deletes="v IS NULL",
            except_column_list=["at"],
            stored_as_scd_type=kind,
        )
    table = Table(spark, str(path / beside))
    kept_for = "'delta.deletedFileRetentionDuration' = 'interval 0 hours'"
    spark.sql(f"ALTER TABLE delta.`{table.path_or_name}` SET TBLPROPERTIES ({kept_for})")
    before = data_files(path / beside)
    time.sleep(0.01)  # VACUUM takes what is older than now
    job = build_upkeep_job(
        name="kept", tables=[customers], operations=["optimize", "vacuum"], policy=POLICY
    )
    defs = Definitions(assets=[customers], jobs=[job], resources=resources)

    assert defs.resolve_job_def("kept").execute_in_process(instance=instance).success

    assert len(before) == 3
    assert len(data_files(path / beside)) == 1
    records = instance.fetch_observations(AssetKey("customers"), limit=2, ascending=True).records
    optimized, vacuumed = [record.asset_observation for record in records]
    assert optimized is not None
    assert vacuumed is not None
    assert optimized.metadata["upkeep/side_tables/files_removed"].value == 3
    assert vacuumed.metadata["upkeep/side_tables/files_deleted"].value == 3
    # The deletes are remembered as before.
    deltaweave.apply_changes(
        spark,
        str(path),
        spark.createDataFrame([(1, 0, 7), (4, 9, 7)], "id INT, at INT, v INT"),
        keys=["id"],
        sequence_by="at",
        except_column_list=["at"],
        stored_as_scd_type=kind,
    )
    names = ["id"] if kind == 1 else ["id", "__END_AT"]
    rows = {tuple(row) for row in Table(spark, str(path)).read().select(*names).collect()}
    assert rows == ({(4,)} if kind == 1 else {(1, 1), (4, None)})
