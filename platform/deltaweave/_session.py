"""A Delta-enabled SparkSession, and the pairs of Spark and Delta that it may run.

This is the one place that knows `spark.*` keys for starting Spark. The engine calls Delta's JVM
classes, whose signatures move between releases, so every pair but those on which the merge cases
passed is refused (docs/versions.md). What differs between them is in `deltaweave.delta.releases`.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.errors import NOTHING_DONE, UnsupportedSessionError, UnsupportedVersionError
from deltaweave.log_store import use_log_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

DELTA_SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

Release = tuple[int, ...]

# The releases that `make test-matrix` runs, as (Spark, Delta): a pair joins when all cases passed.
TESTED = (
    ("4.2.0", "4.4.0"),
    ("4.1.4", "4.4.0"),
    ("4.0.5", "4.4.0"),
    ("4.1.1", "4.2.0"),
    ("4.0.5", "4.0.1"),
)
ALLOW_UNTESTED = "DELTAWEAVE_ALLOW_UNTESTED_VERSIONS"

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
# Settings that hold a secret's location, its kind, or how to look it up.
_ABOUT_SECRETS = re.compile(
    r"^spark\.kubernetes\.(driver|executor)\.secret|keyprovider|provider\.type|\.token\.renew\."
    r"|\.enable\.delegation\.token$"
    r"|(file|path|provider|type|class|name|itemkey|bitlength|enabled|binding|use_ip|regex)$",
    re.IGNORECASE,
)

# Whoever reaches the driver's ports could run code in it.
_THIS_MACHINE_ALONE: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Spark makes a secret of its own, for masters without executors in other processes.
_AUTHENTICATED: Mapping[str, str] = {"spark.authenticate": "true"}


def delta_conf() -> dict[str, str]:
    """Return Spark's configuration for Delta: the installed pair's jar, extension and catalog."""
    return {"spark.jars.packages": delta_package(*installed_pair()), **DELTA_SETTINGS}


def secret_keys(spark_conf: Mapping[str, object]) -> list[str]:
    """Return the keys of a Spark configuration whose values are secrets, judged by their names.

    >>> secret_keys({"spark.hadoop.fs.s3a.secret.key": "…", "spark.authenticate.secret.file": "…"})
    ['spark.hadoop.fs.s3a.secret.key']
    """
    return [key for key in spark_conf if _SECRET.search(key) and not _ABOUT_SECRETS.search(key)]


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

    Its commits to `s3a://` exclude those of other drivers, unless the settings name a log store.

    Args:
        **spark_conf: Spark configuration on top, e.g. `**{"spark.driver.memory": "4g"}`.

    Raises:
        UnsupportedVersionError: The installed pair of pyspark and delta-spark was not tested.
        UnsupportedSessionError: There is no Java that Spark runs on.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    check_pair(*installed_pair())

    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = local_conf(spark_conf)
    _start_jvm(conf)
    builder = SparkSession.builder.appName("deltaweave")
    for key, value in conf.items():
        builder = builder.config(key, value)
    is_own = SparkContext._active_spark_context is None
    session = builder.getOrCreate()
    if is_own:
        use_log_store(session)
    return session


def _start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM, if this process has none, as PySpark would, with two differences.

    Values of secrets are not on the JVM's command line, which all users of the machine can read.
    The UI of a Spark on this machine listens on loopback rather than on all its addresses.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:
        return
    secrets = {key: conf[key] for key in secret_keys(conf)}
    public_conf = SparkConf().setAppName("deltaweave")
    public_conf.setAll([(key, value) for key, value in conf.items() if key not in secrets])
    variables = {}
    if conf["spark.master"].startswith("local") and "SPARK_LOCAL_IP" not in os.environ:
        # The UI's bind address cannot be configured; it follows this environment variable.
        variables["SPARK_LOCAL_IP"] = conf["spark.driver.bindAddress"]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="deltaweave-") as file:
        if secrets:
            file.writelines(_property(key, value) for key, value in secrets.items())
            file.flush()
            further = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
            # spark-submit reads the last of several files of properties: the user's own, if any.
            ours = f"--properties-file {shlex.quote(file.name)} --load-spark-defaults"
            variables["PYSPARK_SUBMIT_ARGS"] = f"{ours} {further}"
        with _environment(variables):
            try:
                SparkContext._ensure_initialized(conf=public_conf)
            except Exception as error:  # it reports only that the gateway exited
                problem = java_problem()
                if problem is None:
                    raise
                raise UnsupportedSessionError(
                    problem, operation="starting Spark", state=NOTHING_DONE
                ) from error


def java_problem() -> str | None:
    """Return why there is no JVM that Spark runs on, in one sentence; None if there is one."""
    release = java_found().release
    # "1.8.0_392" is Java 8: releases before 9 were numbered 1.x.
    major = re.match(r"(?:1\.)?(\d+)", release or "")
    if major is not None and major[1] in ("17", "21"):
        return None
    found = f"Java {major[1]}" if major is not None else "none"
    return f"deltaweave needs Java 17 or 21 and found {found}: install one or set JAVA_HOME."


class Java(NamedTuple):
    """The `java` that Spark would start, and its release, or None if it does not run."""

    path: str
    release: str | None


def java_found() -> Java:
    """Find the `java` that Spark would start, and run it for its release."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return Java(java, None)
    release = re.search(r'version "([^"]*)"', ran.stderr + ran.stdout)
    return Java(java, release[1] if release is not None else None)


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


