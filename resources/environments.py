"""The resources of each environment; `DELTAWEAVE_ENV` chooses one, `local` by default.

`docs/deploying.md` describes the environments and their variables. What is read here is shown in
Dagster's UI, so credentials are not: Spark's JVM takes them from the environment by itself.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dagster_deltaweave import SparkDeltaIOManager, SparkResource

_REPOSITORY = Path(__file__).resolve().parent.parent

# From the Hadoop release that pyspark 4.2.0 ships; it brings the bundle of the AWS SDK it was
# built with.
S3A_PACKAGE = "org.apache.hadoop:hadoop-aws:3.5.0"

# A session of our own is tuned for one machine; these are Spark's and Delta's defaults again.
_MANY_MACHINES = {
    "spark.driver.bindAddress": "0.0.0.0",
    "spark.sql.shuffle.partitions": "200",
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "10000",
}

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class EnvironmentVariableError(ValueError):
    """Variables of the chosen environment are missing or malformed; the message names them all."""


def lake() -> Path:
    """Return the root of the demo lake: `DELTAWEAVE_LAKE`, by default `.lake` in the repository."""
    return Path(os.environ.get("DELTAWEAVE_LAKE") or _REPOSITORY / ".lake").absolute()


def resources() -> dict[str, Any]:
    """Return the resources of the chosen environment, by the keys that assets ask for.

    Raises:
        EnvironmentVariableError: There is no such environment, or it lacks variables.
    """
    environment = os.environ.get("DELTAWEAVE_ENV") or "local"
    if environment not in _ENVIRONMENTS:
        known = ", ".join(sorted(_ENVIRONMENTS))
        raise EnvironmentVariableError(f"DELTAWEAVE_ENV is {environment!r}; known are {known}.")
    return _ENVIRONMENTS[environment]()


def _local() -> dict[str, Any]:
    """Return the resources of Spark and tables on this machine."""
    return _resources(str(lake() / "tables"), {})


def _cluster() -> dict[str, Any]:
    """Return the resources of executors of any master, and of tables that all of them reach."""
    _require("cluster", "DELTAWEAVE_SPARK_MASTER", "DELTAWEAVE_TABLES")
    return _resources(os.environ["DELTAWEAVE_TABLES"], _master())


def _object_store() -> dict[str, Any]:
    """Return the resources of tables in S3 or the like; Spark is on this machine or a cluster."""
    of_the_store = ["DELTAWEAVE_TABLES", "AWS_REGION"]
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    # On AWS, the machine's role may do instead; one key without the other is a mistake.
    if endpoint or any(os.environ.get(name) for name in _KEYS):
        of_the_store += _KEYS
    _require("object_store", *of_the_store)
    tables = os.environ["DELTAWEAVE_TABLES"]
    if not tables.startswith("s3a://"):
        raise EnvironmentVariableError(
            f"DELTAWEAVE_TABLES is {tables!r}; the environment object_store needs s3a://bucket/…"
        )
    s3a = {
        "spark.jars.packages": S3A_PACKAGE,
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
    }
    if endpoint:  # of other stores than Amazon's, which know no buckets as host names
        s3a["spark.hadoop.fs.s3a.endpoint"] = endpoint
        s3a["spark.hadoop.fs.s3a.path.style.access"] = "true"
    master = _master() if os.environ.get("DELTAWEAVE_SPARK_MASTER") else {}
    return _resources(tables, {**master, **s3a})


def _resources(tables: str, spark_conf: Mapping[str, str]) -> dict[str, Any]:
    conf = {**spark_conf, **_further_conf()}
    packages = "spark.jars.packages"
    if packages in spark_conf and conf[packages] != spark_conf[packages]:
        conf[packages] = f"{spark_conf[packages]},{conf[packages]}"
    spark = SparkResource(spark_config=conf, warm=_is_warm())
    return {"spark": spark, "io_manager": SparkDeltaIOManager(root=tables, spark=spark)}


def _master() -> dict[str, str]:
    master = os.environ["DELTAWEAVE_SPARK_MASTER"]
    if master.startswith("local"):  # nobody on another machine has to reach the driver
        return {"spark.master": master}
    return {
        **_MANY_MACHINES,
        "spark.master": master,
        "spark.driver.host": os.environ.get("DELTAWEAVE_DRIVER_HOST") or socket.gethostname(),
    }


def _further_conf() -> dict[str, str]:
    text = os.environ.get("DELTAWEAVE_SPARK_CONF") or "{}"
    try:
        conf = json.loads(text)
        return {key: str(value) for key, value in conf.items()}
    except (ValueError, AttributeError):
        raise EnvironmentVariableError(
            "DELTAWEAVE_SPARK_CONF must be a JSON object of Spark's keys and values, "
            'e.g. {"spark.executor.memory": "4g"}.'
        ) from None


def _is_warm() -> bool:
    answer = os.environ.get("DELTAWEAVE_WARM") or "true"
    if answer not in ("true", "false"):
        raise EnvironmentVariableError(f"DELTAWEAVE_WARM is {answer!r}; true or false is needed.")
    return answer == "true"


def _require(environment: str, *names: str) -> None:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise EnvironmentVariableError(
            f"The environment {environment} needs {' and '.join(missing)}; "
            "docs/deploying.md describes them."
        )


_ENVIRONMENTS = {"cluster": _cluster, "local": _local, "object_store": _object_store}
