"""Drivers in processes of their own that commit to one table in a troubled store at once.

Run as a program, it is one of them: it prints JSON of what it reported as committed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from delta import exceptions
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import deltaweave
from assets.object_store import object_store
from deltaweave import errors
from resources.environments import S3A_PACKAGE
from tests.conftest import TINY_DATA

ROOT = Path(__file__).parents[2]
OUTCOME = "committed: "
TABLE = "s3a://lake/counted"
SCHEMA = "k BIGINT, n INT"
COUNT_UP = (
    "WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 1)"
)
# What a lost commit raises; Delta's classes share no parent.
LOST = (
    errors.CommitConflictError,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
)
_EACH = 100_000  # more than the commits of a driver


@dataclass
class Trouble:
    """What goes wrong with some of a store's requests, drawn by a seed.

    Attributes:
        commit_seconds: How long the store takes for each file of a version.
        lost: The fraction of commits that succeed, and whose answer is an error.
        throttled: The fraction of all requests that are refused for their rate.
        counts: What went wrong, and how often.
    """

    commit_seconds: float = 0
    lost: float = 0
    throttled: float = 0
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def __call__(self, method: str, path: str, before: bool) -> int | None:
        """Delay a request, and return the status of an error in place of its answer."""
        is_commit = method == "PUT" and "/_delta_log/" in path and path.endswith(".json")
        with self.lock:
            drawn = self._draw.random()
        if before and drawn < self.throttled:
            self.counts["throttled"] += 1
            return 503
        if before and is_commit:
            time.sleep(self.commit_seconds)
        if not before and is_commit and drawn < self.lost:
            self.counts["lost"] += 1
            return 500
        return None


def conf(endpoint: str, further: Mapping[str, str]) -> dict[str, str]:
    s3a = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": "key",
        "secret.key": "secret",
        "retry.interval": "50ms",
        "retry.throttle.interval": "50ms",
    }
    of_s3a = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    mine = {"spark.jars.packages": S3A_PACKAGE, "spark.driver.memory": "1g", **of_s3a}
    return {**TINY_DATA, **mine, **further}


def session(endpoint: str, further: Mapping[str, str]) -> SparkSession:
    return deltaweave.local_session(**conf(endpoint, further))


def count_up(spark: SparkSession, table: str, key: int, by_append: bool) -> None:
    """Commit once: count a key up, or append its row by Spark's own writer."""
    source = spark.sql(f"SELECT {key}L AS k, 1 AS n")
    if by_append:
        source.write.format("delta").mode("append").save(table)
        return
    source.createOrReplaceTempView("changes")
    statement = f"MERGE INTO delta.`{table}` t USING changes s ON t.k = s.k {COUNT_UP}"
    deltaweave.merge(spark, statement)


def meet(others: Path, drivers: int) -> None:
    """Wait until all drivers are here."""
    (others / str(os.getpid())).touch()
    limit = time.monotonic() + 300
    while len(list(others.iterdir())) < drivers:
        assert time.monotonic() < limit, "another driver did not start"
        time.sleep(0.01)


def work(setup: Mapping[str, Any], driver: int) -> None:
    """Commit to the table until all is done; print what was reported."""
    spark = session(setup["endpoint"], setup["further"])
    meet(Path(setup["others"]), setup["drivers"])
    done, unknown, failed, conflicts, number = [], [], [], 0, 0
    while number < setup["commits"]:
        key = driver * _EACH + number
        try:
            count_up(spark, TABLE, key, by_append=number % 4 == 3)
            done.append(key)
        except LOST:
            conflicts += 1
            continue  # nothing was committed
        except errors.CommitStateUnknownError:
            unknown.append(key)
        except Exception as error:
            failed.append((key, str(error)[:1000]))
        number += 1
    outcome = {"done": done, "unknown": unknown, "failed": failed, "conflicts": conflicts}
    print(OUTCOME + json.dumps(outcome), flush=True)
    spark.stop()


@dataclass
class Outcome:
    """What became of the drivers' commits.

    Attributes:
        reported: Keys whose commits were reported as done.
        lost: Those of them that the table lacks.
        doubled: Keys that the table has twice, or counted up twice.
        unreported: Keys in the table whose commits were reported as failed.
        unknown: Keys whose commits were reported as in an unknown state.
        failed: What else was reported.
        conflicts: How often a driver had to start over.
        printed: What the drivers logged.
    """

    reported: list[int]
    lost: list[int]
    doubled: list[int]
    unreported: list[int]
    unknown: list[int]
    failed: list[Any]
    conflicts: int
    printed: str


def compete(
    *,
    drivers: int,
    commits: int,
    trouble: Trouble,
    listed_after: float = 0,
    further: Mapping[str, str] | None = None,
) -> Outcome:
    """Let drivers commit at once; compare what they reported with the rows of the table.

    Args:
        listed_after: For how many seconds the store leaves new objects out of listings.
        further: Further settings of the drivers' sessions.
    """
    with object_store() as (store, endpoint), TemporaryDirectory() as folder:
        setup = {
            "endpoint": endpoint,
            "others": f"{folder}/others",
            "drivers": drivers,
            "commits": commits,
            "further": dict(further or {}),
        }
        Path(folder, "others").mkdir()
        delta_rs = storage_options(endpoint)
        types = {"k": pa.int64(), "n": pa.int32()}
        empty = pa.table({name: pa.array([], kind) for name, kind in types.items()})
        write_deltalake("s3://lake/counted", empty, storage_options=delta_rs)
        store.trouble, store.listed_after = trouble, timedelta(seconds=listed_after)
        printed = _printed(setup, Path(folder))
        store.trouble, store.listed_after = None, timedelta()
        rows = DeltaTable("s3://lake/counted", storage_options=delta_rs).to_pyarrow_table()
    return _compared(rows.to_pylist(), printed)


def storage_options(endpoint: str) -> dict[str, str]:
    """The options by which delta-rs opens the store."""
    return {
        "endpoint": endpoint,
        "allow_http": "true",
        "region": "us-east-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "virtual_hosted_style_request": "false",
    }


def _printed(setup: Mapping[str, Any], folder: Path) -> list[str]:
    """Run drivers in processes of their own, and return what each printed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.support.rival_drivers", json.dumps(setup)]
    with ExitStack() as running:
        processes = {}
        for driver in range(setup["drivers"]):
            path = folder / str(driver)
            output = running.enter_context(path.open("w"))
            processes[path] = subprocess.Popen(
                [*command, str(driver)], cwd=ROOT, env=environment, stdout=output, stderr=output
            )
            running.callback(processes[path].kill)
        for path, process in processes.items():
            assert process.wait() == 0, path.read_text()[-4000:]
        return [path.read_text() for path in processes]


def _compared(rows: list[dict[str, int]], printed: list[str]) -> Outcome:
    told = [
        json.loads(each[each.rindex(OUTCOME) + len(OUTCOME) :].split("\n")[0]) for each in printed
    ]
    counts = Counter[int]()
    for row in rows:
        counts[row["k"]] += row["n"]
    reported = [key for each in told for key in each["done"]]
    unknown = [key for each in told for key in each["unknown"]]
    return Outcome(
        reported=reported,
        lost=[key for key in reported if not counts[key]],
        doubled=[key for key, count in counts.items() if count > 1],
        unreported=sorted(counts.keys() - {*reported, *unknown}),
        unknown=unknown,
        failed=[each for one in told for each in one["failed"]],
        conflicts=sum(each["conflicts"] for each in told),
        printed="".join(printed),
    )


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), int(sys.argv[2]))
