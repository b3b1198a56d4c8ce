"""The pairs of Spark and Delta on which the merge cases passed; every other pair is refused.

The engine calls Delta's JVM classes, whose signatures move between releases. What differs from
pair to pair is in `deltaweave.delta.releases`; docs/versions.md has the results of the tests.
"""

from __future__ import annotations

import logging
import os
import re
from importlib.metadata import PackageNotFoundError, version

from deltaweave.errors import UnsupportedVersionError

logger = logging.getLogger(__name__)

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

    Args:
        spark: Spark's release.
        delta: Delta's release; `none` if a session does not have its classes.

    Raises:
        UnsupportedVersionError: It lists the pairs that were tested.
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

    Args:
        spark: Spark's release.
        location: The jar's path or URI.

    Raises:
        UnsupportedVersionError: It names the jar, and the package that belongs to this Spark.
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
