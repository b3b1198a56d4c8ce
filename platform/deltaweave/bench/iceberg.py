"""Apache Iceberg beside the engine: an environment of its own, and a process that runs merges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from deltaweave.bench import iceberg_peer
from deltaweave.bench.case import Merges
from deltaweave.bench.runner import checksums
from deltaweave.session import DELTA_CONF, local_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Iceberg's runtime for Spark 4.1 does not run on 4.2. 4.1.1 is the release that Iceberg 1.11.0 was
# built with; only the two together are measured.
PYSPARK = "pyspark==4.1.1"
_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
_CATALOG = "iceberg"
_SOURCE = "source"  # a view in the process
_MADE = "deltaweave-made-it-with"  # names the pin in an environment that is complete

MERGE_ON_READ, COPY_ON_WRITE = "merge-on-read", "copy-on-write"
MODES = (MERGE_ON_READ, COPY_ON_WRITE)


class IcebergError(RuntimeError):
    """Iceberg's environment cannot be made, or its process ended early."""


@dataclass(frozen=True)
class IcebergRuns:
    """What Iceberg did in the timed runs of a case.

    Attributes:
        seconds: How long each merge took, in order.
        files_before: How many files the target had before each.
        checksums: What the table holds after the last run: `runner.fingerprint`, as texts.
    """

    seconds: tuple[float, ...]
    files_before: int
    checksums: tuple[str, ...]


@dataclass(frozen=True)
class Iceberg:
    """A process that runs merges on Iceberg.

    Attributes:
        versions: Of Iceberg and its Spark, by name.
    """

    versions: Mapping[str, str]
    _process: subprocess.Popen[str]
    _log: Path

    def measure(self, job: Mapping[str, Any]) -> IcebergRuns:
        """Run a job's merge, once untimed and then as often as it says.

        Args:
            job: As `merge_job` makes it.

        Raises:
            IcebergError: The process ended.
        """
        jobs = self._process.stdin
        assert jobs is not None, "its input is a pipe"
        try:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
        except BrokenPipeError:
            pass  # it ended: so does its output
        done = _answer(self._process, self._log)
        return IcebergRuns(
            tuple(done["run_seconds"]), done["files_before"], tuple(done["checksums"])
        )


def environment(directory: Path) -> Path:
    """The directory of a virtual environment with the Spark that Iceberg runs on."""
    return directory / "iceberg-env"


def is_made(environment: Path) -> bool:
    """Whether the environment is complete."""
    made = environment / _MADE
    return made.exists() and made.read_text() == PYSPARK


def make(environment: Path) -> None:
    """Make the environment; one that is not complete is made anew.

    Raises:
        IcebergError: It cannot be made.
    """
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(environment)],
        [str(_python(environment)), "-m", "pip", "install", "--quiet", PYSPARK],
    )
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            said = (ran.stdout + ran.stderr).strip().splitlines() or [f"exit {ran.returncode}"]
            raise IcebergError(
                f"The environment {environment} with {PYSPARK} cannot be made: {said[-1]}"
            )
    (environment / _MADE).write_text(PYSPARK)


@contextmanager
def started(
    environment: Path, session: Mapping[str, str], warehouse: Path, log: Path
) -> Iterator[Iceberg]:
    """Start Iceberg's process and end it afterwards.

    Args:
        environment: As `make` made it.
        session: Its session's configuration beside Iceberg's own.
        warehouse: An existing directory for its tables.
        log: A file for what the process and its JVM print.

    Raises:
        IcebergError: It did not start.
    """
    settings = {"catalog": _CATALOG, "session": {**session, **_iceberg_conf(warehouse)}}
    # -I: no module of ours or of the caller's PYTHONPATH is found.
    command = [str(_python(environment)), "-I", iceberg_peer.__file__, json.dumps(settings)]
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
            yield Iceberg(_answer(process, log), process, log)
        except BaseException:
            process.kill()
            raise


def session_conf(spark: SparkSession) -> dict[str, str]:
    """What of our session's configuration Iceberg's has, too: all but what is Delta's."""
    conf = spark.sparkContext.getConf()
    ours = {name: conf.get(name) for name in local_conf() if name not in DELTA_CONF}
    return {
        name: value
        for name, value in ours.items()
        if value is not None and not name.startswith("spark.databricks.")
    }


def merge_job(
    spark: SparkSession, merges: Merges, target_files: Sequence[Path], mode: str, runs: int
) -> dict[str, Any]:
    """A job for Iceberg's process: one merge of a case, on the rows that the engine gets.

    Args:
        spark: Our session, which says of which files the source's table is.
        merges: The case's tables and its one statement.
        target_files: The Parquet files that the target's files were made of.
        mode: One of `MODES`.
        runs: How many timed runs.
    """
    (statement,) = merges.statements
    source_files = spark.sql(f"SELECT * FROM {statement.source}").inputFiles()
    files = [str(file) for file in target_files]
    table = f"{_CATALOG}.bench.{mode.replace('-', '_')}"
    return {
        "table": table,
        "properties": {
            "format-version": "3",  # deletion vectors instead of delete files
            "write.merge.mode": mode,
            "write.update.mode": mode,
            "write.delete.mode": mode,
        },
        "target_files": files,
        "source": _SOURCE,
        "source_files": [unquote(urlparse(file).path) for file in source_files],
        "merge": replace(statement, source=_SOURCE).into_table(table),
        "checksums": checksums(spark.read.parquet(*files).columns),
        "runs": runs,
    }


def _iceberg_conf(warehouse: Path) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{_CATALOG}"
    return {
        "spark.jars.packages": _RUNTIME,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(warehouse),
    }


def _answer(process: subprocess.Popen[str], log: Path) -> Any:
    answers: IO[str] | None = process.stdout
    assert answers is not None, "its output is a pipe"
    line = answers.readline()
    if not line:
        raise IcebergError(f"Iceberg's process ended early; its output is in {log}.")
    return json.loads(line)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
