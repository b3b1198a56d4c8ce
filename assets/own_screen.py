"""A console for a command's own words, while all else that its process writes goes to a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


@contextmanager
def own_screen(log: Path) -> Iterator[Console]:
    """A console on the screen, while everything else of this process writes to the log.

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
            yield Console(file=screen, highlight=False)
        finally:
            os.dup2(screen.fileno(), 1)
            os.dup2(errors.fileno(), 2)
