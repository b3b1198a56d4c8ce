"""Lets one commit at a time through to a table on a disk, among processes, threads and hosts.

Delta's log store looks whether a version's file exists, and then renames its own file to that name.
On a disk, a rename replaces a file that came in between, so two processes could both believe that
they wrote the version, and one commit would be lost. Other storage refuses the second file.

The lock is `flock` on a hidden file in the table's log (`lock_file`), which stays there. No reader
of Delta's log lists it, since its name sorts before those of versions. The creation of a table
locks a file beside its directory and deletes it afterwards: Delta creates tables only in empty
directories. If a process is killed, the system releases its lock as soon as the processes that it
forked meanwhile have ended too. Only deltaweave takes the lock. It is not reentrant: code that
holds it must not commit to the same table in another call.

Whether the lock also excludes other hosts is decided by Linux's list of mounts. `statfs` returns
one number for all kinds of FUSE, and none of the options that decide it for NFS and SMB.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from deltaweave._verdict import YES, Verdict, no
from deltaweave.delta.commit.lock_file import LockedDirectory, LockFile, UnusableLockFileError
from deltaweave.delta.jvm import number_setting
from deltaweave.errors import AccessDeniedError, LockFileError, TableLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOUNTS = Path("/proc/self/mountinfo")
# Disks of one host, or of virtual machines that do not share them.
_OF_ONE_HOST = re.compile(
    r"apfs|bcachefs|btrfs|exfat|ext[234]|f2fs|fuseblk|jfs|ntfs3?|overlay|ramfs|reiserfs|rootfs|tmpfs"
    r"|vfat|xfs|zfs|fuse\.fuse-overlayfs"
)
# File systems of several hosts that lock for all of them, and the options with which they do not.
_LOCAL_WITH: dict[str, frozenset[str]] = {
    "ceph": frozenset(),
    "cifs": frozenset({"nobrl", "nolock"}),
    "fuse.ceph-fuse": frozenset(),
    "fuse.glusterfs": frozenset(),
    "gfs2": frozenset({"localflocks", "lockproto=lock_nolock"}),
    "gpfs": frozenset(),
    "lustre": frozenset({"localflock"}),
    "nfs": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "nfs4": frozenset({"nolock", "local_lock=all", "local_lock=flock"}),
    "ocfs2": frozenset({"localflocks"}),
    "smb3": frozenset({"nobrl", "nolock"}),
}


def _excludes_other_hosts(directory: Path) -> Verdict:
    """Return whether a lock in a directory certainly excludes other hosts.

    A file system of one host excludes all that can write to it.
    """
    kind, options = _mount(directory)
    if not kind or _OF_ONE_HOST.fullmatch(kind):
        return YES
    if kind not in _LOCAL_WITH:
        return no(f"it is on {kind}, which does not show whether a lock holds on all hosts")
    local = sorted(_LOCAL_WITH[kind] & options)
    return no(f"it is on {kind} mounted with {', '.join(local)}") if local else YES


def _mount(directory: Path) -> tuple[str, frozenset[str]]:
    """Return the file system that holds a directory, and its options; empty if no list has it."""
    found: tuple[str, frozenset[str]] = ("", frozenset())
    place, longest = os.path.realpath(directory), 0
    with suppress(OSError):
        for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
            of_mount, _, of_system = line.partition(" - ")
            point, own_options = (_decoded(each) for each in of_mount.split(" ")[4:6])
            kind, _, options = of_system.split(" ")[:3]
            # What was mounted last covers the others at its place.
            if len(point) >= longest and os.path.commonpath([place, point]) == point:
                longest = len(point)
                found = kind, frozenset([*own_options.split(","), *options.split(",")])
    return found


def _decoded(text: str) -> str:
    """Decode a path in the list of mounts, which has spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


logger = logging.getLogger(__name__)

LOCK_TIMEOUT = "spark.deltaweave.commit.lockTimeoutSeconds"
"""How long a commit waits for one holder of the lock of a table on a disk."""

DEFAULT_LOCK_TIMEOUT_SECONDS = 600
_LOCK = ".deltaweave.lock"
_MAX_NAME = 50  # characters: file systems allow 255 bytes; names that begin alike share a lock
_SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.05
_MOST_LIMITS = 10  # for all holders together: one that leaves no record may look like many
_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# Another user's new lock file is open to its creator alone for a moment.
_SECONDS_TO_ADMIT_WRITERS = 2


