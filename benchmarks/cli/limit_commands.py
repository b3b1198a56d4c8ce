"""The command `python -m benchmarks limits`."""

from __future__ import annotations

import os
import platform
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.cli.merge_commands import DIRECTORY, Directory, Json
from deltaweave.terminal import (
    FAILED,
    MISUSED,
    check_java,
    check_outputs,
    fail,
    writable,
)

of_limits = typer.Typer()


@of_limits.command("limits")
def bench_limits(
    name: Annotated[
        list[str] | None, typer.Argument(help="Names of limits (see --list). [default: all]")
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
    from benchmarks.limits import (
        LIMITS,
        UnknownLimitError,
        as_table,
        chosen_limits,
        measured_limit,
        outcome,
        write_json,
    )

    if list_:
        for each in LIMITS:
            print(f"{each.name}: {each.size:,} {each.title}")
        return
    try:
        chosen = chosen_limits(name or [])
    except UnknownLimitError as error:
        fail(str(error), MISUSED)
    check_outputs(json)
    check_java()
    directory = writable(directory)
    console = Console(highlight=False)
    settings = {
        "scale": scale,
        "driver_memory": driver_memory,
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
    }
    results = []
    for limit in chosen:
        console.print(f"{limit.name}: {limit.scaled(scale):,} {limit.title}", soft_wrap=True)
        log = directory / f"limit-{limit.name}.log"
        result = measured_limit(limit, directory, scale=scale, driver_memory=driver_memory, log=log)
        results.append(result)
        console.print(f"  {outcome(result)}", soft_wrap=True)
        if result.error is not None:
            console.print(result.error, soft_wrap=True, markup=False)
        if json is not None:  # after each limit, so that an interrupted run keeps its results
            write_json(results, settings, json)
    console.print(as_table(results))
    bad = [result.limit.name for result in results if not result.is_good]
    if bad:
        fail(f"Neither completed nor refused as expected: {', '.join(bad)}.", FAILED)
