"""A PostgreSQL server of a test's own, whose log can be decoded."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from assets.java_program import free_ports

USER = "postgres"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "fsync": "off",  # nothing of it is needed after the test
}


@contextmanager
def running_postgres() -> Iterator[int]:
    """Start a server on the loopback interface, and end it afterwards; its port.

    Its superuser is `postgres`, who needs no password; so is its database.
    """
    binaries, [port] = _binaries(), free_ports(1)
    # Not below pytest's folder: the server's user may not enter that.
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        data = Path(folder) / "data"
        if os.getuid() == 0:
            shutil.chown(folder, USER)
        arguments = ["-D", str(data), "--auth=trust", f"--username={USER}", "--no-sync"]
        subprocess.run(
            [*_as_server(), str(binaries / "initdb"), *arguments], check=True, capture_output=True
        )
        command = [*_as_server(), str(binaries / "postgres"), "-D", str(data), "-p", str(port)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_it_answers(port, server, Path(folder) / "log")
            yield port
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for those who are connected
            server.wait(timeout=30)


def connect(port: int) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection, each of whose statements is a transaction."""
    return psycopg.connect(
        host="127.0.0.1", port=port, user=USER, dbname=USER, autocommit=True, connect_timeout=5
    )


def _binaries() -> Path:
    """Debian's folder of the newest release, or that of a server on the PATH."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3])
    )
    on_path = shutil.which("postgres")
    assert found or on_path, "There is no PostgreSQL server (Debian: apt-get install postgresql)."
    return (found[-1] if found else Path(str(on_path))).parent


def _as_server() -> list[str]:
    """PostgreSQL refuses to be run by root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]


def _wait_until_it_answers(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert server.poll() is None, log.read_text()
        try:
            connect(port).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return
