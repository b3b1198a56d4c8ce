"""Lets one commit at a time through to a table on a local disk, among processes and threads.

Delta's log store looks whether a version's file exists, and then renames its own file to that name.
On a local disk, a rename replaces a file that came in between, so two processes could both believe
that they wrote the version, and one commit would be lost. Other storage refuses the second file.

The lock is `flock` on the table's directory: no file is left, and the system releases the lock of a
process that is killed, once the processes that it forked meanwhile have ended too. Only deltaweave
takes it. It is not reentrant: code that holds it must not commit to the same table in another call.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

_ATTEMPTS = 10


def local_directory(location: str) -> Path | None:
    """The directory of a location on a local disk, or None for other storage.

    >>> local_directory("file:/lake/my orders"), local_directory("s3a://bucket/orders")
    (PosixPath('/lake/my orders'), None)

    Args:
        location: As Hadoop writes a qualified path: with a scheme, not percent-encoded.
    """
    scheme, _, path = location.partition(":")
    return Path("/" + path.lstrip("/")) if scheme.lower() == "file" else None


@contextmanager
def alone_on_local_disk(
    location: str, *, make_directory: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold the lock of a table while the block runs, where the table lies on a local disk.

    Where the directory cannot be opened or locked, the block runs without the lock.

    Args:
        location: The directory of the table, as `local_directory` takes it.
        make_directory: Makes the directory, if there need not be one yet.
    """
    directory = local_directory(location)
    descriptor = None if directory is None else _locked(directory, make_directory)
    try:
        yield
    finally:
        if descriptor is not None:
            # A child process that was forked meanwhile has the descriptor too: closing is not
            # enough.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class TableLock:
    """The lock of a table, which is taken and released in turn; the block's end releases it.

    On other storage than a local disk, there is none to take.

    Attributes:
        location: The directory of the table, as `local_directory` takes it.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._held: ExitStack | None = None

    def __enter__(self) -> TableLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Take it, unless it is taken."""
        if self._held is None:
            with ExitStack() as taken:
                taken.enter_context(alone_on_local_disk(self.location))
                self._held = taken.pop_all()

    def release(self) -> None:
        """Release it, if it is taken."""
        if self._held is not None:
            held, self._held = self._held, None
            held.close()

    def handed_over(self) -> TableLock:
        """Another lock of the table, taken if this one is, which then is not any more."""
        other = TableLock(self.location)
        other._held, self._held = self._held, None
        return other


def _locked(directory: Path, make_directory: Callable[[], object] | None) -> int | None:
    """The descriptor of the locked directory, or None where it cannot be locked."""
    try:
        for _ in range(_ATTEMPTS):
            descriptor = _attempt(directory, make_directory)
            if descriptor is not None:
                return descriptor
        why = f"it was replaced {_ATTEMPTS} times"
    except Exception as error:  # no permission, or a file system without locks
        why = str(error).partition("\n")[0]
    _say_unlocked(directory, why)
    return None


def _attempt(directory: Path, make_directory: Callable[[], object] | None) -> int | None:
    """The descriptor of the locked directory; None if the directory was removed or replaced."""
    if make_directory is not None:
        make_directory()
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        return descriptor if _is_locked(descriptor, directory) else None
    except FileNotFoundError:
        if make_directory is None:
            raise
        return None


def _is_locked(descriptor: int, directory: Path) -> bool:
    """Lock a directory; False, and closed, if another one has taken its place meanwhile."""
    is_locked = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s: waits for a commit of another process or thread", directory)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        is_locked = os.path.samestat(os.fstat(descriptor), os.stat(directory))
        return is_locked
    finally:
        if not is_locked:
            os.close(descriptor)


@cache  # which says it once for each directory
def _say_unlocked(directory: Path, why: str) -> None:
    logger.info("%s: commits without a lock among processes: %s", directory, why)
