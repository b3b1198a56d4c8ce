"""A MariaDB server of a test's own, which logs rows in its binary log."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assets.java_program import free_ports

USER = "debezium"
PASSWORD = "debezium"
DATABASE = "bank"

_SETTINGS = [
    "--bind-address=127.0.0.1",
    "--server-id=1",
    "--log-bin=bin",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--character-set-server=utf8mb4",
    "--default-time-zone=+00:00",
    "--sql-mode=",  # zero dates are values too
    "--innodb-flush-log-at-trx-commit=0",  # nothing of it is needed after the test
    "--innodb-buffer-pool-size=16M",
]


@dataclass(frozen=True)
class MariaDB:
    """A server that runs.

    Attributes:
        port: Its port on the loopback interface.
        socket: Its socket, by which the server's own user connects.
    """

    port: int
    socket: Path

    def execute(self, statements: str) -> str:
        """Run statements with MariaDB's client and return what it prints, without headers."""
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={self.socket}", "--batch"]
        client += ["--raw", "--skip-column-names", "--default-character-set=utf8mb4"]
        ran = subprocess.run(
            [*client, f"--init-command=CREATE DATABASE IF NOT EXISTS {DATABASE}", "mysql"],
            input=f"USE {DATABASE};\n{statements}",
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@contextmanager
def running_mariadb(*, binlog_before: str) -> Iterator[MariaDB]:
    """Start a server on the loopback interface, and end it afterwards.

    Args:
        binlog_before: A file name such as `bin.000007`; the log's first file has the next number.
    """
    assert shutil.which("mariadbd"), "There is no MariaDB (Debian: apt-get install mariadb-server)."
    [port] = free_ports(1)
    # MariaDB refuses to be run by root.
    user = ["--user=mysql"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="mariadb-") as folder:
        data, socket = Path(folder) / "data", Path(folder) / "socket"
        if user:
            shutil.chown(folder, "mysql")
        install = ["mariadb-install-db", "--no-defaults", *user, f"--datadir={data}"]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True)
        # The server numbers its log's next file by the files that it finds.
        (data / binlog_before).touch()
        command = ["mariadbd", "--no-defaults", *user, f"--datadir={data}", f"--socket={socket}"]
        command += [f"--port={port}", f"--pid-file={folder}/pid", *_SETTINGS]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = MariaDB(port, socket)
        try:
            _wait_until_it_answers(server, process, Path(folder) / "log")
            server.execute(
                f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';GRANT ALL ON *.* TO {USER}@'%';"
            )
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def _wait_until_it_answers(server: MariaDB, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        try:
            server.execute("SELECT 1;")
        except AssertionError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        else:
            return
