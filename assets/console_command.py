"""A command with a console for its own words, while all else that its process writes is logged."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.live import Live


def run_with_console(log: Path, command: Callable[[Console], None], *known: type[Exception]) -> int:
    """Run a command; its exit code.

    Args:
        log: File for what else the process writes; an old file is replaced.
        command: Takes the console.
        known: Errors whose message says all; of others the log has the place, too.
    """
    with _console_beside_log(log) as console:
        try:
            command(console)
        except known as error:
            console.print(str(error), style="bold red", markup=False, soft_wrap=True)
        except Exception as error:
            traceback.print_exc()
            console.print(f"{type(error).__name__}: {error}", style="bold red", markup=False)
        else:
            return 0
        console.print(f"The whole log: {log}", soft_wrap=True)
        return 1


@contextmanager
def _console_beside_log(log: Path) -> Iterator[Console]:
    """Give the screen to a console, and send all other output of this process to the log.

    Spark's JVM and Dagster write to the process's own stdout and stderr, so it is those that move.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        open(os.dup(1), "w", encoding="utf-8") as screen,
        open(os.dup(2), "w", encoding="utf-8") as errors,
        log.open("w", encoding="utf-8") as file,
    ):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield _Screen(file=screen, highlight=False)
        finally:
            os.dup2(screen.fileno(), 1)
            os.dup2(errors.fileno(), 2)


class _Screen(Console):
    """A console whose bars and spinners leave stdout and stderr alone, so that both go to the log.

    By default, rich prints what Python writes there above the bar: each line that Dagster logs.
    """

    def set_live(self, live: Live) -> bool:
        live._redirect_stdout = live._redirect_stderr = False
        return super().set_live(live)
