"""Interrupts of the process, such as Ctrl-C, that errors of Spark hide."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_shown() -> Iterator[None]:
    """Raise an interrupt that came in the block instead of the error that took its place.

    While PySpark collects rows, an interrupt closes the stream that the JVM writes them to. PySpark
    then waits for the job, and raises what the job failed with.
    """
    before = _interrupt_behind(sys.exc_info()[1])
    try:
        yield
    except Exception as error:
        interrupt = _interrupt_behind(error)
        if interrupt is None or interrupt is before:
            raise
        raise interrupt from None


def _interrupt_behind(error: BaseException | None) -> BaseException | None:
    """The interrupt while whose handling an error was raised; None without one."""
    while isinstance(error, Exception):
        error = error.__cause__ or error.__context__
    return error
