"""Gives this process a session on the warm driver, which is started if there is none."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaweave._session import local_conf
from deltaweave.warm_driver.address import Address, WarmDriverError, address, check_peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SECONDS_FOR_AN_ANSWER = 20
_ORPHANED_SECONDS = 120

_lock = threading.Lock()
_attachment: Attachment | None = None


@dataclass(frozen=True)
class Attachment:
    """The attachment of this process to a warm driver.

    Attributes:
        session: The session of this process.
        place: The address of the driver, with its log.
        driver: Process id of the driver's keeper.
        connection: The connection by which keeper and process see that the other has ended.
    """

    session: SparkSession
    place: Address
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

    Args:
        spark_conf: Spark configuration, as `local_session` takes it.
        name: What this process does, for the log and the Spark UI, e.g. `run 0a1b2c3d`.
        idle_seconds: How long the driver is kept without a client.
        orphaned_seconds: The same time, if the parent processes of all its clients have ended.

    Raises:
        WarmDriverError: This process has another Spark already, or the driver did not start.
    """
    global _attachment
    from pyspark import SparkContext

    spark_conf = dict(spark_conf or {})
    # Python workers must run the interpreter that holds this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    place = address(local_conf(spark_conf))
    with _lock:
        if _attachment is not None and not _attachment.is_alive():
            logger.warning("The warm driver has ended; its log is %s.", _attachment.place.log)
            _attachment.session.sparkContext.stop()
            _attachment = None
        if _attachment is None:
            if SparkContext._active_spark_context is not None:
                raise WarmDriverError("this process has a Spark of its own already.")
            settings = {
                "spark_conf": spark_conf,
                "socket": str(place.socket),
                "idle_seconds": idle_seconds,
                "orphaned_seconds": orphaned_seconds,
            }
            _attachment = _attach(place, name, settings)
        elif _attachment.place != place:
            raise WarmDriverError("this process is attached to one of another configuration.")
        return _attachment


def _attach(place: Address, name: str, settings: Mapping[str, Any]) -> Attachment:
    from deltaweave.warm_driver.attached import attached_session, forget_gateway

    hello = {"name": name, "owner": os.getppid(), "idle_seconds": settings["idle_seconds"]}
    with place.locked():
        found = _greet(place, hello)
        if found is None:
            _start(place, settings)
            found = _greet(place, hello)
    if found is None:
        raise WarmDriverError(f"it ended as soon as it had started; its log is {place.log}.")
    connection, answer = found
    try:
        session = attached_session(answer["port"], answer["secret"], answer["name"])
        directory: Any = session.sparkContext._temp_dir
        connection.sendall(f"{directory}\n".encode())
    except BaseException:
        connection.close()
        forget_gateway()
        raise
    logger.info("Attached to the warm driver %s; its log is %s.", answer["pid"], place.log)
    return Attachment(session, place, answer["pid"], connection)


def _greet(place: Address, hello: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]] | None:
    """Connect to the keeper; return the connection and its answer, None if no keeper answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS_FOR_AN_ANSWER)
    try:
        connection.connect(str(place.socket))
        check_peer(connection)
        connection.sendall(json.dumps(hello).encode() + b"\n")
        with connection.makefile("r", encoding="utf-8") as stream:
            line = stream.readline()
    except WarmDriverError:
        connection.close()
        raise
    except TimeoutError:
        connection.close()
        raise WarmDriverError(f"it does not answer; its log is {place.log}.") from None
    except OSError:  # no such socket, or the one of a keeper that was killed
        line = ""
    if not line:
        connection.close()
        return None
    answer = json.loads(line)
    if "error" in answer:
        connection.close()
        raise WarmDriverError(f"it serves nobody: {answer['error']} (log: {place.log})")
    connection.settimeout(None)
    return connection, answer


def _start(place: Address, settings: Mapping[str, Any]) -> None:
    """Start a keeper that outlives this process, and wait until its driver runs."""
    with place.emptied_log() as log:
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
        raise WarmDriverError(f"it did not start: {_last_line(place.log)} (log: {place.log})")
    keeper.returncode = 0  # not waited for: it outlives this process


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
