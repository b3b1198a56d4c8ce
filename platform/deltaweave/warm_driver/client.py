"""Gives this process a session on the warm driver, which is started if there is none."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from deltaweave._session import local_conf
from deltaweave.warm_driver.address import Address, WarmDriverError, address, check_peer

logger = logging.getLogger(__name__)

_SECONDS_FOR_AN_ANSWER = 20
_ORPHANED_SECONDS = 120

_lock = threading.Lock()
_attachment: Attachment | None = None


class AttachedContext(SparkContext):
    """A SparkContext that ends only for this process.

    Attributes:
        job_tag: The tag of all jobs of this process.
    """

    job_tag: str

    def stop(self) -> None:
        """Detach from the driver, which continues. The next session starts another Spark."""
        self._jsc: Any = None  # what PySpark would stop
        super().stop()
        forget_gateway()

    def cancelAllJobs(self) -> None:  # noqa: N802 - PySpark's name, and what it calls on Ctrl-C
        """Cancel the jobs of this process."""
        self.cancelJobsWithTag(self.job_tag)


def attached_session(port: int, secret: str, job_tag: str) -> SparkSession:
    """Attach to the session behind the keeper's py4j server, as this process's PySpark session.

    The keeper gave `job_tag` to this process's jobs.
    """
    # PySpark reads these to find a running JVM. Child processes must not see the token.
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = secret
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    java = gateway.jvm.org.apache.spark
    lent = java.sql.classic.SparkSession.getActiveSession().get()
    java_context = java.api.java.JavaSparkContext.fromSparkContext(lent.sparkContext())
    context = AttachedContext(
        gateway=gateway,
        jsc=java_context,
        conf=SparkConf(_jconf=java_context.getConf()),
        # Spark reuses Python workers with the same environment. Workers that imported other code
        # than this process must not run its functions.
        environment={"DELTAWEAVE_CODE": code_stamp()},
    )
    context.job_tag = job_tag
    return SparkSession(context, lent)


def forget_gateway() -> None:
    """Make PySpark start its own JVM for the next session."""
    SparkContext._gateway = SparkContext._jvm = None


def code_stamp() -> str:
    """Hash the code of this process: its own files and the installed packages."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    digest = hashlib.sha256()
    for path in (*libraries, *sorted(_own_files(libraries))):
        if os.path.exists(path):
            found = os.stat(path)  # of a directory: a package was installed or removed
            digest.update(f"{path} {found.st_mtime_ns} {found.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _own_files(libraries: tuple[str, ...]) -> Iterator[str]:
    """Yield Python files of all imported packages and modules that are not libraries."""
    for name in {name.partition(".")[0] for name in list(sys.modules)}:
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            continue
        for root in [*vars(module).get("__path__", ()), vars(module).get("__file__")]:
            if not root or root.startswith(libraries):
                continue
            yield from map(str, Path(root).rglob("*.py")) if os.path.isdir(root) else [root]


@dataclass(frozen=True)
class Attachment:
    """The attachment of this process to a warm driver.

    Attributes:
        session: The session of this process.
        driver_address: The address of the driver, with its log.
        driver: Process id of the driver's keeper.
        connection: The connection by which keeper and process see that the other has ended.
    """

    session: SparkSession
    driver_address: Address
    driver: int
    connection: socket.socket

    def is_alive(self) -> bool:
        """Return whether the driver still serves this process."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


def attach(
    spark_conf: Mapping[str, str] | None = None,
    *,
    name: str,
    idle_seconds: float = 900,
    orphaned_seconds: float = _ORPHANED_SECONDS,
) -> Attachment:
    """Attach this process to the warm driver of a configuration, until the process ends.

    `name` says what this process does, for the log and the Spark UI, e.g. `run 0a1b2c3d`. Without a
    client, the driver is kept for `idle_seconds`, or for `orphaned_seconds` if the parent processes
    of all its clients have ended.
    """
    global _attachment
    spark_conf = dict(spark_conf or {})
    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    driver_address = address(local_conf(spark_conf))
    with _lock:
        if _attachment is not None and not _attachment.is_alive():
            logger.warning(
                "The warm driver has ended; its log is %s.", _attachment.driver_address.log
            )
            _attachment.session.sparkContext.stop()
            _attachment = None
        if _attachment is None:
            if SparkContext._active_spark_context is not None:
                raise WarmDriverError("this process has a Spark of its own already.")
            settings = {
                "spark_conf": spark_conf,
                "socket": str(driver_address.socket),
                "idle_seconds": idle_seconds,
                "orphaned_seconds": orphaned_seconds,
            }
            _attachment = _attach(driver_address, name, settings)
        elif _attachment.driver_address != driver_address:
            raise WarmDriverError("this process is attached to one of another configuration.")
        return _attachment


def _attach(driver_address: Address, name: str, settings: Mapping[str, Any]) -> Attachment:

    hello = {"name": name, "owner": os.getppid(), "idle_seconds": settings["idle_seconds"]}
    with driver_address.locked():
        found = greet(driver_address, hello)
        if found is None:
            _start(driver_address, settings)
            found = greet(driver_address, hello)
    if found is None:
        raise WarmDriverError(
            f"it ended as soon as it had started; its log is {driver_address.log}."
        )
    connection, answer = found
    try:
        session = attached_session(answer["port"], answer["secret"], answer["name"])
        directory: Any = session.sparkContext._temp_dir
        connection.sendall(f"{directory}\n".encode())
    except BaseException:
        connection.close()
        forget_gateway()
        raise
    logger.info("Attached to the warm driver %s; its log is %s.", answer["pid"], driver_address.log)
    return Attachment(session, driver_address, answer["pid"], connection)


class Greeting(NamedTuple):
    """A connection to a keeper, and its answer."""

    connection: socket.socket
    answer: dict[str, Any]


def greet(driver_address: Address, hello: Mapping[str, Any]) -> Greeting | None:
    """Connect to the keeper, and greet it; None if no keeper answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS_FOR_AN_ANSWER)
    try:
        connection.connect(str(driver_address.socket))
        check_peer(connection)
        connection.sendall(json.dumps(hello).encode() + b"\n")
        with connection.makefile("r", encoding="utf-8") as stream:
            line = stream.readline()
    except WarmDriverError:
        connection.close()
        raise
    except TimeoutError:
        connection.close()
        raise WarmDriverError(f"it does not answer; its log is {driver_address.log}.") from None
    except OSError:  # no such socket, or the one of a keeper that was killed
        line = ""
    if not line:
        connection.close()
        return None
    answer = json.loads(line)
    if "error" in answer:
        connection.close()
        raise WarmDriverError(f"it serves nobody: {answer['error']} (log: {driver_address.log})")
    connection.settimeout(None)
    return Greeting(connection, answer)


def _start(driver_address: Address, settings: Mapping[str, Any]) -> None:
    """Start a keeper that outlives this process, and wait until its driver runs."""
    with driver_address.emptied_log() as log:
        # The keeper has its own session, so signals to this process's group do not reach it.
        keeper = subprocess.Popen(
            [sys.executable, "-m", "deltaweave.warm_driver.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with keeper.stdin as stdin, keeper.stdout as stdout:
        stdin.write(json.dumps(settings) + "\n")
        stdin.close()
        printed = stdout.readline()
    if printed != "ready\n":
        raise WarmDriverError(
            f"it did not start: {_last_line(driver_address.log)} (log: {driver_address.log})"
        )
    keeper.returncode = 0  # not waited for: it outlives this process


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
