"""Who holds the lock of a table on a local disk, and who waits for it."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltaweave.delta.commit import local_disk


def is_free(directory: Path) -> bool:
    """Whether no process or thread holds the lock of this directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


class Waits(logging.Handler):
    """Tells when a commit begins to wait for the lock, and for which directory."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.began = threading.Event()
        self.waited_for: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "waits for a commit" in record.msg:
            self.waited_for.append(str(record.args[0]) if record.args else "")
            self.began.set()


@contextmanager
def waits_for_locks() -> Iterator[Waits]:
    """Tells of waits while the block runs."""
    handler, logger = Waits(), logging.getLogger(local_disk.__name__)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
