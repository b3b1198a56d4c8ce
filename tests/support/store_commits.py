"""Commits of one driver to a store with S3's protocol that gives it trouble; prints JSON."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import deltaweave
from assets.object_store import ObjectStore, Trouble, object_store
from deltaweave._session import S3_LOG_STORE, use_s3_log_store
from deltaweave.errors import CommitStateUnknownError
from tests.support import drivers_on_a_store as drivers

LOST, THROTTLED = Trouble(loses_reply=True), Trouble(is_throttled=True)
# Of S3A: it gives up soon.
IMPATIENT = {"attempts.maximum": "1", "retry.limit": "1", "retry.throttle.limit": "1"}
COMMITS = 50  # of each writer
SETTING = "spark.delta.logStore.s3a.impl"


def before_commits(
    store: ObjectStore, trouble: list[Trouble], first: Callable[[], Any] | None = None
) -> None:
    """Give the next commits trouble, one each; let another writer commit before the first."""
    others = [first] if first is not None else []

    def answer(method: str, path: str) -> Trouble:
        if not drivers.is_commit(method, path):
            return Trouble()
        if others:
            others.pop()()
        return trouble.pop(0) if trouble else Trouble()

    store.trouble = answer


def merged(spark: SparkSession, key: str) -> dict[str, Any]:
    try:
        result = drivers.merged(spark, key)
    except CommitStateUnknownError as error:
        return {"error": type(error).__name__}
    return {"attempts": result.commit_attempts, "warnings": list(result.warnings)}


def by_four_writers(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """Let four writers commit by log stores of their own, each from the first version on."""
    hadoop = spark.sparkContext._jsc.sc().hadoopConfiguration()
    drawn, lock = random.Random(49), threading.Lock()

    def answer(method: str, path: str) -> Trouble:
        with lock:
            chance, seconds = drawn.random(), drawn.uniform(0, 0.03)
        if method != "PUT":
            return Trouble(is_throttled=chance < 0.01)
        return Trouble(seconds, is_throttled=chance < 0.05, loses_reply=chance > 0.8)

    def commit(writer: str) -> list[list[Any]]:
        log_store, told, version = spark._jvm.deltaweave.S3LogStore(hadoop), [], 0
        while len(told) < COMMITS:
            path = spark._jvm.org.apache.hadoop.fs.Path(f"s3a://many/log/{version:020}.json")
            content = f"{writer} {len(told)}"
            actions = spark._jvm.java.util.ArrayList()
            actions.add(content)
            try:
                log_store.write(path, actions.iterator(), False, hadoop)
                told.append([version, f"{content}\n"])
            except Py4JJavaError as lost:
                if "FileAlreadyExistsException" not in str(lost.java_exception.getClass()):
                    raise
            version += 1
        return told

    store.trouble = answer
    with ThreadPoolExecutor(4) as threads:
        told = [each for of_one in threads.map(commit, "abcd") for each in of_one]
    store.trouble = None
    names = [name for name in store.objects if name.startswith("many/")]
    return {
        "told": sorted(told),
        "held": [[number, store.objects[n][0].decode()] for number, n in enumerate(sorted(names))],
    }


def main() -> None:
    with object_store(ObjectStore(access_key=drivers.KEY)) as (store, endpoint):
        conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in IMPATIENT.items()}
        conf["spark.hadoop.fs.s3a.bucket.unable.create.conditional.enabled"] = "false"
        spark = deltaweave.local_session(**drivers.conf(endpoint, conf))
        outcome: dict[str, Any] = {"log_store": spark.sparkContext._jsc.sc().conf().get(SETTING)}
        drivers.make_table(spark)

        def delta_rs(key: str) -> None:
            rows = pa.table({"k": [key], "n": pa.array([1], pa.int32())})
            options = drivers.storage_options(endpoint)
            write_deltalake(drivers.LOCATION_OF_RS, rows, mode="append", storage_options=options)

        before_commits(store, [LOST])
        outcome["a reply is lost"] = merged(spark, "one")
        before_commits(store, [LOST] * 5)
        outcome["all replies are lost"] = merged(spark, "all")
        before_commits(store, [], lambda: delta_rs("by delta-rs"))
        outcome["delta-rs commits first"] = merged(spark, "after delta-rs")
        before_commits(store, [], lambda: delta_rs("by delta-rs again"))
        row = spark.createDataFrame([("appended", 1)], "k STRING, n INT")
        row.write.format("delta").mode("append").save(drivers.LOCATION)
        before_commits(store, [THROTTLED] * 100)
        outcome["it never answers"] = merged(spark, "unanswered")
        store.trouble = None
        outcome["then"] = merged(spark, "then")
        outcome["rows"] = drivers.rows(endpoint)
        outcome["by four writers"] = by_four_writers(spark, store)

        store.ignores_conditions = True
        for bucket in ("deaf", "unable"):
            tables = [deltaweave.Table(spark, f"s3a://{bucket}/{name}") for name in ("1st", "2nd")]
            for table in tables:
                table.create_if_missing("k STRING, n INT")
            outcome[bucket] = [list(table.write(row, "append").warnings) for table in tables]
        chosen = "io.delta.storage.S3SingleDriverLogStore"
        spark.sparkContext._jsc.sc().conf().set(SETTING, chosen)
        use_s3_log_store(spark)
        outcome["chosen"] = spark.sparkContext._jsc.sc().conf().get(SETTING) == chosen
        print(json.dumps({**outcome, "is_ours": outcome["log_store"] == S3_LOG_STORE}))
        spark.stop()


if __name__ == "__main__":
    main()
