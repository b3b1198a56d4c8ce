"""Does jobs on a peer's tables; started by its path, in an environment of the peer's own.

The peer's runtime is of another Spark than ours, so this module imports nothing of deltaweave (see
`peer_process.py`, which starts it). Its one argument is the session's configuration, in JSON. Each
line of its input is a job, each line of its output says in JSON what came of it; the first line
says which Spark runs. There are two kinds of jobs: `merge`, one MERGE on an Iceberg table that is
rolled back before each run, and `steps`, statements on a newly created table of any format.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    spark = _session(json.loads(sys.argv[1]))
    print(json.dumps({"spark": spark.version}), file=answers, flush=True)
    first_snapshots: dict[str, int] = {}
    for line in sys.stdin:
        job = json.loads(line)
        answer: Mapping[str, object]
        try:
            if job["kind"] == "merge":
                answer = _merge(spark, job, first_snapshots)
            else:
                answer = do_steps(spark, job)
        except Exception as error:  # whatever the peer raises: the one who asked tells it
            traceback.print_exc()
            answer = {"error": _in_one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def do_steps(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, object]:
    """Make the job's table and do its steps with it, once untimed, then `runs` times.

    Args:
        spark: The session.
        job: As `upserts.upsert_job` makes it.

    Returns:
        The seconds of each step's timed runs, by its name, and the checksums at the end.
    """
    for name, files in job["views"].items():
        spark.read.parquet(*files).createOrReplaceTempView(name)
    seconds: dict[str, list[float]] = {step["name"]: [] for step in job["steps"]}
    for _ in range(1 + job["runs"]):
        with _a_partition_for_each_file(spark):
            for text in job["make"]:
                spark.sql(text)
        for step in job["steps"]:
            began = time.perf_counter()
            if "read" in step:
                _compute(spark, step["read"])
            else:
                spark.sql(step["run"])
            seconds[step["name"]].append(time.perf_counter() - began)
    (found,) = spark.sql(job["checked"]).selectExpr(*job["checksums"]).collect()
    return {
        "run_seconds": {name: runs[1:] for name, runs in seconds.items()},
        "checksums": [str(value) for value in found],
    }


def _session(configuration: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("peer")
    for key, value in configuration.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def _a_partition_for_each_file(spark: SparkSession) -> Iterator[None]:
    for name, value in _A_PARTITION_FOR_EACH_FILE.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _A_PARTITION_FOR_EACH_FILE:
            spark.conf.unset(name)


def _compute(spark: SparkSession, query: str) -> None:
    """Compute every column of every row, and keep none: as `delta.jvm.compute` does on our side."""
    spark.sql(query)._jdf.queryExecution().toRdd().count()


def _in_one_line(error: Exception) -> str:
    """The error's name and the first line of what it says."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}"


def _merge(
    spark: SparkSession, job: Mapping[str, Any], first_snapshots: dict[str, int]
) -> dict[str, object]:
    """Run the job's merge once untimed, then `runs` times, on its target as it was at first."""
    catalog, table = job["catalog"], job["table"]
    if table not in first_snapshots:
        first_snapshots[table] = _make_target(spark, job)
    spark.read.parquet(*job["source_files"]).createOrReplaceTempView(job["source"])
    # What the runs of the job before wrote: metadata must not grow from job to job.
    now = "CAST(current_timestamp() AS STRING)"
    (row,) = spark.sql(f"SELECT {now}").collect()
    _reset(spark, catalog, table, first_snapshots[table])
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots("
        f"table => '{table}', older_than => TIMESTAMP '{row[0]}')"
    )
    seconds = []
    for _ in range(1 + job["runs"]):
        files = _reset(spark, catalog, table, first_snapshots[table])
        began = time.perf_counter()
        spark.sql(job["merge"])
        seconds.append(time.perf_counter() - began)
    (found,) = spark.table(table).selectExpr(*job["checksums"]).collect()
    return {
        "run_seconds": seconds[1:],
        "files_before": files,
        "checksums": [str(value) for value in found],
    }


def _make_target(spark: SparkSession, job: Mapping[str, Any]) -> int:
    """Write the job's target, a file for each of its files, and say which snapshot that is."""
    with _a_partition_for_each_file(spark):
        writer = spark.read.parquet(*job["target_files"]).writeTo(job["table"]).using("iceberg")
        for name, value in job["properties"].items():
            writer = writer.tableProperty(name, value)
        writer.create()
    (row,) = spark.sql(f"SELECT snapshot_id FROM {job['table']}.snapshots").collect()
    return int(row[0])


def _reset(spark: SparkSession, catalog: str, table: str, snapshot: int) -> int:
    """The table as it was at first, its manifests read; returns how many files it has."""
    spark.sql(
        f"CALL {catalog}.system.rollback_to_snapshot(table => '{table}', snapshot_id => {snapshot})"
    )
    (row,) = spark.sql(f"SELECT count(*) FROM {table}.files").collect()
    return int(row[0])


if __name__ == "__main__":
    main()
