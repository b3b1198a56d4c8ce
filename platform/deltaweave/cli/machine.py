"""The commands about this machine and what is set up on it.

- `doctor`: whether the machine can run merges.
- `init`: a Dagster project with a first table, which runs as it is. Its files are those in
  `project_files`, with `$package` and `$release` filled in.
- `warm stop`: ends the Spark drivers that stay between runs.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from deltaweave._session import java_found, java_problem
from deltaweave.cli.options import (
    FAILED,
    MISUSED,
    STARTING_SPARK,
    Conf,
    Json,
    Steps,
    Verbose,
    fail,
    print_json,
    quiet_session,
)
from deltaweave.errors import DeltaweaveError
from deltaweave.warm_driver.address import WarmDriverError, check_peer, sockets

if TYPE_CHECKING:
    from importlib.abc import Traversable

    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


_PYTHON = (3, 10)
# A class of each of the two jars of Delta.
_CLASSES_OF_JARS = ("io.delta.tables.DeltaTable", "io.delta.storage.LogStore")
_SECONDS_TO_CONNECT, _SECONDS_FOR_AN_ANSWER = 5, 20
_TEMPLATES = "project_files"
_SUFFIX = ".template"

# Also a name of a distribution: ASCII, with a letter first, and no underscore last.
_PACKAGE = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?", re.IGNORECASE)


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
    steps.begin(STARTING_SPARK)
    try:
        with quiet_session(conf, verbose=verbose) as spark:
            for about, look in _SESSION_CHECKS.items():
                steps.begin(f"Looking at {about}")
                yield _session_finding(about, look, spark)
    except typer.Exit as ended:
        if ended.exit_code != FAILED:  # the arguments make no sense
            raise
        yield Finding("Spark", False, "it did not start: the standard error has its output")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, version(name))
    except PackageNotFoundError:
        return Finding(name, False, f"not installed: pip install {name}")


def _session_finding(
    about: str, look: Callable[[SparkSession], str], spark: SparkSession
) -> Finding:
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


def _delta_jars(spark: SparkSession) -> str:
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
    [found] = python_of_tasks(spark.range(1)).collect()
    own_release = ".".join(map(str, sys.version_info[:2]))
    if found.python != own_release:
        raise RuntimeError(
            f"Python {found.python} there and {own_release} here: set PYSPARK_PYTHON to one of the "
            "same release"
        )
    return f"Python {found.python} with pyarrow {found.pyarrow} (PYSPARK_PYTHON)"


def python_of_tasks(rows: DataFrame) -> DataFrame:
    """Return what a task reports of its Python, as one row for all of these."""

    def report(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import sys

        import pyarrow as pa

        list(batches)
        python = ".".join(map(str, sys.version_info[:2]))
        yield pa.RecordBatch.from_pydict({"python": [python], "pyarrow": [pa.__version__]})

    return rows.coalesce(1).mapInArrow(report, "python STRING, pyarrow STRING")


def _user_interface(spark: SparkSession) -> str:
    return spark.sparkContext.uiWebUrl or "turned off (spark.ui.enabled)"


_SESSION_CHECKS: dict[str, Callable[[SparkSession], str]] = {
    "Spark and Delta": _releases,
    "Python of the executors": _executors,
    "Delta's jars": _delta_jars,
    "memory": _memory,
    "ports": _ports,
    "Spark's UI": _user_interface,
}

warm = typer.Typer(no_args_is_help=True)


@warm.callback()
def _warm() -> None:
    """Control the Spark drivers that stay between runs."""


@warm.command("stop", epilog="Example: deltaweave warm stop")
def stop(
    force: Annotated[
        bool,
        typer.Option("--force", help="Also those that runs use: these runs then fail.", metavar=""),
    ] = False,
) -> None:
    """End the warm drivers of this user on this machine; exit with 1 if one is in use."""
    try:
        drivers = stop_drivers(also_in_use=force)
    except WarmDriverError as error:
        fail(str(error), FAILED)
    if not drivers:
        print("No warm driver runs.")
    for driver in drivers:
        if driver.is_stopped:
            print(f"Stopped the driver of process {driver.pid}.")
    in_use = [driver for driver in drivers if not driver.is_stopped]
    for driver in in_use:
        used = "1 process uses" if driver.clients == 1 else f"{driver.clients} processes use"
        typer.echo(f"{used} the driver of process {driver.pid}: --force ends it.", err=True)
    if in_use:
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class StopAnswer:
    """The answer of a driver.

    Attributes:
        pid: Process id of its keeper.
        clients: How many processes used it.
        is_stopped: Whether it accepts no client any more; it then ends within seconds.
    """

    pid: int
    clients: int
    is_stopped: bool


def stop_drivers(*, also_in_use: bool) -> list[StopAnswer]:
    """Ask all warm drivers of this user on this machine to end, and wait until they do.

    `also_in_use` stops those that processes use, too: their runs then fail.
    """
    asked = []
    for socket_path in sockets():
        answer = _ask(socket_path, "also in use" if also_in_use else "if idle")
        if answer is not None:
            asked.append(answer)
    return asked


def _ask(socket_path: Path, what: str) -> StopAnswer | None:
    """Ask the keeper at a socket; None if there is none, or one of another release."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS_FOR_AN_ANSWER)
        try:
            connection.connect(str(socket_path))
            check_peer(connection)
            connection.sendall(json.dumps({"stop": what}).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as stream:
                line = stream.readline()
        except OSError:  # the socket of a keeper that was killed, or one that does not answer
            return None
    if not line:
        return None
    answer = json.loads(line)
    if answer["stops"]:
        _wait_until_removed(socket_path)
    return StopAnswer(answer["pid"], answer["clients"], answer["stops"])


def _wait_until_removed(socket_path: Path) -> None:
    end = time.monotonic() + _SECONDS_FOR_AN_ANSWER
    while socket_path.exists() and time.monotonic() < end:
        time.sleep(0.05)


def init(
    directory: Annotated[
        Path, typer.Argument(help="Where it is made: a new or an empty directory.")
    ],
    package: Annotated[
        str | None,
        typer.Option(
            help="Name of its Python package; by default the directory's, with _ for -.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a Dagster project that merges what lands into a Delta table."""
    name = package or directory.absolute().name.replace("-", "_")
    problem = _problem_of_package(name) or _problem_of_directory(directory)
    if problem is not None:
        fail(problem, MISUSED)
    try:
        _write_project(directory, name)
    except OSError as error:
        fail(f"{directory} cannot be written: {error.strerror}.", FAILED)
    print(
        f"{directory} holds the package {name} with the tables orders and orders_by_state. Next:\n"
    )
    print(f"  cd {directory}")
    print("  pip install -e .")
    print(f"  python -m {name}.land")
    print('  DAGSTER_HOME="$PWD/dagster_home" dagster dev\n')
    print("Then http://localhost:3000 shows the run that merges the batch. README.md has the rest.")


def _problem_of_package(name: str) -> str | None:
    """Return why a package cannot have the name; None if it can."""
    if _PACKAGE.fullmatch(name) is None or keyword.iskeyword(name):
        return (
            f"{name!r} is not a valid name for a Python package: it needs letters, digits and _, "
            "with a letter first and no _ last. Give one with --package."
        )
    if name in sys.stdlib_module_names or _is_installed(name):
        return (
            f"this Python has a package {name} already: only one of the two could be imported. "
            "Give another name with --package."
        )
    return None


def _is_installed(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None  # any directory is found, without origin


def _problem_of_directory(directory: Path) -> str | None:
    """Return why the project cannot be made there; None if it can."""
    if directory.is_dir() and any(directory.iterdir()):
        return f"{directory} is not empty. Name a directory that is new or empty."
    if directory.exists() and not directory.is_dir():
        return f"{directory} is a file. Name a directory that is new or empty."
    return None


def _write_project(directory: Path, package: str) -> None:
    """Write all files of the project, or none of them."""
    from deltaweave import __version__

    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for path, template in _templates(files("deltaweave.cli") / _TEMPLATES, Path()):
            file = directory / Path(
                *(package if part == "package" else part for part in path.parts)
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text(encoding="utf-8"))
            file.write_text(text.substitute(package=package, release=__version__), encoding="utf-8")
    except OSError:
        for each in directory.iterdir():  # it was empty
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if is_new:
            directory.rmdir()
        raise


def _templates(folder: Traversable, path: Path) -> Iterator[tuple[Path, Traversable]]:
    """Yield the templates under a folder, each with its file's path in the project."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _templates(each, path / each.name)
        elif each.name.endswith(_SUFFIX):
            yield path / each.name.removesuffix(_SUFFIX), each
