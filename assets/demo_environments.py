"""Where the demo runs: `make demo ON=local`, `ON=cluster` or `ON=object_store`.

    python -m assets.demo_environments cluster python -m assets.demo

starts what the environment needs, runs the command with the variables of docs/deploying.md, and
stops what it started, however the command ends. Each environment has tables and a Dagster home of
its own; what landed is landed for all.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from assets.java_program import JavaProgramError
from assets.object_store import KeptObjects, ObjectStore, object_store
from assets.standalone_cluster import standalone_cluster
from resources.environments import lake

DEMO_ENVIRONMENT = "DELTAWEAVE_DEMO_ON"
"""The variable with the environment in which the demo runs."""

Variables = Mapping[str, str]

# A driver that stays would outlive the environment that it works in.
_COLD = {"DELTAWEAVE_WARM": "false"}


@contextmanager
def on_this_machine() -> Iterator[Variables]:
    """Run Spark on this machine's cores, with tables on its disk: nothing has to be started."""
    yield {}


@contextmanager
def on_a_cluster() -> Iterator[Variables]:
    """Run a standalone cluster of two workers on this machine until the context ends."""
    here = lake() / "cluster"
    with standalone_cluster(here / "processes", workers=2, memory="1g") as cluster:
        yield {**cluster.environment, **_COLD, **cluster_variables(cluster.master, here)}


def cluster_variables(master: str, here: Path) -> Variables:
    """Return the variables of the environment `cluster` for a cluster on this machine.

    Args:
        master: Its address, `spark://…`.
        here: The directory that holds the tables.
    """
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",  # all that calls the driver is on this machine
        "spark.executor.memory": "1g",
        # One for each of a few cores, not for a hundred.
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    return {
        "DELTAWEAVE_ENV": "cluster",
        "DELTAWEAVE_SPARK_MASTER": master,
        "DELTAWEAVE_DRIVER_HOST": "127.0.0.1",
        "DELTAWEAVE_TABLES": str(here / "tables"),
        "DELTAWEAVE_SPARK_CONF": json.dumps(conf),
    }


@contextmanager
def on_an_object_store() -> Iterator[Variables]:
    """Run an S3 server on this machine until the context ends; its objects are kept."""
    here = lake() / "object_store"
    here.mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(KeptObjects(here / "objects.sqlite")) as objects:
        store = ObjectStore(objects, access_key=secrets.token_hex(16))
        with object_store(store) as (_, endpoint):
            yield {**_COLD, **store_variables(endpoint, store.access_key or "")}


def store_variables(endpoint: str, access_key: str) -> Variables:
    """Return the variables of the environment `object_store` for the server on this machine."""
    return {
        "DELTAWEAVE_ENV": "object_store",
        "DELTAWEAVE_SPARK_MASTER": "",
        "DELTAWEAVE_TABLES": "s3a://lake/tables",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


ENVIRONMENTS: Mapping[str, Callable[[], AbstractContextManager[Variables]]] = {
    "local": on_this_machine,
    "cluster": on_a_cluster,
    "object_store": on_an_object_store,
}


def main(arguments: Sequence[str]) -> int:
    """Run a command in an environment; return its exit code, or 1 if it cannot be started."""
    environment, *command = arguments
    if environment not in ENVIRONMENTS:
        print(f"ON is {environment!r}; known are {', '.join(ENVIRONMENTS)}.", file=sys.stderr)
        return 1
    # An end by SIGTERM is an end by an exception, which leaves the contexts.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with ENVIRONMENTS[environment]() as variables:
            if environment != "local":
                where = variables.get("AWS_ENDPOINT_URL") or variables["DELTAWEAVE_SPARK_MASTER"]
                print(f"Started the {environment}: {where}", flush=True)
            code = _run(command, {**os.environ, **variables, DEMO_ENVIRONMENT: environment})
    except JavaProgramError as error:
        print(error, file=sys.stderr)
        return 1
    if environment != "local":
        print(f"Stopped the {environment}.", flush=True)
    return code


def _run(command: Sequence[str], variables: Variables) -> int:
    """Run a command to its end, which comes with ours at the latest; its exit code."""
    program = shutil.which(command[0]) or command[0]
    with subprocess.Popen([program, *command[1:]], env=dict(variables)) as process:
        # The terminal sends it to the command, too, which is to end first.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process.wait()
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
