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
    before = _interrupts_behind(sys.exc_info()[1])
    try:
        yield
    except Exception as error:
        came = _interrupts_behind(error).items() - before.items()
        if not came:
            raise
        raise next(iter(came))[1] from None


def _interrupts_behind(error: BaseException | None) -> dict[int, BaseException]:
    """Return the interrupts during whose handling an error was raised, by their identities."""
    seen: dict[int, BaseException] = {}
    found = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:  # causes may go in circles
            seen[id(each)] = each
            found += [each.__cause__, each.__context__]
    return {number: each for number, each in seen.items() if not isinstance(each, Exception)}
