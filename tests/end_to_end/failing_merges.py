"""Merges on a cluster of two executors, some of whose tasks and executors fail; prints JSON.

Run as a program, since each pytest process has one Spark session, which has no executors to lose.
The argument is a folder for the tables.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

import deltaweave
from deltaweave import MergeResult, Table
from deltaweave.engine.backends import spark as spark_backend
from tests.builders import frame, write_table
from tests.conftest import TINY_DATA

SCHEMA = "k INT, v INT"
TARGET = [(k, k) for k in range(100)]
SOURCE = [(k, -k) for k in range(90, 110)]  # ten updates, ten inserts

FAST_FAILURES = {
    # Blocks of a killed executor are not asked for again and again.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.4",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.task.duration.threshold": "2s",  # for stages of one task
}


def session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    # Executors start as quickly as the driver does.
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {TINY_DATA['spark.driver.extraJavaOptions']}"
    return deltaweave.local_session(
        **{
            "spark.master": "local-cluster[2,1,1024]",
            **{key: value for key, value in TINY_DATA.items() if key != "spark.master"},
            "spark.executor.extraJavaOptions": java,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
            **FAST_FAILURES,
        }
    )


@F.udf(IntegerType())
def fails_at_first(value: int) -> int:
    """The value; the first attempt of every task fails."""
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("this attempt has to fail")
    return value


@F.udf(IntegerType())
def hangs_at_first(value: int) -> int:
    """The value; the first attempt at one row hangs, and a speculative one overtakes it."""
    if value == -90 and TaskContext.get().attemptNumber() == 0:
        time.sleep(8)
    return value


def upsert(table: Table, value: Callable[[str], Any] = F.col) -> MergeResult:
    source = frame(table.spark, SOURCE, SCHEMA, files=2)
    return (
        table.merge(source, on="t.k = s.k")
        .when_matched_update({"v": value("s.v")})
        .when_not_matched_insert({"k": "s.k", "v": value("s.v")})
        .execute()
    )


def with_an_executor_lost(table: Table, times: int) -> MergeResult:
    """The upsert, an executor killed after the source was materialized: the first `times` times."""
    scan, killed = spark_backend.find_touched_files, []

    def scan_after_a_kill(*arguments: Any, **options: Any) -> Any:
        if len(killed) < times:
            killed.append(kill_executors(table.spark))
        return scan(*arguments, **options)

    spark_backend.find_touched_files = scan_after_a_kill
    try:
        return upsert(table)
    finally:
        spark_backend.find_touched_files = scan


def kill_executors(spark: SparkSession) -> int:
    """Kill the processes of the executors with SIGKILL; the cluster starts new ones."""
    pattern = f"CoarseGrainedExecutorBackend.*{spark.sparkContext.applicationId}"
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in found.stdout.split()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def outcome(merge: Callable[[Table], MergeResult], table: Table) -> dict[str, Any]:
    try:
        result = merge(table)
    except deltaweave.errors.DeltaweaveError as error:
        return {
            "error": type(error).__name__,
            "error_class": error.error_class,
            "version": table.version(),
        }
    return {
        "version": table.version(),
        "attempts": result.attempts,
        "metrics": {k: v for k, v in result.metrics.items() if not k.endswith("TimeMs")},
        "rows": sorted(map(list, table.read().collect())),
    }


SCENARIOS: dict[str, Callable[[Table], MergeResult]] = {
    "undisturbed": upsert,
    "tasks_fail_once": lambda table: upsert(table, fails_at_first),
    "tasks_run_twice": lambda table: upsert(table, hangs_at_first),
    "source_lost_once": lambda table: with_an_executor_lost(table, 1),
    "source_lost_always": lambda table: with_an_executor_lost(table, 99),
}
STRATEGIES = {"copy-on-write": {}, "deletion-vectors": {"delta.enableDeletionVectors": "true"}}
LEFT_OUT = {
    # Tasks that fail and tasks that run twice leave the same behind: by one strategy each.
    ("tasks_fail_once", "copy-on-write"),
    ("tasks_run_twice", "deletion-vectors"),
    # Nothing is written yet when the source is lost: once is enough.
    ("source_lost_always", "deletion-vectors"),
}


def main(folder: Path) -> None:
    spark = session()
    spark.conf.set("spark.databricks.delta.merge.materializeSource.maxAttempts", "2")
    outcomes = {}
    for name, merge in SCENARIOS.items():
        for strategy, properties in STRATEGIES.items():
            if (name, strategy) in LEFT_OUT:
                continue
            started = time.monotonic()
            path = str(folder / f"{name}-{strategy}")
            write_table(spark, path, TARGET, SCHEMA, files=2, properties=properties)
            outcomes[f"{name}/{strategy}"] = outcome(merge, Table(spark, path))
            print(name, strategy, f"{time.monotonic() - started:.1f} s", file=sys.stderr)
    print(json.dumps(outcomes))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
