"""What the commands need of the machine: a directory, Java, a session that does not chatter."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from deltaweave._session import java_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED, MISUSED, UNKNOWN = 1, 2, 3
"""Exit codes of all commands, beside 0: 2 is for arguments that make no sense, as typer's own; 3 if
it is unknown whether a merge was committed."""


def check_output(file: Path | None) -> None:
    """End the command if its output file cannot be written."""
    if file is not None and not os.access(file.absolute().parent, os.W_OK):
        fail(f"{file} cannot be written: its directory is missing or closed.", MISUSED)


def check_plot(plot: Path | None) -> None:
    """End the command if its chart cannot be drawn or written."""
    if plot is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install matplotlib.", MISUSED)
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.filetypes)
    if plot.suffix.lower().removeprefix(".") not in known:
        fail(f"--plot {plot}: its suffix must be one of {', '.join(known)}.", MISUSED)
    check_output(plot)


def check_java() -> None:
    """End the command unless there is a JVM that Spark runs on."""
    problem = java_problem()
    if problem is not None:
        fail(problem, FAILED)


@contextmanager
def quiet_session(conf: Sequence[str], *, verbose: bool) -> Iterator[SparkSession]:
    """Open this process's session, or a new one that ends with the context and leaves no file.

    Args:
        conf: Spark settings on top of those of `local_session`, each as `key=value`.
        verbose: Whether Spark's own lines are shown. They are in no file.
    """
    given = dict(_setting(each) for each in conf)
    # On a disk that is full or closed, the warehouse is made where it is needed first.
    with tempfile.TemporaryDirectory(prefix="deltaweave-", ignore_cleanup_errors=True) as folder:
        options = {"spark.sql.warehouse.dir": str(Path(folder, "warehouse")), **given}
        with session(options, None if verbose else Path(folder, "spark.log")) as spark:
            yield spark


def _running() -> SparkSession | None:
    """Return the session that this process has; whoever started it ends it.

    It need not be the active one of this thread, as where the connection to the JVM was reopened.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        fail(f"--conf {key}: give it as spark.key=value.", MISUSED)
    from deltaweave._session import secret_keys

    if secret_keys({key: value}):
        fail(
            f"--conf {key}: other users of this machine can read the command line. Set it in the "
            "spark-defaults.conf of SPARK_CONF_DIR, or in the environment.",
            MISUSED,
        )
    return key, value


@contextmanager
def session(options: Mapping[str, str], log: Path | None) -> Iterator[SparkSession]:
    """Work in the session of this process, or in a new one, which ends with the context.

    Args:
        options: Spark settings of a new session, on top of those of `local_session`.
        log: A file for what a new session's JVM prints; None lets it print.
    """
    running = _running()
    if running is not None:
        yield running
        return
    from deltaweave._session import local_session

    check_java()
    try:
        with _output_to(log) if log is not None else nullcontext():
            spark = local_session(**options)
    except Exception as error:  # a JVM may fail to start for any reason, which its output shows
        last = _last_lines(log) if log is not None else ""
        fail(f"Spark did not start ({type(error).__name__}).{last}", FAILED)
    try:
        yield spark
    finally:
        spark.stop()


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "".join(f"\n  {line}" for line in [" The end of its output:", *lines[-10:]] if lines)


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect the output of this process, and for good that of the processes it starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = os.dup(1), os.dup(2)
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)


def fail(problem: str, code: int) -> NoReturn:
    """End the command with one line on the standard error."""
    typer.echo(problem, err=True)
    raise typer.Exit(code)
