"""The sensor on a source table whose partition columns have physical names of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance, DynamicPartitionsDefinition
from pyspark.sql import SparkSession

from tests.dagster_deltaweave.sensors.test_table import sensor_on
from tests.support.sensor_ticks import requested, tick

PLACES = DynamicPartitionsDefinition(name="places")


@pytest.mark.parametrize("since", ["commits", "checkpoint", "a rename"])
def test_partitions_of_mapped_columns_are_named_by_the_columns_names(
    spark: SparkSession, instance: DagsterInstance, tmp_path: Path, since: str
) -> None:
    table = f"delta.`{tmp_path / 'events'}`"
    interval = "1" if since == "checkpoint" else "100"
    spark.sql(
        f"CREATE TABLE {table} (id INT, region STRING, day STRING, shop STRING, kind STRING) "
        "USING delta PARTITIONED BY (region, day, shop, kind) TBLPROPERTIES "
        f"('delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '{interval}')"
    )
    spark.sql(f"INSERT INTO {table} VALUES (1, 'eu', 'mon', 's', 'k')")
    if since == "a rename":
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN region TO area")

    found = tick(sensor_on(tmp_path / "events", PLACES), instance)

    # By the names day, kind, region, shop; or area, day, kind, shop.
    assert requested(found) == ["eu|mon|k|s" if since == "a rename" else "mon|k|eu|s"]
