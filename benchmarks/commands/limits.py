"""The command `limits`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.commands.running import DIRECTORY, Directory, Json, announce, checked, console, show
from benchmarks.limits.catalog import LIMITS, UnknownLimitError, chosen_limits
from benchmarks.limits.measure import LimitsReport, measured_limit
from benchmarks.report import machine
from deltaweave.cli import MISUSED, check_java, fail


def limits(
    name: Annotated[
        list[str] | None,
        typer.Argument(help="Names of limits (see --list). By default, all are run."),
    ] = None,
    driver_memory: Annotated[
        str, typer.Option(help="The driver's heap (spark.driver.memory).")
    ] = "2g",
    scale: Annotated[float, typer.Option(help="Fraction of each limit's size.", min=0)] = 1,
    json: Json = None,
    directory: Directory = DIRECTORY,
    list_: Annotated[bool, typer.Option("--list", help="List the limits and exit.")] = False,
) -> None:
    """Run the largest merges that the engine must complete, and measure time and memory.

    Each merge is the first in its own Spark application, with two cores. After each merge, its
    tables and Spark's files are removed; the largest take some 20 GiB of disk.
    """
    if list_:
        for each in LIMITS:
            print(f"{each.name}: {each.size:,} {each.title}")
        return
    try:
        chosen = chosen_limits(name or [])
    except UnknownLimitError as error:
        fail(str(error), MISUSED)
    directory = checked(directory, json)
    check_java()
    report = LimitsReport({"scale": scale, "driver_memory": driver_memory, **machine()}, {})
    for limit in chosen:
        announce(f"{limit.name}: {limit.scaled(scale):,} {limit.title}")
        log = directory / f"limit-{limit.name}.log"
        result = measured_limit(limit, directory, scale=scale, driver_memory=driver_memory, log=log)
        report = report.with_result(result)
        announce(f"  {result.outcome}")
        if result.error is not None:
            console.print(result.error, soft_wrap=True, markup=False)
        if json is not None:  # after each limit, so that an interrupted run keeps its results
            report.write_json(json)
    show(report, json)
