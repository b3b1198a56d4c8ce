"""Checks what a benchmark needs of the machine: a directory, Java, a session."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAILED, MISUSED = 1, 2  # exit codes


def writable(directory: Path) -> Path:
    """The directory as an absolute path; it is created if it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"The directory {directory} cannot be made: {error.strerror}.", FAILED)
    if not os.access(directory, os.W_OK | os.X_OK):
        fail(f"The directory {directory} cannot be written.", FAILED)
    return directory.resolve()


def check_outputs(json: Path | None, plot: Path | None = None) -> None:
    """End the command if its output file cannot be written."""
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs matplotlib: pip install 'deltaweave[bench]'.", MISUSED)
    for file in (json, plot):
        if file is not None and not os.access(file.absolute().parent, os.W_OK):
            fail(f"{file} cannot be written: its directory is missing or closed.", MISUSED)


def check_java() -> None:
    """End the command unless there is a JVM that Spark runs on."""
    problem = _java_problem()
    if problem is not None:
        fail(problem, FAILED)


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """The active session, or a new one with more memory, which ends with the context."""
    from pyspark.sql import SparkSession

    from deltaweave.session import local_session

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    check_java()
    log = directory / "spark.log"
    options = {
        "spark.driver.memory": "8g",
        "spark.sql.warehouse.dir": str(directory / "spark-warehouse"),
    }
    try:
        with _output_to(log):
            spark = local_session(**options)
    except Exception as error:  # a JVM may fail to start for any reason, which the log shows
        fail(f"Spark did not start ({type(error).__name__}); its output is in {log}.", FAILED)
    try:
        yield spark
    finally:
        spark.stop()


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


def _java_problem() -> str | None:
    """Why there is no JVM that Spark runs on, or None if there is one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        found = None
    else:
        # "1.8.0_392" is Java 8: releases before 9 were numbered 1.x.
        found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    if found is not None and found[1] in ("17", "21"):
        return None
    release = f"Java {found[1]}" if found is not None else "none"
    return f"deltaweave needs Java 17 or 21 and found {release}: install one or set JAVA_HOME."


def fail(problem: str, code: int) -> NoReturn:
    """End the command with one line on the standard error."""
    typer.echo(problem, err=True)
    raise typer.Exit(code)
