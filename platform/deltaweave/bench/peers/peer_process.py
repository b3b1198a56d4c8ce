"""Another table format beside ours: an environment of its own, and a process that does jobs there.

Its runtime is of another Spark than ours, so it runs in a virtual environment that is made once, as
a process of `peer_program.py`, which gets a job as a line of JSON and answers with a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from deltaweave.bench.peers import peer_program
from deltaweave.session import DELTA_CONF, local_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MADE = "deltaweave-made-it-with"  # names the pin in an environment that is complete


class PeerError(RuntimeError):
    """A peer's environment cannot be made, its process ended early, or a job failed there."""


@dataclass(frozen=True)
class Peer:
    """A table format that the engine is measured beside.

    Attributes:
        name: As files and JSON name it.
        title: As sentences and tables name it.
        pyspark: The requirement for the Spark that it runs on.
        runtime: The coordinates of its runtime for that Spark.
        conf: The configuration of its session beside those two, given a directory for its tables.
    """

    name: str
    title: str
    pyspark: str
    runtime: str
    conf: Callable[[Path], Mapping[str, str]]

    @property
    def version(self) -> str:
        """That of its runtime."""
        return self.runtime.rpartition(":")[2]

    def environment(self, directory: Path) -> Path:
        """The directory of the virtual environment with its Spark."""
        return directory / f"{self.name}-env"

    def is_made(self, environment: Path) -> bool:
        """Whether the environment is complete."""
        made = environment / _MADE
        return made.exists() and made.read_text() == self.pyspark

    def make(self, environment: Path) -> None:
        """Make the environment; an incomplete one is replaced.

        Raises:
            PeerError: It cannot be made.
        """
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
    def started(
        self, environment: Path, session: Mapping[str, str], tables: Path, log: Path
    ) -> Iterator[PeerProcess]:
        """Start its process and end it afterwards.

        Args:
            environment: As `make` made it.
            session: Its session's configuration beside its own.
            tables: An existing directory for its tables.
            log: A file for what the process and its JVM print.

        Raises:
            PeerError: It did not start.
        """
        conf = {**session, "spark.jars.packages": self.runtime, **self.conf(tables)}
        # -I: no module of ours or of the caller's PYTHONPATH is found.
        command = [str(_python(environment)), "-I", peer_program.__file__, json.dumps(conf)]
        # With SPARK_HOME, it would start that Spark instead of its environment's.
        variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        with (
            log.open("w", encoding="utf-8") as printed,
            subprocess.Popen(
                command,
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


class PeerProcess:
    """A peer's process that has started.

    Attributes:
        versions: Of the peer and its Spark, by name.
    """

    def __init__(self, peer: Peer, process: subprocess.Popen[str], log: Path) -> None:
        self._title = peer.title
        self._process = process
        self._log = log
        self.versions: Mapping[str, str] = {peer.name: peer.version, **self._answer()}

    def do(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have a job done, and return its answer; `peer_program.py` says what jobs there are.

        Raises:
            PeerError: The job failed, or the process ended.
        """
        jobs = self._process.stdin
        assert jobs is not None, "its input is a pipe"
        try:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
        except BrokenPipeError:  # it ended: so does its output
            with suppress(BrokenPipeError):  # what was not written is tried again, once
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
        """What stopped its JVM, where the log names that."""
        printed = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        thrown = [line for line in printed if line.startswith("Exception in thread")]
        return f" {thrown[0]}" if thrown else ""


def session_conf(spark: SparkSession) -> dict[str, str]:
    """What of our session's configuration a peer's has, too: all but what is Delta's."""
    conf = spark.sparkContext.getConf()
    ours = {name: conf.get(name) for name in local_conf() if name not in DELTA_CONF}
    return {
        name: value
        for name, value in ours.items()
        if value is not None and not name.startswith("spark.databricks.")
    }


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
