"""Does jobs on a peer's tables; `spark_peer.py` starts it by its path in the peer's environment.

The peer's runtime needs another Spark than ours, so this module imports nothing from deltaweave.
Its one argument is the session's configuration, as JSON. Each line of its input is a job, and each
line of its output is the result as JSON; the first line names the Spark version. There are three
kinds of jobs: `merge`, one MERGE on an Iceberg table that is rolled back before; `state`, what that
table holds; and `steps`, statements on a newly created table of any format.
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

# Each input file, of any size, becomes one task, which writes one file.
_A_PARTITION_FOR_EACH_FILE = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
}


def main() -> None:
    """Do the jobs of the standard input until it ends."""
    # Only results may go to the standard output, but Spark and its JVM print there too.
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
            elif job["kind"] == "state":
                answer = _state(spark, job)
            else:
                answer = do_steps(spark, job)
        except Exception as error:  # the caller reports whatever the peer raises
            traceback.print_exc()
            answer = {"error": _in_one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


def do_steps(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, object]:
    """Create the job's table and run its steps on it, once untimed, then `runs` times.

    Args:
        spark: The session.
        job: A job from `read_peers.upsert_job`.

    Returns:
        The seconds of each step's timed runs, by the step's name, and the checksums at the end.
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
    """Compute every column of every row and discard them, as `data.tables.compute` does for us."""
    spark.sql(query)._jdf.queryExecution().toRdd().count()


def _in_one_line(error: Exception) -> str:
    """Return the error's name and the first line of its message."""
    said = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {said[0]}"


def _merge(
    spark: SparkSession, job: Mapping[str, Any], first_snapshots: dict[str, int]
) -> dict[str, object]:
    """Run the job's merge on the first rows of its target, which it creates if there is none."""
    catalog, table = job["catalog"], job["table"]
    if table not in first_snapshots:
        first_snapshots[table] = _make_target(spark, job)
    spark.read.parquet(*job["source_files"]).createOrReplaceTempView(job["source"])
    spark.sql(
        f"CALL {catalog}.system.rollback_to_snapshot("
        f"table => '{table}', snapshot_id => {first_snapshots[table]})"
    )
    # Expire the snapshot of the job before, so that metadata does not grow from job to job.
    (row,) = spark.sql("SELECT CAST(current_timestamp() AS STRING)").collect()
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots("
        f"table => '{table}', older_than => TIMESTAMP '{row[0]}')"
    )
    files = _file_count(spark, table)  # reads the manifests
    began = time.perf_counter()
    spark.sql(job["merge"])
    return {"seconds": time.perf_counter() - began, "files_before": files}


def _state(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, object]:
    """Return how many files the job's table has, and the checksums of its rows."""
    (found,) = spark.table(job["table"]).selectExpr(*job["checksums"]).collect()
    return {"files": _file_count(spark, job["table"]), "checksums": [str(each) for each in found]}


def _make_target(spark: SparkSession, job: Mapping[str, Any]) -> int:
    """Write the job's target, with a file for each input file, and return its snapshot."""
    with _a_partition_for_each_file(spark):
        writer = spark.read.parquet(*job["target_files"]).writeTo(job["table"]).using("iceberg")
        for name, value in job["properties"].items():
            writer = writer.tableProperty(name, value)
        writer.create()
    (row,) = spark.sql(f"SELECT snapshot_id FROM {job['table']}.snapshots").collect()
    return int(row[0])


def _file_count(spark: SparkSession, table: str) -> int:
    (row,) = spark.sql(f"SELECT count(*) FROM {table}.files").collect()
    return int(row[0])


if __name__ == "__main__":
    main()
