"""A standalone cluster of Spark on this machine: a master and its workers, from pyspark's jars.

All its ports are on loopback, and all its processes ask each other for a secret, which lies in a
file that its owner alone can read.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from assets.java_program import free_ports, running

_LOOPBACK = "127.0.0.1"
_SPARK = Path(str(pyspark.__file__)).parent


@dataclass
class StandaloneCluster:
    """A cluster that runs.

    Attributes:
        directory: Where its processes write: logs, and what executors keep on disk.
        master: Its address, for `spark.master`.
        environment: Environment variables with which a driver of it is to be started.
        workers: The processes of its workers. Each leads a process group, which its executors are
            in.
    """

    directory: Path
    master: str
    environment: dict[str, str]
    workers: list[Popen[bytes]] = field(default_factory=list)
    _page: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)

    def add_worker(self, memory: str = "1g") -> Popen[bytes]:
        """Start a worker of one core, and wait until the master knows it.

        Args:
            memory: What its executors may have together, as Spark writes sizes.

        Raises:
            JavaProgramError: It does not start.
        """
        name = f"worker-{len(self.workers) + 1}"
        before = self._known_workers()
        arguments = ["--host", _LOOPBACK, "--webui-port", "0", "--cores", "1", "--memory", memory]
        worker = self._stack.enter_context(
            running(
                "org.apache.spark.deploy.worker.Worker",
                [*arguments, "--work-dir", str(self.directory / name), self.master],
                _class_path(),
                log=self.directory / f"{name}.log",
                answers=lambda: bool(self._known_workers() - before),
                environment=self.environment,
            )
        )
        self.workers.append(worker)
        return worker

    def _known_workers(self) -> set[str]:
        """Return the ids of the workers that the master has seen; none while it does not answer."""
        try:
            with urlopen(f"{self._page}/json/", timeout=5) as answer:
                return {worker["id"] for worker in json.load(answer)["workers"]}
        except (URLError, TimeoutError, ConnectionError):
            return set()


@contextmanager
def standalone_cluster(
    directory: Path, *, workers: int = 2, memory: str = "1g"
) -> Iterator[StandaloneCluster]:
    """Start a master and workers, and end them when the context is left.

    They end with this process, too, however that ends.

    Args:
        directory: Where they write; it is made.
        workers: How many, each of one core.
        memory: What the executors of each worker may have, as Spark writes sizes.

    Raises:
        JavaProgramError: One does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port, page = free_ports(2)
    cluster = StandaloneCluster(
        directory,
        f"spark://{_LOOPBACK}:{port}",
        _environment(_configuration(directory)),
        _page=f"http://{_LOOPBACK}:{page}",
    )
    with cluster._stack as stack:
        arguments = ["--host", _LOOPBACK, "--port", str(port), "--webui-port", str(page)]
        stack.enter_context(
            running(
                "org.apache.spark.deploy.master.Master",
                arguments,
                _class_path(),
                log=directory / "master.log",
                answers=lambda: _answers(cluster._page),
                environment=cluster.environment,
            )
        )
        for _ in range(workers):
            cluster.add_worker(memory)
        yield cluster


def _answers(page: str) -> bool:
    try:
        with urlopen(f"{page}/json/", timeout=5):
            return True
    except (URLError, TimeoutError, ConnectionError):
        return False


def _class_path() -> str:
    return str(_SPARK / "jars" / "*")


def _configuration(directory: Path) -> Path:
    """Write the configuration with the secret that master, workers and drivers read at start."""
    configuration = directory / "conf"
    configuration.mkdir(mode=0o700, exist_ok=True)
    file = configuration / "spark-defaults.conf"
    file.touch(mode=0o600)
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.master.rest.enabled": "false",  # it would take applications without the secret
    }
    file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return configuration


def _environment(configuration: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": _LOOPBACK,  # where the pages of master and workers listen, too
        "SPARK_SCALA_VERSION": "2.13",  # Spark's own scripts tell workers, which are not used here
    }
