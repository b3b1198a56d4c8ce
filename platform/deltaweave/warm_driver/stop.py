"""Asks the warm drivers of this user to end."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from deltaweave.warm_driver.address import check_peer, sockets

_SECONDS_FOR_AN_ANSWER = 20


@dataclass(frozen=True)
class Asked:
    """What a driver answered.

    Attributes:
        pid: Process id of its keeper.
        clients: How many processes used it.
        is_stopped: Whether it accepts no client any more; it then ends within seconds.
    """

    pid: int
    clients: int
    is_stopped: bool


def stop_drivers(*, also_in_use: bool) -> list[Asked]:
    """Ask all warm drivers of this user on this machine to end, and wait until they do.

    Args:
        also_in_use: Whether to stop those that processes use: their runs then fail.

    Raises:
        WarmDriverError: Other users could open the directory of the drivers, or are at the other
            end of a socket.
    """
    asked = []
    for place in sockets():
        answer = _asked(place, "also in use" if also_in_use else "if idle")
        if answer is not None:
            asked.append(answer)
    return asked


def _asked(place: Path, what: str) -> Asked | None:
    """Ask the keeper at a socket; None if there is none, or one of another release."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS_FOR_AN_ANSWER)
        try:
            connection.connect(str(place))
            check_peer(connection)
            connection.sendall(json.dumps({"stop": what}).encode() + b"\n")
            with connection.makefile("r", encoding="utf-8") as stream:
                line = stream.readline()
        except OSError:  # the socket of a keeper that was killed, or one that does not answer
            return None
    if not line:
        return None
    answer = json.loads(line)
    if answer["stops"]:
        _wait_until_gone(place)
    return Asked(answer["pid"], answer["clients"], answer["stops"])


def _wait_until_gone(place: Path) -> None:
    end = time.monotonic() + _SECONDS_FOR_AN_ANSWER
    while place.exists() and time.monotonic() < end:
        time.sleep(0.05)
