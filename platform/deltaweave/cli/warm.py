"""The command `warm stop`: ends the Spark drivers that stay between runs."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from deltaweave._terminal import FAILED, fail
from deltaweave.warm_driver.address import WarmDriverError, check_peer, sockets

warm = typer.Typer(no_args_is_help=True, help="The Spark drivers that stay between runs.")

_SECONDS_FOR_AN_ANSWER = 20


@warm.callback()
def _warm() -> None:
    """Control the Spark drivers that stay between runs."""


@warm.command("stop")
def stop(
    force: Annotated[
        bool,
        typer.Option("--force", help="Also those that runs use: these runs then fail.", metavar=""),
    ] = False,
) -> None:
    """End the warm drivers of this user on this machine; ends with 1 if one is in use."""
    try:
        drivers = stop_drivers(also_in_use=force)
    except WarmDriverError as error:
        fail(str(error), FAILED)
    if not drivers:
        print("No warm driver runs.")
    for driver in drivers:
        if driver.is_stopped:
            print(f"Stopped the driver of process {driver.pid}.")
    in_use = [driver for driver in drivers if not driver.is_stopped]
    for driver in in_use:
        used = "1 process uses" if driver.clients == 1 else f"{driver.clients} processes use"
        typer.echo(f"{used} the driver of process {driver.pid}: --force ends it.", err=True)
    if in_use:
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class Asked:
    """The answer of a driver.

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

    `also_in_use` stops those that processes use, too: their runs then fail.
    """
    asked = []
    for socket_path in sockets():
        answer = _asked(socket_path, "also in use" if also_in_use else "if idle")
        if answer is not None:
            asked.append(answer)
    return asked


def _asked(socket_path: Path, what: str) -> Asked | None:
    """Ask the keeper at a socket; None if there is none, or one of another release."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS_FOR_AN_ANSWER)
        try:
            connection.connect(str(socket_path))
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
        _wait_until_removed(socket_path)
    return Asked(answer["pid"], answer["clients"], answer["stops"])


def _wait_until_removed(socket_path: Path) -> None:
    end = time.monotonic() + _SECONDS_FOR_AN_ANSWER
    while socket_path.exists() and time.monotonic() < end:
        time.sleep(0.05)
