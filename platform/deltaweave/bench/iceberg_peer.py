"""Runs MERGE statements on Apache Iceberg; started by its path, in an environment of its own.

Iceberg's runtime is of another Spark than ours, so this module imports nothing of deltaweave (see
`iceberg.py`, which starts it). Its one argument is an object in JSON: `session`, the session's
configuration, and `catalog`, the name of Iceberg's catalog in it. Each line of its input is a job,
each line of its output says in JSON what came of it; the first line says which versions run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Whatever the input's files are, a task for each: it writes one file.
_A_PARTITION_FOR_EACH_FILE = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
}


def main() -> None:
    """Do the jobs of the standard input until it ends."""
    # Results alone go to the standard output; Spark and its JVM print to both.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    spark = _session(settings["session"])
    print(json.dumps(_versions(spark, settings["catalog"])), file=answers, flush=True)
    first_snapshots: dict[str, int] = {}
    for line in sys.stdin:
        job = json.loads(line)
        table = job["table"]
        if table not in first_snapshots:
            first_snapshots[table] = _make_table(spark, job)
        answer = _measure(spark, settings["catalog"], job, first_snapshots[table])
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def _session(configuration: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("iceberg")
    for key, value in configuration.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _versions(spark: SparkSession, catalog: str) -> dict[str, str]:
    (row,) = spark.sql(f"SELECT {catalog}.system.iceberg_version()").collect()
    return {"iceberg": row[0], "spark": spark.version}


def _make_table(spark: SparkSession, job: Mapping[str, Any]) -> int:
    """Write the job's target, a file for each of its files, and say which snapshot that is."""
    for name, value in _A_PARTITION_FOR_EACH_FILE.items():
        spark.conf.set(name, value)
    writer = spark.read.parquet(*job["target_files"]).writeTo(job["table"]).using("iceberg")
    for name, value in job["properties"].items():
        writer = writer.tableProperty(name, value)
    writer.create()
    for name in _A_PARTITION_FOR_EACH_FILE:
        spark.conf.unset(name)
    (row,) = spark.sql(f"SELECT snapshot_id FROM {job['table']}.snapshots").collect()
    return int(row[0])


def _measure(
    spark: SparkSession, catalog: str, job: Mapping[str, Any], snapshot: int
) -> dict[str, object]:
    """Run the job's merge once untimed, then `runs` times, on its target as it was at first."""
    spark.read.parquet(*job["source_files"]).createOrReplaceTempView(job["source"])
    # What the runs of the job before wrote: metadata must not grow from job to job.
    now = "CAST(current_timestamp() AS STRING)"
    (row,) = spark.sql(f"SELECT {now}").collect()
    _reset(spark, catalog, job["table"], snapshot)
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots("
        f"table => '{job['table']}', older_than => TIMESTAMP '{row[0]}')"
    )
    seconds = []
    for _ in range(1 + job["runs"]):
        files = _reset(spark, catalog, job["table"], snapshot)
        began = time.perf_counter()
        spark.sql(job["merge"])
        seconds.append(time.perf_counter() - began)
    (found,) = spark.table(job["table"]).selectExpr(*job["checksums"]).collect()
    return {
        "run_seconds": seconds[1:],
        "files_before": files,
        "checksums": [str(value) for value in found],
    }


def _reset(spark: SparkSession, catalog: str, table: str, snapshot: int) -> int:
    """The table as it was at first, its manifests read; returns how many files it has."""
    spark.sql(
        f"CALL {catalog}.system.rollback_to_snapshot(table => '{table}', snapshot_id => {snapshot})"
    )
    (row,) = spark.sql(f"SELECT count(*) FROM {table}.files").collect()
    return int(row[0])


if __name__ == "__main__":
    main()