def local_directory(location: str) -> Path | None:
    """Return the directory of a location on a local disk, or None for other storage.

    >>> local_directory("file:/lake/my orders"), local_directory("s3a://bucket/orders")
    (PosixPath('/lake/my orders'), None)

    Args:
        location: As Hadoop writes a qualified path: with a scheme, not percent-encoded.
    """
    scheme, _, path = location.partition(":")
    return Path("/" + path.lstrip("/")) if scheme.lower() == "file" else None


class TableLock:
    """The lock of a table, which is taken and released in turn; the block's end releases it.

    On other storage than a disk, there is none to take. Where the directory may not be written or
    does not have locks, it is taken without one, and the log reports it.

    Attributes:
        location: The directory of the table, as `local_directory` takes it.
        table: What messages call the table.
        operation: What messages call the operation.
    """

    def __init__(
        self, spark: SparkSession, location: str, *, table: str, operation: str = "MERGE"
    ) -> None:
        self.location, self.table, self.operation = location, table, operation
        self._spark = spark
        self._held: ExitStack | None = None

    def __enter__(self) -> TableLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self) -> None:
        """Take it, unless it is taken; an interrupt ends the wait.

        Raises:
            TableLockedError: Another commit held it for longer than the session's limit, or the
                disk gave no locks for as long.
            LockFileError: Something else is in the place of the lock file.
        """
        directory = local_directory(self.location)
        if self._held is None:
            self._held = ExitStack()
            if directory is not None:
                self._take(directory / "_delta_log" / _LOCK)

    def take_for_creation(self, make_directory: Callable[[], object]) -> None:
        """Take the lock of a table that is to be created, and delete its file at the release.

        Args:
            make_directory: Makes the table's directory if there is none.

        Raises:
            TableLockedError: See `take`.
            LockFileError: See `take`.
        """
        directory = local_directory(self.location)
        self._held = ExitStack()
        if directory is not None:
            directory = Path(os.path.realpath(directory))
            name = f".{directory.name[:_MAX_NAME]}{_LOCK}"
            self._take(directory.parent / name, make_directory, directory)

    def release(self) -> None:
        """Release it, if it is taken."""
        if self._held is not None:
            held, self._held = self._held, None
            held.close()

    def handed_over(self) -> TableLock:
        """Hand the lock over to another object, which holds it from then on."""
        other = TableLock(self._spark, self.location, table=self.table, operation=self.operation)
        other._held, self._held = self._held, None
        return other

    def _take(
        self,
        path: Path,
        make_directory: Callable[[], object] | None = None,
        directory: Path | None = None,
    ) -> None:
        assert self._held is not None
        try:
            locked = self._locked(path, make_directory, directory)
            self._held.callback(locked.release, remove=make_directory is not None)
            _warn_of_other_hosts(path.parent)
        except _WithoutLockError as why:
            _warn_unlocked(path.parent, str(why))
        except BaseException:
            self.release()
            raise

    def _locked(
        self, path: Path, make_directory: Callable[[], object] | None, directory: Path | None
    ) -> LockFile:
        """Wait for each holder of the lock, and return the locked file."""
        began, limit, pause, holder = time.monotonic(), None, _SHORTEST_PAUSE_SECONDS, ""
        first = began
        while True:
            waited, no_locks = time.monotonic() - began, ""
            try:
                locked = _attempt(path, make_directory, directory)
            except _NoLocksNowError as why:
                locked, no_locks = None, str(why)
            except UnusableLockFileError as why:
                raise self._unusable(path, str(why)) from why
            except PermissionError as why:
                locked = None
                if waited > _SECONDS_TO_ADMIT_WRITERS:
                    raise self._unusable(path, f"{path} may not be opened: {why}") from why
            if locked is not None:
                return locked
            if limit is None:
                limit, holder = self._limit_seconds(), _holder(path)
                logger.info("%s: waits for a commit of %s", path.parent, holder)
            if waited >= limit:
                now = _holder(path)
                if limit == 0 or no_locks or now == holder or began - first >= limit * _MOST_LIMITS:
                    raise self._timed_out(path, now, waited, limit, no_locks)
                began, waited, holder = time.monotonic(), 0.0, now
            time.sleep(min(pause * random.uniform(0.5, 1.5), max(limit - waited, 0)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _limit_seconds(self) -> float:
        return number_setting(
            self._spark,
            LOCK_TIMEOUT,
            otherwise=DEFAULT_LOCK_TIMEOUT_SECONDS,
            table=self.table,
            operation=self.operation,
        )

    def _timed_out(
        self, path: Path, holder: str, waited: float, limit: float, no_locks: str
    ) -> TableLockedError:
        return TableLockedError(
            holder,
            table=self.table,
            operation=self.operation,
            lock_file=str(path),
            waited_seconds=waited,
            setting=f"{LOCK_TIMEOUT} ({limit:g} s)",
            no_locks=no_locks,
        )

    def _unusable(self, path: Path, problem: str) -> LockFileError:
        return LockFileError(
            problem, table=self.table, operation=self.operation, lock_file=str(path)
        )


@contextmanager
def alone_on_local_disk(
    spark: SparkSession, location: str, *, table: str, operation: str
) -> Iterator[None]:
    """Hold the lock of a table while the block runs; see `TableLock`.

    Args:
        spark: The session, whose setting limits the wait.
        location: The directory of the table, as `local_directory` takes it.
        table: What messages call the table.
        operation: What messages call the operation.
    """
    with TableLock(spark, location, table=table, operation=operation) as lock:
        lock.take()
        yield


class _WithoutLockError(Exception):
    """Why no lock can be had."""


class _NoLocksNowError(Exception):
    """The disk's error while it grants no locks."""


def _attempt(
    path: Path, make_directory: Callable[[], object] | None, directory: Path | None
) -> LockFile | None:
    """Try to lock the file; None if another holds the lock, or the file was replaced."""
    try:
        if make_directory is not None:
            make_directory()
    except AccessDeniedError:
        raise
    except Exception as error:  # Hadoop's: the table cannot be created either
        raise _WithoutLockError(str(error).partition("\n")[0]) from error
    try:
        file = LockFile(path)
    except FileNotFoundError as error:
        if make_directory is not None:
            return None  # the directory was removed meanwhile
        raise _WithoutLockError(str(error)) from error
    except OSError as error:
        other = _without_file(path, directory, error)
        if other is None:
            return None
        file = other
    is_locked = False
    try:
        return file if (is_locked := file.lock()) else None
    except OSError as error:
        if error.errno == errno.ENOLCK:
            raise _NoLocksNowError(str(error)) from error
        if error.errno in _WITHOUT_LOCKS:
            raise _WithoutLockError(str(error)) from error
        raise UnusableLockFileError(f"{path} cannot be locked: {error}") from error
    finally:
        if not is_locked:
            file.close()


def _without_file(path: Path, directory: Path | None, error: OSError) -> LockFile | None:
    """Lock the directory of a new table whose parent takes no lock file; None to try again."""
    if error.errno == errno.ESTALE:  # another host deleted it
        return None
    may_write = os.access(path.parent, os.W_OK | os.X_OK, effective_ids=True)
    if error.errno == errno.EROFS or (isinstance(error, PermissionError) and not may_write):
        if directory is not None and os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
            return LockedDirectory(directory)
        raise _WithoutLockError(str(error)) from error  # Delta's commit is refused too
    if isinstance(error, PermissionError):
        raise error
    raise UnusableLockFileError(f"{path} cannot be opened: {error}") from error


def _holder(path: Path) -> str:
    """Return who holds the lock now, as far as it is known."""
    try:
        with closing(LockFile(path, create=False)) as file:
            return file.holder()
    except (OSError, UnusableLockFileError):
        return "another process or thread"


@cache  # once for each directory
def _warn_unlocked(directory: Path, why: str) -> None:
    logger.warning("%s: commits without a lock among processes: %s", directory, why)


@cache
def _warn_of_other_hosts(directory: Path) -> None:
    verdict = _excludes_other_hosts(directory)
    if not verdict.ok:
        reason = verdict.reason
        logger.warning("%s: other hosts may commit at the same moment: %s", directory, reason)
