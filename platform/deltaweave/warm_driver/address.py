"""The address of a warm driver: one socket for each configuration, which only its owner can open.

The name of the socket is a fingerprint of everything that a running driver cannot change. With
another configuration, other jars or other versions, another driver is used, and the old one ends
when it is idle.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

# Environment variables that Spark, Hadoop and the Python workers read when the driver starts.
_VARIABLES = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "JAVA_", "AWS_", "PYTHON", "DELTAWEAVE_")
# Each process sets these itself: the address of its gateway, and settings for its workers.
_OF_A_PROCESS = ("PYSPARK_GATEWAY_", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")


class WarmDriverError(RuntimeError):
    """There is no warm driver to attach to; the message says why."""


@dataclass(frozen=True)
class Address:
    """The files of one driver, all in one private directory.

    Attributes:
        socket: The socket on which the keeper accepts clients; it exists while a driver runs.
        lock: The lock of the client that looks for a driver, and starts one if there is none.
        log: The log of the keeper, the JVM and its Python workers.
    """

    socket: Path
    lock: Path
    log: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Run the block in one process at a time; the lock ends with the process."""
        with os.fdopen(_opened(self.lock), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def emptied_log(self) -> TextIO:
        """Empty the log, and open it for the keeper and all that it starts."""
        return os.fdopen(_opened(self.log, os.O_TRUNC), "w")


def sockets() -> list[Path]:
    """List the sockets of all this user's drivers on this machine, also of some that were killed.

    Raises:
        WarmDriverError: Other users could open their directory.
    """
    return sorted(_private_directory().glob("*.sock"))


def address(spark_conf: Mapping[str, str]) -> Address:
    """Return the address of the driver with this configuration, for this user on this machine.

    Raises:
        WarmDriverError: Other users could open its directory.
    """
    directory = _private_directory()
    name = fingerprint(spark_conf)
    return Address(*(directory / f"{name}.{kind}" for kind in ("sock", "lock", "log")))


def check_peer(connection: socket.socket) -> None:
    """Refuse a connection whose other end is a process of another user, where the system shows it.

    The private directory keeps others out already. This holds where the directory does not: where
    it was replaced after it was looked at, or where its file system ignores modes.

    Raises:
        WarmDriverError: The process at the other end is another user's.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = struct.Struct("3i")  # process, user, group
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    _, user, _ = credentials.unpack(found)
    if user != os.getuid():
        raise WarmDriverError(f"the other end of its socket is a process of the user {user}.")


def fingerprint(spark_conf: Mapping[str, str]) -> str:
    """Hash all that a driver starts with: configuration, jars, versions, environment."""
    parts = {
        "configuration": dict(spark_conf),
        "jars": [_stamp(path) for path in _jars(spark_conf)],
        "versions": [sys.version, *(version(name) for name in ("pyspark", "py4j", "deltaweave"))],
        "python": [sys.executable, sys.prefix],
        "directory": str(Path.cwd()),
        "instance": os.environ.get("DAGSTER_HOME"),
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_VARIABLES) and not name.startswith(_OF_A_PROCESS)
        },
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _jars(spark_conf: Mapping[str, str]) -> list[Path]:
    """Return the jars on this machine, and Spark's directory of them."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = os.environ.get("SPARK_HOME") or Path(spec.origin).parent
    named = [path for path in spark_conf.get("spark.jars", "").split(",") if path]
    return [Path(home) / "jars", *(Path(path.removeprefix("file:")) for path in named)]


def _stamp(path: Path) -> list[object]:
    try:
        found = path.stat()
    except OSError:  # a file system that only Spark can read
        return [str(path)]
    return [str(path), found.st_mtime_ns, found.st_size]


def _opened(path: Path, flags: int = 0) -> int:
    """Open a file that only its owner may read; a link in its place is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)


def _private_directory() -> Path:
    """Return a directory of this user on this machine. Dagster's home may be shared.

    The path of a Unix socket is limited to about 100 characters.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        directory = Path(runtime) / "deltaweave"
    else:
        directory = Path(tempfile.gettempdir()) / f"deltaweave-{os.getuid()}"
    with suppress(FileExistsError):  # a file, or a link that leads nowhere
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    others = stat.S_IRWXG | stat.S_IRWXO
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & others:
        raise WarmDriverError(
            f"{directory} must be a directory that you own and nobody else can open (mode 0700)."
        )
    return directory
