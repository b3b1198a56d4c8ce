"""A Delta-enabled SparkSession; the one place that knows `spark.*` keys for starting Spark."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deltaweave._releases import check_pair, delta_package, installed_pair
from deltaweave.errors import NOTHING_DONE, UnsupportedSessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_conf() -> dict[str, str]:
    """Return Spark's configuration for Delta: the installed pair's jar, extension and catalog."""
    return {"spark.jars.packages": delta_package(*installed_pair()), **DELTA_SETTINGS}


# Spark's and Delta's defaults are for clusters: 200 shuffle partitions and 50 partitions of the
# snapshot's file list make a small table on one machine ten times slower than it need be.
_ONE_MACHINE_CONF: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
    "spark.databricks.delta.snapshotPartitions": "2",
    # VACUUM lists directories in this many tasks; the default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.showConsoleProgress": "false",
    # Other users of the machine reach its UI: Spark's pattern lacks the keys of Azure's accounts.
    "spark.redaction.regex": "(?i)secret|passw|token|access[.]?key|account[._-]?key|[.]sas[.]"
    "|encryption.*key",
}

_IS_LOCAL = re.compile(r"local(\[[^\]]*\])?")

# Names of secrets: Spark's own pattern (spark.redaction.regex) lacks those of Azure's accounts and
# of encryption. An account's own name may follow, and hold any word.
_SECRET = re.compile(
    r"secret|passw|token|signature|(access|api|private|account)[._-]?key|credential$"
    r"|encryption[.\w-]*key$|fs\.azure\.sas\.",
    re.IGNORECASE,
)
# Names of settings for a secret's place, kind or lookup.
_OF_A_SECRET = re.compile(
    r"^spark\.kubernetes\.(driver|executor)\.secret|keyprovider|provider\.type|\.token\.renew\."
    r"|\.enable\.delegation\.token$"
    r"|(file|path|provider|type|class|name|itemkey|bitlength|enabled|binding|use_ip|regex)$",
    re.IGNORECASE,
)


def secret_keys(spark_conf: Mapping[str, object]) -> list[str]:
    """Return the keys of a Spark configuration whose values are secrets, judged by their names.

    >>> secret_keys({"spark.hadoop.fs.s3a.secret.key": "…", "spark.authenticate.secret.file": "…"})
    ['spark.hadoop.fs.s3a.secret.key']
    """
    return [key for key in spark_conf if _SECRET.search(key) and not _OF_A_SECRET.search(key)]


# Whoever reaches the driver's ports could run code in it.
_THIS_MACHINE_ALONE: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Spark makes a secret of its own, for masters without executors in other processes.
_AUTHENTICATED: Mapping[str, str] = {"spark.authenticate": "true"}


def local_conf(spark_conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build a local session's configuration: Delta's keys, our tuning, then the caller's.

    The caller's packages and extensions are added to Delta's; other keys replace ours. With a local
    master, the driver listens on loopback and asks for a secret. Drivers of other masters listen as
    Spark's defaults or the caller say, because executors call them back.
    """
    given = dict(spark_conf or {})
    master = given.get("spark.master", _ONE_MACHINE_CONF["spark.master"])
    merged = {**delta_conf(), **_ONE_MACHINE_CONF}
    if master.startswith("local"):  # local-cluster[…], too
        merged |= _THIS_MACHINE_ALONE
    if _IS_LOCAL.fullmatch(master):
        merged |= _AUTHENTICATED
    for key, value in given.items():
        if key in ("spark.jars.packages", "spark.sql.extensions") and value != merged[key]:
            merged[key] = f"{merged[key]},{value}"
        else:
            merged[key] = value
    return merged


def local_session(**spark_conf: str) -> SparkSession:
    """Start a Delta-enabled session, tuned for one machine, or reuse an active one as Spark does.

    With a local master, all its ports are on loopback, the Spark UI's too. To reach the UI from
    elsewhere, set `spark.driver.bindAddress`, or the environment variable `SPARK_LOCAL_IP`.

    Args:
        **spark_conf: Spark configuration on top, e.g. `**{"spark.driver.memory": "4g"}`.

    Raises:
        UnsupportedVersionError: The installed pair of pyspark and delta-spark was not tested.
        UnsupportedSessionError: There is no Java that Spark runs on.
    """
    from pyspark.sql import SparkSession

    check_pair(*installed_pair())

    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = local_conf(spark_conf)
    _start_jvm(conf)
    builder = SparkSession.builder.appName("deltaweave")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM, if this process has none, as PySpark would, with two differences.

    Values of secrets are not on the JVM's command line, which all users of the machine can read.
    The UI of a Spark on this machine listens on loopback rather than on all its addresses.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:
        return
    secrets = {key: conf[key] for key in secret_keys(conf)}
    shown = SparkConf().setAppName("deltaweave")
    shown.setAll([(key, value) for key, value in conf.items() if key not in secrets])
    variables = {}
    if conf["spark.master"].startswith("local") and "SPARK_LOCAL_IP" not in os.environ:
        # Of the UI there is no address in the configuration: it listens on this variable's.
        variables["SPARK_LOCAL_IP"] = conf["spark.driver.bindAddress"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="deltaweave-") as file:
        if secrets:
            file.writelines(_property(key, value) for key, value in secrets.items())
            file.flush()
            further = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
            # Of several files of properties, spark-submit reads the last: the user's own, if any.
            ours = f"--properties-file {shlex.quote(file.name)} --load-spark-defaults"
            variables["PYSPARK_SUBMIT_ARGS"] = f"{ours} {further}"
        with _environment(variables):
            try:
                SparkContext._ensure_initialized(conf=shown)
            except Exception as error:  # it says that its gateway exited, and not why
                problem = java_problem()
                if problem is None:
                    raise
                raise UnsupportedSessionError(
                    problem, operation="starting Spark", state=NOTHING_DONE
                ) from error


def java_problem() -> str | None:
    """Return why there is no JVM that Spark runs on, in one sentence; None if there is one."""
    _, release = java_found()
    # "1.8.0_392" is Java 8: releases before 9 were numbered 1.x.
    major = re.match(r"(?:1\.)?(\d+)", release or "")
    if major is not None and major[1] in ("17", "21"):
        return None
    found = f"Java {major[1]}" if major is not None else "none"
    return f"deltaweave needs Java 17 or 21 and found {found}: install one or set JAVA_HOME."


def java_found() -> tuple[str, str | None]:
    """Return the `java` that Spark would start, and its release, or None if it does not run."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return java, None
    release = re.search(r'version "([^"]*)"', ran.stderr + ran.stdout)
    return java, release[1] if release is not None else None


def _property(key: str, value: str) -> str:
    """Write a line of a file of Java properties."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{key}={escaped}\n"


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that are started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
