"""Runs a peer in its own environment, as a process that does jobs.

Its runtime needs another Spark than ours. So it runs in its own virtual environment, which is
created once, as a process of `peer_program.py`, which reads each job as a line of JSON and answers
with a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from benchmarks.peers import peer_program
from benchmarks.peers.peer import PeerError
from deltaweave._session import delta_conf, local_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MADE = "deltaweave-made-it-with"  # file that marks a complete environment, with its requirement


@dataclass(frozen=True)
class SqlUpsert:
    """How a peer creates a table with the rows of `base` and upserts those of `changes` into it.

    Attributes:
        table: The table's name.
        make: Statements that create it.
        statement: The statement that upserts.
    """

    table: str
    make: Sequence[str]
    statement: str


@dataclass(frozen=True)
class SparkPeer(ABC):
    """A table format that runs on a Spark of its own.

    Attributes:
        name: The name in file names and JSON.
        title: The name in sentences and tables.
        pyspark: The requirement for the Spark that it runs on.
        runtime: The Maven coordinates of its runtime for that Spark.
    """

    name: str
    title: str
    pyspark: str
    runtime: str

    @abstractmethod
    def conf(self, tables: Path) -> Mapping[str, str]:
        """Return the rest of its session's configuration, for a directory of tables."""

    @abstractmethod
    def upsert(self, columns: Sequence[str], keys: Sequence[str]) -> SqlUpsert:
        """Return the SQL that creates a merge-on-read table and upserts into it."""

    @property
    def version(self) -> str:
        """The version of its runtime."""
        return self.runtime.rpartition(":")[2]

    def environment(self, directory: Path) -> Path:
        """Return the directory of the virtual environment with its Spark."""
        return directory / f"{self.name}-env"

    def is_made(self, environment: Path) -> bool:
        """Return whether the environment is complete."""
        made = environment / _MADE
        return made.exists() and made.read_text() == self.pyspark

    def install(self, directory: Path, announce: Callable[[str], object]) -> None:
        """Create the environment, unless it exists; an incomplete one is replaced.

        Raises:
            PeerError: It cannot be created.
        """
        environment = self.environment(directory)
        if self.is_made(environment):
            return
        announce(
            f"Installing {self.pyspark} for {self.title} into {environment} (once; about 450 MB)"
        )
        commands = (
            [sys.executable, "-m", "venv", "--clear", str(environment)],
            [str(_python(environment)), "-m", "pip", "install", "--quiet", self.pyspark],
        )
        for command in commands:
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                said = (ran.stdout + ran.stderr).strip().splitlines() or [f"exit {ran.returncode}"]
                raise PeerError(
                    f"The environment {environment} with {self.pyspark} cannot be made: {said[-1]}"
                )
        (environment / _MADE).write_text(self.pyspark)

    @contextmanager
    def process(self, session: Mapping[str, str], directory: Path) -> Iterator[PeerProcess]:
        """Start its process, with new tables, and end it afterwards.

        Args:
            session: Configuration of its session, in addition to its own.
            directory: Where its environment is; the output of the process goes to a log there.

        Raises:
            PeerError: It did not start.
        """
        log = directory / f"{self.name}.log"
        # With SPARK_HOME, the process would start that Spark instead of its environment's.
        variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        with (
            tempfile.TemporaryDirectory(dir=directory, prefix=f".{self.name}-") as tables,
            log.open("w", encoding="utf-8") as printed,
            subprocess.Popen(
                self._command(session, directory, Path(tables)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
                env=variables,
            ) as process,
        ):
            try:
                yield PeerProcess(self, process, log)
            except BaseException:
                process.kill()
                raise

    def _command(self, session: Mapping[str, str], directory: Path, tables: Path) -> list[str]:
        conf = {**session, "spark.jars.packages": self.runtime, **self.conf(tables)}
        # -I: the process must not import modules of ours or of the caller's PYTHONPATH.
        python = str(_python(self.environment(directory)))
        return [python, "-I", peer_program.__file__, json.dumps(conf)]


class PeerProcess:
    """A peer's process that has started.

    Attributes:
        versions: The versions of the peer and its Spark, by name.
    """

    def __init__(self, peer: SparkPeer, process: subprocess.Popen[str], log: Path) -> None:
        self._title = peer.title
        self._process = process
        self._log = log
        self.versions: Mapping[str, str] = {peer.name: peer.version, **self._answer()}

    def do(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a job and return its answer; `peer_program.py` describes the jobs.

        Raises:
            PeerError: The job failed, or the process ended.
        """
        jobs = self._process.stdin
        assert jobs is not None, "its input is a pipe"
        try:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
        except BrokenPipeError:  # the process ended, so its output ends too
            with suppress(BrokenPipeError):  # closing tries once more to write the rest
                jobs.close()
        return self._answer()

    def _answer(self) -> Mapping[str, Any]:
        answers: IO[str] | None = self._process.stdout
        assert answers is not None, "its output is a pipe"
        line = answers.readline()
        if not line:
            raise PeerError(
                f"{self._title}'s process ended early; its output is in {self._log}.{self._why()}"
            )
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._title} failed: {answer['error']} (see {self._log})")
        return answer

    def _why(self) -> str:
        """Return the exception that stopped its JVM, if the log names one."""
        printed = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        thrown = [line for line in printed if line.startswith("Exception in thread")]
        return f" {thrown[0]}" if thrown else ""


def session_conf(spark: SparkSession) -> dict[str, str]:
    """Return our session's configuration without Delta's part, for a peer's session."""
    conf = spark.sparkContext.getConf()
    ours = {name: conf.get(name) for name in local_conf() if name not in delta_conf()}
    return {
        name: value
        for name, value in ours.items()
        if value is not None and not name.startswith("spark.databricks.")
    }


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
