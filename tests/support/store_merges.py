"""Merges into tables in a store that speaks S3's protocol; prints JSON.

Run as a program, since S3A's jars are no part of the session of pytest's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from assets.object_store import ObjectStore, object_store
from deltaweave import MergeResult, Table
from deltaweave.delta.files import object_stores
from deltaweave.engine.backends.local import merge as local_merge
from deltaweave.engine.source import collected
from deltaweave.engine.strategies import copy_in_place
from resources.environments import S3A_PACKAGE
from tests.builders import frame
from tests.conftest import TINY_DATA
from tests.support.on_driver import spied
from tests.support.settings import configured

KEY, SECRET = "some key", "never-to-be-seen"
SCHEMA = "k INT, v STRING, p STRING"
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
ON_DRIVER = {"spark.deltaweave.merge.onDriver": "auto"}
ON_EXECUTORS = {"spark.deltaweave.merge.rewriteInPlace": "true"}
LAYOUTS: Mapping[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "copy on write": ({"delta.enableDeletionVectors": "false"}, ()),
    "vectors": ({"delta.enableDeletionVectors": "true"}, ()),
    "change feed": ({"delta.enableChangeDataFeed": "true"}, ()),
    "partitions": ({"delta.enableDeletionVectors": "false"}, ("p",)),
}


def conf(endpoint: str) -> dict[str, str]:
    s3a = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": KEY,
        "secret.key": SECRET,
        # S3A would ask the store to encrypt what it writes into this bucket.
        "bucket.sealed.encryption.algorithm": "AES256",
    }
    of_s3a = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    return {**TINY_DATA, "spark.jars.packages": S3A_PACKAGE, **of_s3a}


def rows(table: Table) -> list[list[Any]]:
    return sorted(list(row) for row in table.read().collect())


def made(spark: SparkSession, path: str, layout: str) -> Table:
    """A table of ten rows in two files."""
    table, (properties, partition_by) = Table(spark, path), LAYOUTS[layout]
    table.create_if_missing(SCHEMA, properties=dict(properties), partition_by=list(partition_by))
    old = [(k, "old", "a") for k in range(10)]
    table.write(frame(spark, old, SCHEMA, files=2), "append")
    return table


def source(spark: SparkSession) -> DataFrame:
    """An update in the first file, a row that goes to another partition, and an insert."""
    return frame(spark, [(1, "new", "a"), (2, "new", "b"), (20, "new", "a")], SCHEMA)


def merged(spark: SparkSession, table: Table, rows_: DataFrame) -> MergeResult:
    rows_.createOrReplaceTempView("changes")
    statement = f"MERGE INTO delta.`{table.location()}` t USING changes s ON t.k = s.k {UPSERT}"
    return deltaweave.merge(spark, statement)


def wrong_sizes(store: ObjectStore, path: str) -> int:
    """Files that the table's log names, and whose object has another size."""
    key = path.removeprefix("s3a://")
    sizes: dict[str, int] = {}
    for name, (content, _) in store.objects.items():
        if name.startswith(f"{key}/_delta_log/") and name.endswith(".json"):
            actions = [json.loads(line) for line in content.decode().splitlines()]
            files = [each[kind] for each in actions for kind in ("add", "cdc") if kind in each]
            sizes |= {unquote(file["path"]): file["size"] for file in files}
    return sum(len(store.objects[f"{key}/{at}"][0]) != size for at, size in sizes.items())


