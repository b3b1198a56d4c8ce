"""Drivers in processes of their own that merge into one table in a store with S3's protocol.

Each is this module, run as a program: it says that it is ready, waits for a line, merges, and
prints JSON with the version of each merge that it was told is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import deltaweave
from assets.object_store import ObjectStore
from deltaweave import MergeResult, Table
from deltaweave.errors import CommitConflictError
from resources.environments import S3A_PACKAGE
from tests.conftest import TINY_DATA

ROOT = Path(__file__).parents[2]
KEY, SECRET = "some key", "some secret"
LOCATION, LOCATION_OF_RS = "s3a://lake/t", "s3://lake/t"
LOG = "lake/t/_delta_log/"
COUNTER = "all merges"
PROPERTIES = {"delta.enableDeletionVectors": "false"}
# Every merge adds one to a row that all of them change, and inserts a row of its own.
MERGE = (
    f"MERGE INTO delta.`{LOCATION}` t USING s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 1)"
)


@dataclass(frozen=True)
class Outcome:
    """What drivers were told, and what the table's log holds.

    Attributes:
        done: The keys whose merges were reported as done, in the order of each driver.
        versions: The versions that they were told, sorted.
        table: The table's rows.
        printed: All that they printed.
    """

    done: list[str]
    versions: list[int]
    table: Mapping[str, int]
    printed: str

    @property
    def lost(self) -> list[str]:
        return [key for key in self.done if key not in self.table]

    @property
    def doubled(self) -> list[str]:
        return [key for key, n in self.table.items() if key != COUNTER and n != 1]


def is_commit(method: str, path: str) -> bool:
    return method == "PUT" and path.startswith(LOG) and path.endswith(".json")


def make_table(spark: SparkSession) -> None:
    Table(spark, LOCATION).create_if_missing("k STRING, n INT", properties=PROPERTIES)


def merged(spark: SparkSession, key: str) -> MergeResult:
    spark.sql(f"SELECT '{key}' AS k UNION ALL SELECT '{COUNTER}'").createOrReplaceTempView("s")
    return deltaweave.merge(spark, MERGE)


def conf(endpoint: str, settings: Mapping[str, str]) -> dict[str, str]:
    s3a = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": KEY,
        "secret.key": SECRET,
        "retry.interval": "20ms",
        "retry.throttle.interval": "20ms",
    }
    of_s3a = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    small = {"spark.driver.memory": "1g", "spark.jars.packages": S3A_PACKAGE}
    return {**TINY_DATA, **small, **of_s3a, **settings}


def merge_all(endpoint: str, name: str, merges: int, settings: Mapping[str, str]) -> None:
    spark = deltaweave.local_session(**conf(endpoint, settings))
    make_table(spark)
    done: dict[str, int | None] = {}
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(merges):
        key = f"{name} {number}"
        while key not in done:
            with suppress(CommitConflictError):
                done[key] = merged(spark, key).version
    print(json.dumps(done), flush=True)
    spark.stop()


def by_drivers(
    store: ObjectStore,
    endpoint: str,
    names: Iterable[str],
    merges: int,
    settings: Mapping[str, str] | None = None,
) -> Outcome:
    """Let drivers merge at the same time; return what became of it."""
    drivers = [_started(endpoint, name, merges, settings or {}) for name in names]
    printed, done, versions = "", list[str](), list[int]()
    try:
        for driver in drivers:
            _wait_until_ready(driver)
        for driver in drivers:
            assert driver.stdin is not None
            driver.stdin.write("go\n")
            driver.stdin.flush()
        for driver in drivers:
            out, _ = driver.communicate(timeout=900)
            printed += out
            assert driver.returncode == 0, out[-4000:]
            found = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
            done += found
            versions += found.values()
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    return Outcome(done, sorted(versions), rows(endpoint), printed)


def _started(
    endpoint: str, name: str, merges: int, settings: Mapping[str, str]
) -> subprocess.Popen[str]:
    arguments = [endpoint, name, str(merges), json.dumps(settings)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.drivers_on_a_store", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _wait_until_ready(driver: subprocess.Popen[str]) -> None:
    assert driver.stdout is not None
    said = list[str]()
    for line in driver.stdout:
        said.append(line)
        if line == "ready\n":
            return
    raise AssertionError("".join(said)[-4000:])


def storage_options(endpoint: str) -> dict[str, str]:
    """The store as delta-rs takes it."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ALLOW_HTTP": "true",
    }


def rows(endpoint: str) -> dict[str, int]:
    """The table's rows, read without Spark."""
    from deltalake import DeltaTable

    table = DeltaTable(LOCATION_OF_RS, storage_options=storage_options(endpoint))
    read = table.to_pyarrow_table()
    return dict(zip(read["k"].to_pylist(), read["n"].to_pylist(), strict=True))


if __name__ == "__main__":
    merge_all(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
