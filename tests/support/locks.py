"""Who holds the lock of a table on a disk, and who waits for it."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltaweave.delta.commit import table_lock

# In another process, as another release or a tool would do it.
_HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def lock_file(directory: Path) -> Path:
    """The file that a commit to a table locks."""
    return directory / "_delta_log" / ".deltaweave.lock"


def lock_file_of_creation(directory: Path) -> Path:
    """The file that the creation of a table locks."""
    return directory.parent / f".{directory.name}.deltaweave.lock"


def is_free(directory: Path) -> bool:
    """Whether no process or thread holds the lock of this directory."""
    return all(map(_is_free, (lock_file(directory), lock_file_of_creation(directory))))


def _is_free(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def held_by_another_process(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold a lock file's lock in another process, which is killed when the block ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


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
    handler, logger = Waits(), logging.getLogger(table_lock.__name__)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
