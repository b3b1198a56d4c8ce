"""The command `warm stop`: ends the Spark drivers that stay between runs."""

from __future__ import annotations

from typing import Annotated

import typer

from deltaweave._terminal import FAILED, fail

warm = typer.Typer(no_args_is_help=True, help="The Spark drivers that stay between runs.")


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
    from deltaweave.warm_driver.address import WarmDriverError
    from deltaweave.warm_driver.stop import stop_drivers

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