def by_layouts(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """Each layout on the driver and in tasks."""
    outcome: dict[str, Any] = {}
    for layout in LAYOUTS:
        for where, settings in (("driver", ON_DRIVER), ("tasks", ON_EXECUTORS)):
            path = f"s3a://lake/a b%20#ü/{where}/{layout}"
            table = made(spark, path, layout)
            with pytest.MonkeyPatch.context() as patch, configured(spark, settings):
                on_driver = spied(patch, local_merge, "write_files")
                in_place = spied(patch, copy_in_place, "rewrite_in_place")
                result = merged(spark, table, source(spark))
            outcome[f"{layout}, {where}"] = {
                "on_driver": len(on_driver),
                "in_place": sum(len(each.replacements) for each in in_place),
                "rows": rows(table),
                "strategy": result.strategy,
                "counts": [
                    result.metrics.num_target_rows_updated,
                    result.metrics.num_target_rows_inserted,
                ],
                "wrong_sizes": wrong_sizes(store, path),
            }
    return outcome


def of_many_rows(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """A file that is sent in parts, rewritten on the driver."""
    table = Table(spark, "s3a://lake/many")
    hashes = [F.sha2(F.concat("id", F.lit(i)).cast("string"), 512).alias(f"v{i}") for i in range(2)]
    many = spark.range(0, 100_000, 1, 1).select(F.col("id").alias("k"), *hashes)
    table.create_if_missing(many.schema, properties={"delta.enableDeletionVectors": "false"})
    table.write(many, "append")
    with pytest.MonkeyPatch.context() as patch, configured(spark, ON_DRIVER):
        on_driver = spied(patch, local_merge, "write_files")
        begun = spied(patch, store.uploads, "begin")
        merged(spark, table, spark.sql("SELECT -1L AS k, 'x' AS v0, 'y' AS v1"))
        updated = "SELECT 7L AS k, 'x' AS v0, 'y' AS v1"
        merged(spark, table, spark.sql(updated))
    of_all = F.bit_xor(F.xxhash64("k", "v0", "v1")), F.count("*")
    kept = table.read().where("k NOT IN (-1, 7)").agg(*of_all).collect()
    return {
        "on_driver": len(on_driver),
        "in_parts": len(begun),
        "rows": [list(r) for r in table.read().where("k IN (-1, 7)").orderBy("k").collect()],
        "others_are_kept": kept == many.where("k <> 7").agg(*of_all).collect(),
    }


def of_a_table(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """A source that is a table in the store."""
    table = made(spark, "s3a://lake/target", "vectors")
    given = Table(spark, "s3a://lake/given")
    given.create_if_missing(SCHEMA)
    given.write(source(spark), "append")
    with pytest.MonkeyPatch.context() as patch, configured(spark, ON_DRIVER):
        read = spied(patch, collected, "rows_of_table")
        merged(spark, table, given.read())
    return {"read": [each is not None and each.num_rows for each in read], "rows": rows(table)}


def by_spark_alone(spark: SparkSession, store: ObjectStore) -> list[dict[str, Any]]:
    """A bucket with a setting that Python does not follow."""
    outcome = []
    for settings in (ON_DRIVER, ON_EXECUTORS):
        table = made(spark, f"s3a://sealed/{len(outcome)}", "copy on write")
        with pytest.MonkeyPatch.context() as patch, configured(spark, settings):
            by_arrow = spied(patch, local_merge, "write_files")
            in_place = spied(patch, copy_in_place, "rewrite_in_place")
            merged(spark, table, source(spark))
        outcome.append({"by_arrow": len(by_arrow) + len(in_place), "rows": rows(table)})
    return outcome


def where_arrow_means_another_store(spark: SparkSession, store: ObjectStore) -> dict[str, Any]:
    """As where the JVM's environment names a store that Arrow knows nothing of."""
    table = made(spark, "s3a://lake/elsewhere", "copy on write")
    settings_by = object_stores.settings_by
    with (
        object_store(ObjectStore(access_key=KEY)) as (another, endpoint),
        pytest.MonkeyPatch.context() as patch,
        configured(spark, ON_DRIVER),
    ):
        host = {"endpoint_override": endpoint.removeprefix("http://")}

        def on_another(*given: Any) -> object_stores.StoreSettings:
            found = settings_by(*given)
            return replace(found, arguments={**found.arguments, **host})

        patch.setattr(object_stores, "settings_by", on_another)
        on_driver = spied(patch, local_merge, "write_files")
        merged(spark, table, source(spark))
    return {"on_driver": len(on_driver), "sent": sorted(another.objects), "rows": rows(table)}


def with_a_store_that_loses_bytes(spark: SparkSession, store: ObjectStore) -> list[dict[str, Any]]:
    """What Arrow sends first arrives cut, on the driver and from a task."""
    outcome = []
    for settings in (ON_DRIVER, ON_EXECUTORS):
        path = f"s3a://lake/cut/{len(outcome)}"
        table = made(spark, path, "copy on write")
        put, cut = store.put, list[str]()

        def putting(name: str, content: bytes = b"", put: Any = put, cut: list[str] = cut) -> None:
            # Arrow's names tell no task.
            if not cut and "-part-00000-" in name and ".c000." in name:
                cut.append(name)
                content = content[:-1]
            put(name, content)

        with pytest.MonkeyPatch.context() as patch, configured(spark, settings):
            patch.setattr(store, "put", putting)
            merged(spark, table, source(spark))
        outcome.append(
            {
                "cut": len(cut),
                "left": [name for name in cut if name in store.objects],
                "rows": rows(table),
                "wrong_sizes": wrong_sizes(store, path),
            }
        )
    return outcome


def main() -> None:
    logging.basicConfig(format="%(name)s %(message)s")
    logging.getLogger("deltaweave").setLevel(logging.INFO)
    with object_store(ObjectStore(access_key=KEY)) as (store, endpoint):
        spark = deltaweave.local_session(**conf(endpoint))
        steps = (
            by_layouts,
            of_many_rows,
            of_a_table,
            by_spark_alone,
            where_arrow_means_another_store,
            with_a_store_that_loses_bytes,
        )
        print(json.dumps({step.__name__: step(spark, store) for step in steps}))
        spark.stop()


if __name__ == "__main__":
    main()
