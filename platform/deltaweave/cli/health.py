"""The command `doctor`: whether this machine can run merges, and what is missing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from deltaweave._session import java_found, java_problem
from deltaweave._terminal import FAILED, quiet_session
from deltaweave.cli.options import Conf, Json, Steps, Verbose, print_json
from deltaweave.errors import DeltaweaveError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

_PYTHON = (3, 10)
# A class of each of the two jars of Delta.
_CLASSES_OF_JARS = ("io.delta.tables.DeltaTable", "io.delta.storage.LogStore")
_SECONDS_TO_CONNECT = 5


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        about: What was checked.
        is_good: Whether merges run with it.
        found: What was found and, if it is not good, what to do.
    """

    about: str
    is_good: bool
    found: str


def doctor(
    conf: Conf = [],  # noqa: B006  # typer reads it and hands on a list of its own
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check Python, Java, Spark, Delta, executors and ports; exit with 1 if a check fails."""
    with Steps() as steps:
        findings = list(_findings(conf, steps, verbose=verbose))
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        shown = Shown("", "", "", show_header=False)
        for finding in findings:
            mark = "[green]ok[/]" if finding.is_good else "[red]wrong[/]"
            shown.add_row(mark, finding.about, escape(finding.found))
        Console(highlight=False).print(shown)
    if not all(finding.is_good for finding in findings):
        raise typer.Exit(FAILED)


def _findings(conf: list[str], steps: Steps, *, verbose: bool) -> Iterator[Finding]:
    """Check each thing in turn; without Java there is no session to look at."""
    steps.begin("Looking at this machine")
    yield Finding(
        "Python", sys.version_info >= _PYTHON, f"{sys.version.split()[0]} ({sys.executable})"
    )
    for package in ("pyspark", "delta-spark", "pyarrow"):
        yield _package(package)
    problem = java_problem()
    yield Finding("Java", problem is None, problem or "{1} ({0})".format(*java_found()))
    if problem is not None:
        return
    steps.begin("Starting Spark")
    try:
        with quiet_session(conf, verbose=verbose) as spark:
            for about, look in _OF_A_SESSION.items():
                steps.begin(f"Looking at {about}")
                yield _checked(about, look, spark)
    except typer.Exit as ended:
        if ended.exit_code != FAILED:  # the arguments make no sense
            raise
        yield Finding("Spark", False, "it did not start: the standard error has its output")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, f"not installed: pip install {name}")


def _checked(about: str, look: Callable[[SparkSession], str], spark: SparkSession) -> Finding:
    from deltaweave.delta.jvm import reported_by

    try:
        return Finding(about, True, look(spark))
    except DeltaweaveError as error:
        return Finding(about, False, f"{error.problem} {error.hint or ''}".rstrip())
    except Exception as error:  # whatever is wrong there is what the caller wants to know
        return Finding(about, False, reported_by(error))


def _releases(spark: SparkSession) -> str:
    from deltaweave.delta.jvm import running_releases

    return "Spark {} with Delta {}".format(*running_releases(spark))


def _jars(spark: SparkSession) -> str:
    """Find Delta's jars; where several hold the same classes, the JVM takes some of each."""
    from deltaweave.delta.jvm import jars_with

    found = []
    for name in _CLASSES_OF_JARS:
        jars = jars_with(spark, name)
        if len(jars) != 1:
            raise RuntimeError(
                f"{name} is in {' and '.join(jars) or 'no jar'}: leave one of them, in "
                "spark.jars.packages, spark.jars or the jars directory of Spark"
            )
        found += [jar.rpartition("/")[2] for jar in jars]
    return ", ".join(found)


def _ports(spark: SparkSession) -> str:
    """Return whether this machine reaches the driver where executors look for it."""
    conf = spark.sparkContext.getConf()
    # Spark sets both as it starts.
    host, port = str(conf.get("spark.driver.host")), str(conf.get("spark.driver.port"))
    try:
        # IPv6 addresses are in brackets.
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT):
            pass
    except OSError as error:
        raise RuntimeError(
            f"the driver is not reached at {host}:{port} ({error}): set spark.driver.host to a "
            "name of this machine that executors know, and spark.driver.port to an open port"
        ) from error
    return f"the driver is at {host}:{port} (spark.driver.host, spark.driver.port)"


def _memory(spark: SparkSession) -> str:
    driver = spark.conf.get("spark.driver.memory", "1g")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return f"{driver} for the driver (spark.driver.memory), of {whole:.1f} GiB of this machine"


def _executors(spark: SparkSession) -> str:
    """Find the executors' Python, by a task that runs there and needs pyarrow."""
    [found] = _pythons(spark.range(1)).collect()
    own_release = ".".join(map(str, sys.version_info[:2]))
    if found.python != own_release:
        raise RuntimeError(
            f"Python {found.python} there and {own_release} here: set PYSPARK_PYTHON to one of the "
            "same release"
        )
    return f"Python {found.python} with pyarrow {found.pyarrow} (PYSPARK_PYTHON)"


def _pythons(rows: DataFrame) -> DataFrame:
    def say(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import sys

        import pyarrow as pa

        list(batches)
        python = ".".join(map(str, sys.version_info[:2]))
        yield pa.RecordBatch.from_pydict({"python": [python], "pyarrow": [pa.__version__]})

    return rows.coalesce(1).mapInArrow(say, "python STRING, pyarrow STRING")


def _user_interface(spark: SparkSession) -> str:
    return spark.sparkContext.uiWebUrl or "turned off (spark.ui.enabled)"


_OF_A_SESSION: dict[str, Callable[[SparkSession], str]] = {
    "Spark and Delta": _releases,
    "Python of the executors": _executors,
    "Delta's jars": _jars,
    "memory": _memory,
    "ports": _ports,
    "Spark's UI": _user_interface,
}
