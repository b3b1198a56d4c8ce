"""Who gets at a warm driver: its user alone. None of these tests starts a driver."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from deltaweave.warm_driver import client
from deltaweave.warm_driver.address import Address, WarmDriverError, address, check_peer
from deltaweave.warm_driver.keeper import Keeper


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not pytest's directories: the path of a socket has room for a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def be_another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process believe that what is there already belongs to somebody else."""
    other = os.getuid() + 1
    return lambda: monkeypatch.setattr(os, "getuid", lambda: other)


def _of_another_user(home: Path, be_another_user: Callable[[], None]) -> None:
    (home / "deltaweave").mkdir(mode=0o700)
    be_another_user()


def _link(home: Path, _: object) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "deltaweave").symlink_to(home / "elsewhere")


def _dangling_link(home: Path, _: object) -> None:
    (home / "deltaweave").symlink_to(home / "missing")


def _file(home: Path, _: object) -> None:
    (home / "deltaweave").touch(mode=0o600)


def _open_to_a_group(home: Path, _: object) -> None:
    (home / "deltaweave").mkdir()
    (home / "deltaweave").chmod(0o710)


@pytest.mark.parametrize("made", [_of_another_user, _link, _dangling_link, _file, _open_to_a_group])
def test_a_directory_that_others_made_or_may_open_is_refused(
    home: Path, be_another_user: Callable[[], None], made: Callable[[Path, Any], None]
) -> None:
    made(home, be_another_user)

    with pytest.raises(WarmDriverError, match="must be a directory that you own"):
        address({})
    assert not any((home / "elsewhere").glob("*"))


@pytest.mark.parametrize("kind", ["lock", "log"])
def test_links_in_the_place_of_its_files_are_not_followed(home: Path, kind: str) -> None:
    place = address({})
    victim = home / "victim"
    victim.write_text("kept")
    getattr(place, kind).symlink_to(victim)

    with ExitStack() as stack, pytest.raises(OSError, match="symbolic link"):
        stack.enter_context(place.emptied_log() if kind == "log" else place.locked())
    assert victim.read_text() == "kept"


def test_files_of_a_warm_driver_are_for_its_owner_under_any_umask(home: Path) -> None:
    place = address({})
    before = os.umask(0)
    try:
        place.emptied_log().close()
        with place.locked():
            pass
    finally:
        os.umask(before)

    assert stat.S_IMODE(place.log.parent.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in (place.log, place.lock)] == [0o600] * 2


@pytest.fixture
def listening(home: Path) -> Iterator[tuple[Address, socket.socket]]:
    place = address({})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(place.socket))
        listener.listen()
        listener.settimeout(10)
        yield place, listener


def test_a_process_sends_nothing_to_a_keeper_of_another_user(
    listening: tuple[Address, socket.socket], be_another_user: Callable[[], None]
) -> None:
    place, listener = listening
    be_another_user()

    with pytest.raises(WarmDriverError, match="a process of the user"):
        client.greet(place, {"name": "run"})

    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1) == b""


def test_a_keeper_gives_no_gateway_to_a_process_of_another_user(
    be_another_user: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = socket.socketpair()
    check_peer(ours)
    be_another_user()
    with theirs:
        theirs.sendall(b'{"name": "stranger", "owner": 1, "idle_seconds": 9999}\n')
        keeper = Keeper(None, ours, 60, 60, clients=1)  # type: ignore[arg-type]
        keeper.attend(ours)
        answer = b""
        with suppress(ConnectionResetError):  # it hung up with our words unread
            answer = theirs.recv(100)

    assert answer == b""
    assert "a process of the user" in caplog.text
    assert keeper.idle_seconds == 60
    assert keeper.owners == set()
