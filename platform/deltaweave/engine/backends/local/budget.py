"""Bound what the local backend reads, copies and holds, and in how many threads."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from deltaweave.engine import limits
from deltaweave.engine.tasks import NotRewritableError

_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*\d+)?\])?")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def is_local(master: str) -> bool:
    """Return whether Spark's tasks are threads of the driver's JVM, by its master URL."""
    return _LOCAL.fullmatch(master) is not None


def most_local(limit: int, master: str) -> int:
    """Scale a limit of rows or bytes of target files by Spark's master URL.

    Executors in processes of their own, mostly on other machines, bring cores and disks, so that
    the driver leaves them more than those of a local master. The same holds for a
    local master with more cores than the driver has threads.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return limit
    cores = local["cores"] or "1"
    number = (os.cpu_count() or 1) if cores == "*" else int(cores)
    threads = limits.MAX_LOCAL_THREADS
    return limit * max(1, limits.LOCAL_MASTER_FACTOR * threads // max(number, threads))


class ByteBudget:
    """The budget of bytes that several threads share.

    Args:
        what: What the bytes are of, for messages.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._lock, self._number = threading.Lock(), 0

    def add(self, number: int) -> None:
        """Count bytes; raises NotRewritableError if there are too many."""
        with self._lock:
            self._number += number
            if self._number > self._most:
                raise NotRewritableError(f"{self._what} have more than {self._most:,} bytes")


def in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Map a function over large items in order, a few at a time."""
    at_once = limits.MAX_LOCAL_THREADS
    with ThreadPoolExecutor(max_workers=at_once) as threads:
        for start in range(0, len(items), at_once):
            yield from threads.map(function, items[start : start + at_once])
