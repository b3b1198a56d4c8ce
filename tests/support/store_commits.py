"""The log store for S3 on stores that answer wrongly or late; prints JSON.

Run as a program, since S3A's jars are no part of the session of pytest's.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

from pyspark.sql import SparkSession

import deltaweave
from assets.object_store import ObjectStore, object_store
from deltaweave import Table, errors
from deltaweave.log_store import CLASS
from tests.support.rival_drivers import SCHEMA, conf, count_up

VERSION = f"{1:020}.json"
PROBE = ".deltaweave.conditional-put"
# S3A goes on for minutes, by default.
IMPATIENT = {
    f"spark.hadoop.fs.s3a.{name}": value
    for name, value in {
        "retry.limit": "2",
        "retry.throttle.limit": "2",
        "attempts.maximum": "2",
        "multipart.size": "5M",
    }.items()
}
BUCKETS = (
    "plain",
    "lost",
    "always-lost",
    "conflicting",
    "denied",
    "parts",
    "ignoring",
    "unknowing",
    "silent",
)


class Troubles:
    """What a bucket's store does, by the bucket's name."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.requests = Counter[tuple[str, str]]()
        self.seen = Counter[tuple[str, bool]]()

    def __call__(self, method: str, path: str, before: bool) -> int | None:
        bucket = path.partition("/")[0]
        self.store.is_conditional = bucket not in ("ignoring", "required")
        if bucket == "unknowing" and path.endswith(PROBE):
            return 501
        if not path.endswith(VERSION):
            return None
        if before:
            self.requests[bucket, method] += 1
        if bucket == "silent" and before:
            return 500 if method == "PUT" else None
        if method not in ("PUT", "POST"):
            return None
        self.seen[bucket, before] += 1
        count = self.seen[bucket, before]
        return {
            "lost": 500 if not before and count == 1 else None,
            "always-lost": 500 if not before else None,
            "conflicting": 409 if before and count % 3 else None,
            "denied": 403 if before else None,
            # The first request begins the upload; the answer to its completion is lost.
            "parts": 500 if not before and method == "POST" and count == 4 else None,
        }.get(bucket)


def outcome_of(spark: SparkSession, bucket: str, text: str) -> str:
    """Write the version's file by the log store: `written`, or the class of its error."""
    jvm: Any = spark.sparkContext._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    lines = jvm.java.util.ArrayList()
    lines.add(text)
    log = jvm.org.apache.hadoop.fs.Path(f"s3a://{bucket}/table/_delta_log")
    try:
        log_store = jvm.deltaweave.ConditionalPutLogStore(configuration)
        path = jvm.org.apache.hadoop.fs.Path(log, VERSION)
        log_store.write(path, lines.iterator(), False, configuration)
    except Exception as error:
        return str(error.java_exception.getClass().getName())  # type: ignore[attr-defined]
    return "written"


def by_buckets(spark: SparkSession, store: ObjectStore, troubles: Troubles) -> dict[str, Any]:
    """A version's file is written, and then another of the same version."""
    found = {}
    for bucket in BUCKETS:
        text = "x" * (6_000_000 if bucket == "parts" else 10)
        outcomes = [outcome_of(spark, bucket, text), outcome_of(spark, bucket, f"another {text}")]
        kept = store.objects.get(f"{bucket}/table/_delta_log/{VERSION}", (b"", None))[0]
        found[bucket] = {"outcomes": outcomes, "is_first": kept == f"{text}\n".encode()}
    return found


def where_it_is_required(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """A store that ignores the condition is refused, if the session says so."""
    required = "fs.deltaweave.commit.requireConditionalPut"
    spark.conf.set(required, "true")
    try:
        outcome = outcome_of(spark, "required", "x")
    finally:
        spark.conf.unset(required)
    return {"outcome": outcome, "written": [each for each in store.objects if VERSION in each]}


def merges(spark: SparkSession, troubles: Troubles) -> dict[str, Any]:
    """What a merge and Spark's own writer do with the answers: rows, errors."""
    found: dict[str, Any] = {}
    for bucket in ("lost", "silent"):
        troubles.seen.clear()
        location = f"s3a://{bucket}/merged"
        table = Table(spark, location)
        table.create_if_missing(SCHEMA)
        for by_append in (False, True):
            try:
                count_up(spark, location, 1, by_append)
                outcome = "committed"
            except errors.CommitStateUnknownError as error:
                outcome = type(error).__name__
            except Exception as error:
                outcome = "unknown" if "It is not known whether" in str(error) else str(error)
            found[f"{bucket}, {'append' if by_append else 'merge'}"] = outcome
        found[f"{bucket}, rows"] = sorted([row.k, row.n] for row in table.read().collect())
    return found


def main() -> None:
    logging.basicConfig(format="%(name)s %(message)s")
    with object_store(ObjectStore()) as (store, endpoint):
        settings = {**conf(endpoint, IMPATIENT), "spark.log.level": "WARN"}
        spark = deltaweave.local_session(**settings)
        store.trouble = troubles = Troubles(store)
        found = {
            "log_store": spark.sparkContext.getConf().get("spark.delta.logStore.s3a.impl"),
            "by_buckets": by_buckets(spark, store, troubles),
            "requests": {" ".join(each): n for each, n in troubles.requests.items()},
            "required": where_it_is_required(spark, store),
            "merges": merges(spark, troubles),
        }
        found["is_own"] = found["log_store"] == CLASS
        print(json.dumps(found))
        spark.stop()


if __name__ == "__main__":
    main()