def line(release: str) -> Release:
    """Return a release's major and minor number.

    >>> line("4.1.0-SNAPSHOT")
    (4, 1)
    """
    return tuple(int(number) for number in re.findall(r"\d+", release)[:2])


def check_pair(spark: str, delta: str) -> None:
    """Refuse a pair that was not tested, unless the environment allows it.

    A tested pair stands for its lines: other patch releases of the same two run with a warning.
    Builds of others (`4.2.0-amzn-0`) and earlier ones (`4.2.0-preview3`) do not.

    Delta's release is `none` if a session does not have its classes.
    """
    if (spark, delta) in TESTED:
        return
    lines = [(line(tested_spark), line(tested_delta)) for tested_spark, tested_delta in TESTED]
    known = "tested: " + ", ".join(f"Spark {s} with Delta {d}" for s, d in TESTED)
    problem = f"this session runs Spark {spark} with Delta {delta}"
    are_releases = all(re.fullmatch(r"\d+\.\d+\.\d+", each) for each in (spark, delta))
    if are_releases and (line(spark), line(delta)) in lines:
        logger.warning("%s, other patch releases than those that were %s.", problem, known)
        return
    if delta != "none" and os.environ.get(ALLOW_UNTESTED) == "1":
        logger.warning("%s; %s. %s=1 allows it to run.", problem, known, ALLOW_UNTESTED)
        return
    raise UnsupportedVersionError(
        f"{problem}; {known}.\n\n{table_of_pairs()}\n",
        operation="opening Delta's classes",
        hint="Install one of these pairs and start Spark with deltaweave.local_session(), or set "
        f"{ALLOW_UNTESTED}=1 to try.",
    )


def check_jar(spark: str, location: str) -> None:
    """Refuse a jar of Delta that was built for another Spark; since 4.1, its name says for which.

    The release that its classes name is the same for each Spark.
    """
    built_for = re.search(r"delta-spark_(\d+\.\d+)_[^/]*$", location)
    if built_for is None or line(built_for[1]) == line(spark):
        return
    raise UnsupportedVersionError(
        f"this session runs Spark {spark} with a Delta that was built for Spark {built_for[1]} "
        f"({location.rpartition('/')[2]}).",
        operation="opening Delta's classes",
        hint="Start Spark with the package io.delta:delta-spark_{}.{}_2.13 in its place, "
        "or with deltaweave.local_session().".format(*line(spark)),
    )


def table_of_pairs() -> str:
    """Return the tested pairs as a table, one line each."""
    rows = [
        ("Spark", "Delta", "Delta's package"),
        *((s, d, delta_package(s, d)) for s, d in TESTED),
    ]
    return "\n".join(f"  {spark:<7} {delta:<7} {package}" for spark, delta, package in rows)


def delta_package(spark: str, delta: str) -> str:
    """Return the Maven coordinates of Delta's jar for a pair of releases.

    >>> delta_package("4.0.5", "4.0.1"), delta_package("4.1.1", "4.3.1")
    ('io.delta:delta-spark_2.13:4.0.1', 'io.delta:delta-spark_4.1_2.13:4.3.1')
    """
    for_spark = "" if line(delta) < (4, 1) else "_{}.{}".format(*line(spark))
    return f"io.delta:delta-spark{for_spark}_2.13:{delta}"


def installed_pair() -> tuple[str, str]:
    """Return the releases of pyspark and delta-spark in this Python."""
    try:
        return version("pyspark"), version("delta-spark")
    except PackageNotFoundError:  # a Spark of its own has its Python beside its jars
        import pyspark

        return pyspark.__version__, version("delta-spark")
