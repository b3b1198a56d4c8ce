"""Merges by name into tables of a Hive metastore, which Derby keeps in a folder; prints JSON.

Run as a program, since a Spark's catalog is chosen once, and that of pytest's is in memory. The
argument is the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dagster import instance_for_test, materialize
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from dagster_deltaweave import SparkDeltaIOManager, SparkResource, merge_asset
from deltaweave import Table
from tests.builders import frame
from tests.conftest import TINY_DATA

SCHEMA = "id INT, v STRING"
BY_TEXT = """
    MERGE INTO gold.orders AS t USING changes AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
"""


def conf(folder: Path) -> dict[str, str]:
    database = folder / "metastore"
    return {
        **TINY_DATA,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Derby waits for no disk: nobody needs the metastore after a crash.
        "spark.driver.extraJavaOptions": f"{TINY_DATA['spark.driver.extraJavaOptions']} "
        "-Dderby.system.durability=test",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{database};create=true",
    }


def rows(table: Table) -> list[list[Any]]:
    return sorted(list(row) for row in table.read().collect())


def tables_in(spark: SparkSession, database: str) -> list[str]:
    listed = spark.sql(f"SHOW TABLES IN {database}").collect()
    return sorted(row.tableName for row in listed if not row.isTemporary)


def by_asset(spark: SparkSession, folder: Path, settings: dict[str, str]) -> None:
    """A run of assets that creates their tables, named by `table` and by metadata."""

    @merge_asset(keys=["id"], table="gold.returns")
    def returns() -> DataFrame:
        return frame(spark, [(1, "by asset")], SCHEMA)

    @merge_asset(keys=["id"], metadata={"schema": "gold", "catalog": "spark_catalog"})
    def refunds() -> DataFrame:
        return frame(spark, [(1, "by schema")], SCHEMA)

    resource = SparkResource(spark_config=settings)
    manager = SparkDeltaIOManager(root=str(folder / "tables"), spark=resource)
    with instance_for_test() as instance:
        for _ in range(2):  # it makes the table, then merges into it
            given = {"io_manager": manager, "spark": resource}
            assert materialize([returns, refunds], resources=given, instance=instance).success


def main(folder: Path) -> None:
    settings = conf(folder)
    spark = deltaweave.local_session(**settings)
    for database in ("bronze", "gold"):
        spark.sql(f"CREATE DATABASE {database}")
    bronze, gold = Table(spark, "bronze.orders"), Table(spark, "gold.orders")
    created = [bronze.create_if_missing(SCHEMA), bronze.create_if_missing(SCHEMA)]
    spark.sql(f"CREATE TABLE gold.orders ({SCHEMA}) USING delta")
    for table in (bronze, gold):
        table.write(frame(spark, [(1, "before"), (2, "before")], SCHEMA), "append")

    frame(spark, [(2, "by text"), (3, "by text")], SCHEMA).createOrReplaceTempView("changes")
    after_text = deltaweave.merge(spark, BY_TEXT).version, rows(gold), rows(bronze)
    spark.sql("USE bronze")
    changes = frame(spark, [(1, "by clauses")], SCHEMA)
    merge = Table(spark, "orders").merge(changes, on="t.id = s.id").when_matched_update_all()
    after_clauses = merge.execute().version, rows(gold), rows(bronze)
    by_asset(spark, folder, settings)
    catalog = spark._jsparkSession.sharedState().externalCatalog().unwrapped()
    outcome = {
        "catalog": catalog.getClass().getSimpleName(),
        "created": created,
        "after_text": after_text,
        "after_clauses": after_clauses,
        "by_asset": (rows(Table(spark, "gold.returns")), Table(spark, "gold.returns").version()),
        "by_schema": (rows(Table(spark, "gold.refunds")), Table(spark, "gold.refunds").version()),
        "tables": {database: tables_in(spark, database) for database in ("bronze", "gold")},
        "provider": spark.sql("DESCRIBE DETAIL gold.returns").head().format,
        "places": [table.location() for table in (bronze, gold, Table(spark, "gold.returns"))],
    }
    print(json.dumps(outcome))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
