"""Commits of one driver to a store with S3's protocol that gives it trouble; prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import deltaweave
from assets.object_store import ObjectStore, Trouble, object_store
from deltaweave._session import S3_LOG_STORE, use_s3_log_store
from deltaweave.errors import CommitStateUnknownError
from tests.support import drivers_on_a_store as drivers

LOST, THROTTLED = Trouble(loses_reply=True), Trouble(is_throttled=True)
# Of S3A: it gives up soon.
IMPATIENT = {"attempts.maximum": "1", "retry.limit": "1", "retry.throttle.limit": "1"}
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


def main() -> None:
    with object_store(ObjectStore(access_key=drivers.KEY)) as (store, endpoint):
        conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in IMPATIENT.items()}
        conf["spark.log.level"] = "WARN"  # what the log store warns of is printed
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

        store.ignores_conditions = True
        for bucket in ("deaf", "unable"):
            for name in ("first", "second"):
                deltaweave.Table(spark, f"s3a://{bucket}/{name}").create_if_missing("k INT")
        chosen = "io.delta.storage.S3SingleDriverLogStore"
        spark.sparkContext._jsc.sc().conf().set(SETTING, chosen)
        use_s3_log_store(spark)
        outcome["chosen"] = spark.sparkContext._jsc.sc().conf().get(SETTING) == chosen
        print(json.dumps({**outcome, "is_ours": outcome["log_store"] == S3_LOG_STORE}))
        spark.stop()


if __name__ == "__main__":
    main()
