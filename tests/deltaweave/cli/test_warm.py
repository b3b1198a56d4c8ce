"""`deltaweave warm stop`, with keepers whose driver is a stand-in: no Spark starts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from deltaweave.cli import app
from deltaweave.warm_driver.keeper import Keeper


class Kept(Keeper):
    def is_running(self) -> bool:
        return True

    def serve_client(self, name: str, stream: Any) -> None:
        stream.readline()  # until it ends


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "deltaweave").mkdir(mode=0o700)
    return tmp_path / "deltaweave" / "driver.sock"


@pytest.fixture
def driver(place: Path) -> Iterator[Thread]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place))
    listener.listen()
    keeper = Kept(None, listener, idle_seconds=60, orphaned_seconds=60)  # type: ignore[arg-type]

    def serve() -> None:
        keeper.serve()
        place.unlink()

    serving = Thread(target=serve)
    serving.start()
    yield serving
    keeper.is_to_stop = True
    serving.join(timeout=10)
    listener.close()


def stop(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["warm", "stop", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_driver_without_clients_is_stopped(driver: Thread, place: Path) -> None:
    assert stop() == (0, f"Stopped the driver of process {os.getpid()}.\n", "")
    driver.join(timeout=10)
    assert not driver.is_alive()
    assert stop() == (0, "No warm driver runs.\n", "")


def test_a_driver_that_runs_use_is_stopped_by_force_alone(driver: Thread, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(place))
        client.sendall(json.dumps({"name": "run", "owner": 1, "idle_seconds": 60}).encode() + b"\n")
        code, out, told = stop()
        assert (code, out) == (1, "")
        assert told == f"1 process uses the driver of process {os.getpid()}: --force ends it.\n"
        assert driver.is_alive()
        assert stop("--force")[0] == 0


def test_the_socket_of_a_driver_that_was_killed_is_no_driver(place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(place))
    assert stop() == (0, "No warm driver runs.\n", "")
