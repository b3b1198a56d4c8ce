"""Lets one commit at a time through to a table on a disk, among processes, threads and hosts.

On a disk, Delta's rename of a version's file replaces a file that came in between, and a commit
would be lost. The lock is `flock` on a hidden file in the table's log, which stays there; a new
table's is beside its directory, since Delta creates tables only in empty ones. It is not reentrant:
code that holds it must not commit to the same table in another call. Only deltaweave takes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import pwd
import random
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.jvm import number_setting
from deltaweave.errors import AccessDeniedError, LockFileError, TableLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

MOUNTS = Path("/proc/self/mountinfo")
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

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MARK = '{"deltaweave": "lock"'
_MAX_RECORD_BYTES = 1024
# Access control lists as Linux stores them (linux/posix_acl_xattr.h): each entry has a tag, bits
# and the id of a user or group, in the order of tags.
_ACL = "system.posix_acl_access"
_ACL_VERSION = struct.pack("<I", 2)
_ACL_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 2**32 - 1
_MAY_CREATE = 0b011  # bits of a directory: write and search
_MAY_LOCK = 0b110  # bits of the lock file: read and write
_OWNER_ALONE = 0o600

Entry = tuple[int, int, int]
"""An entry of an access control list: a tag, bits, and the id of a user or group."""


def _excludes_other_hosts(directory: Path) -> Verdict:
    """Return whether a lock in a directory certainly excludes other hosts.

    A file system of one host excludes all that can write to it. Linux's list of mounts decides:
    `statfs` returns one number for all kinds of FUSE, and none of the options of NFS and SMB.
    """
    kind, options = _mount(directory)
    if not kind or _OF_ONE_HOST.fullmatch(kind):
        return YES
    if kind not in _LOCAL_WITH:
        return no(f"it is on {kind}, which does not show whether a lock holds on all hosts")
    local = sorted(_LOCAL_WITH[kind] & options)
    return no(f"it is on {kind} mounted with {', '.join(local)}") if local else YES


class _Mount(NamedTuple):
    """The kind of a file system, and its options."""

    kind: str = ""
    options: frozenset[str] = frozenset()


def _mount(directory: Path) -> _Mount:
    """Return the file system that holds a directory; an empty one if no list has it."""
    found = _Mount()
    resolved, longest = os.path.realpath(directory), 0
    with suppress(OSError):
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            of_mount, _, of_system = line.partition(" - ")
            point, own_options = (_decoded(each) for each in of_mount.split(" ")[4:6])
            kind, _, options = of_system.split(" ")[:3]
            # What was mounted last covers the others at its place.
            if len(point) >= longest and os.path.commonpath([resolved, point]) == point:
                longest = len(point)
                options_of_both = [*own_options.split(","), *options.split(",")]
                found = _Mount(kind, frozenset(options_of_both))
    return found


def _decoded(text: str) -> str:
    """Decode a path in the list of mounts, which has spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def local_directory(location: str) -> Path | None:
    """Return the directory of a location on a local disk, or None for other storage.

    >>> local_directory("file:/lake/my orders"), local_directory("s3a://bucket/orders")
    (PosixPath('/lake/my orders'), None)

    Hadoop writes a qualified path with a scheme, and not percent-encoded.
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
        """Take the table's lock, unless this object holds it; an interrupt ends the wait.

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
        """Release the table's lock, if this object holds it."""
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
                limit, holder = self._limit_seconds(), lock_holder(path)
                logger.info("%s: waits for a commit of %s", path.parent, holder)
            if waited >= limit:
                current = lock_holder(path)
                if (
                    limit == 0
                    or no_locks
                    or current == holder
                    or began - first >= limit * _MOST_LIMITS
                ):
                    raise self._timed_out(path, current, waited, limit, no_locks)
                began, waited, holder = time.monotonic(), 0.0, current
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
    """Hold the lock of a table while the block runs; see `TableLock`."""
    with TableLock(spark, location, table=table, operation=operation) as lock:
        lock.take()
        yield


class _WithoutLockError(Exception):
    """No lock can be had; the message says why."""


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
    return _locked_file(path, file)


def _locked_file(path: Path, file: LockFile) -> LockFile | None:
    """Lock an open file, and close it where that fails; None if another holds the lock."""
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


def lock_holder(path: Path) -> str:
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


class UnusableLockFileError(Exception):
    """There is something in the place of a lock file that cannot serve as one."""


class LockFile:
    """An open lock file, which is not locked yet, and its record of who holds the lock.

    Whoever can open a file can lock it, also for reading. So those alone can open it who may write
    to its directory: they could overwrite the table's log anyway. It is opened for writing, because
    NFS turns such a lock into one that the server keeps for all its hosts. No reader of Delta's log
    lists it, since its name sorts before those of versions. If a process is killed, the system
    releases its lock as soon as the processes that it forked meanwhile have ended too.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the file, or create it for those who may write to its directory."""
        self.path = path
        self._descriptor, is_new = _opened(path, create=create)
        try:
            status = os.fstat(self._descriptor)
            # A copy of the table by hard links shares the file. It is locked and not changed, since
            # it may be a link to any file.
            self._is_shared = status.st_nlink > 1
            self._check(status)
            # A superuser admits nobody to older files: somebody may have moved any file here.
            is_own = os.geteuid() and os.geteuid() == status.st_uid
            if is_new or (is_own and not self._is_shared):
                _admit_writers(self._descriptor, path.parent)
            elif not self._is_shared:
                _exclude_readers(self._descriptor, stat.S_IMODE(status.st_mode))
        except BaseException:
            self.close()
            raise

    def lock(self) -> bool:
        """Lock the file unless another process holds it; return whether it is locked."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_on_disk():
                return False
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            if error.errno == errno.ESTALE:  # another host deleted it
                return False
            raise
        with suppress(OSError):  # a full disk: the record helps others, and the lock holds
            self._record()
        return True

    def release(self, *, remove: bool) -> None:
        """Release the lock and close the file.

        `remove` deletes the file, too; those who wait for it take a new one.
        """
        try:
            with suppress(OSError):
                if not self._is_shared:
                    os.ftruncate(self._descriptor, 0)
            if remove:
                with suppress(OSError):  # another user's file may have to stay
                    self.path.unlink()
            # A child process that was forked meanwhile has the descriptor too: closing is not
            # enough.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, which releases no lock that a forked process shares."""
        os.close(self._descriptor)

    def holder(self) -> str:
        """Return who holds the lock: by the record and, for this host, by the system."""
        text = self._text()
        with suppress(ValueError, KeyError, TypeError):
            found = json.loads(text)
            pid, host = int(found["pid"]), _shown(found["host"])
            ours = _pids_with_lock(os.fstat(self._descriptor))
            if host != socket.gethostname() or not ours or pid in ours:
                user, since = _shown(found["user"]), _shown(found["since"])
                return f"process {pid} of user {user} on host {host}, since {since}"
        pids = sorted(_pids_with_lock(os.fstat(self._descriptor)))
        if pids:
            return f"process {', '.join(map(str, pids))} on this host"
        # Each commit changes the directory, which tells such holders apart.
        since = datetime.fromtimestamp(self.path.parent.stat().st_mtime, timezone.utc).isoformat()
        return f"a process without a record, perhaps on another host (last commit: {since})"

    def _check(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise UnusableLockFileError(f"{self.path} is not a regular file")
        text = self._text()
        if text and not text.startswith(_MARK):
            raise UnusableLockFileError(f"{self.path} holds something else than a lock's record")

    def _text(self) -> str:
        """Read the record; empty if there is none, or where the lock keeps others from reading."""
        try:
            text = os.pread(self._descriptor, _MAX_RECORD_BYTES, 0)
        except OSError:
            return ""
        return text.decode(errors="replace").strip("\0")  # zeros after a crash of the machine

    def _is_on_disk(self) -> bool:
        """Return whether the file is still the one of this path."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _record(self) -> None:
        if self._is_shared:
            return
        since = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        about = {"pid": os.getpid(), "host": socket.gethostname(), "user": _user(), "since": since}
        text = json.dumps({"deltaweave": "lock", **about}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)


class LockedDirectory(LockFile):
    """The lock of a directory itself, where its parent takes no file; nothing is written."""

    def __init__(self, path: Path) -> None:
        """Open the directory."""
        self.path = path
        self._is_shared = True
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release(self, *, remove: bool) -> None:
        """Release the lock; the directory stays."""
        super().release(remove=False)


class _OpenedFile(NamedTuple):
    """The descriptor of a lock file, and whether it was created now."""

    descriptor: int
    is_new: bool


def _opened(path: Path, *, create: bool) -> _OpenedFile:
    """Open a lock file."""
    try:
        if not create:
            return _OpenedFile(os.open(path, _FLAGS), False)
        with suppress(FileNotFoundError):
            return _OpenedFile(os.open(path, _FLAGS), False)
        # It is for its owner alone until its directory's rights for others are copied.
        with suppress(FileExistsError):
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _OWNER_ALONE)
            return _OpenedFile(descriptor, True)
        return _OpenedFile(os.open(path, _FLAGS), False)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            what = f"{path} is a link, a directory or a socket"
            raise UnusableLockFileError(what) from error
        raise


def _admit_writers(descriptor: int, directory: Path) -> None:
    """Let exactly the users open a lock file who may create files in its directory."""
    of_directory = os.stat(directory)
    with suppress(OSError):  # who is not in the directory's group cannot give files to it
        owner = -1 if os.geteuid() else of_directory.st_uid
        os.fchown(descriptor, owner, of_directory.st_gid)
    own = os.fstat(descriptor)
    entries = writers(_entries(directory, of_directory), of_directory, own)
    bits = {tag: bits for tag, bits, _ in entries}
    mode = bits[_OWNER] << 6 | bits[_GROUP] << 3 | bits[_OTHERS]
    if _MASK in bits:  # others than those of its mode
        listed = b"".join(_ACL_ENTRY.pack(*entry) for entry in entries)
        with suppress(OSError, AttributeError):  # no such lists here: its mode has to do
            os.setxattr(descriptor, _ACL, _ACL_VERSION + listed)
            return
    # Some mounts refuse to change permissions. The file then stays open to its owner alone, or as
    # the mount shows all files.
    with suppress(OSError):
        if _acl(descriptor):  # inherited from the directory's default
            os.removexattr(descriptor, _ACL)
        if stat.S_IMODE(own.st_mode) != mode:
            os.fchmod(descriptor, mode)


def _exclude_readers(descriptor: int, mode: int) -> None:
    """Close a lock file to those who may read and not write it, as after `chmod -R a+rX`."""
    if readers := mode & 0o044 & ~(mode << 1):
        with suppress(OSError):  # only its owner and a superuser may
            os.fchmod(descriptor, mode & ~readers)


def writers(entries: list[Entry], of_directory: os.stat_result, own: os.stat_result) -> list[Entry]:
    """Return the access control list of a lock file.

    The directory's owner and group may be others than those of the file.
    """
    mask = next((bits for tag, bits, _ in entries if tag == _MASK), 0b111)
    allowed = {(_OWNER, _NO_ID): _MAY_LOCK, (_GROUP, _NO_ID): 0, (_OTHERS, _NO_ID): 0}
    for tag, bits, name in entries:
        if tag not in (_OWNER, _OTHERS):
            bits &= mask
        if tag == _OWNER and own.st_uid != of_directory.st_uid:
            tag, name = _USER, of_directory.st_uid
        if tag == _GROUP and own.st_gid != of_directory.st_gid:
            tag, name = _NAMED_GROUP, of_directory.st_gid
        if tag != _MASK and bits & _MAY_CREATE == _MAY_CREATE:
            allowed[tag, name] = _MAY_LOCK
    if any(tag in (_USER, _NAMED_GROUP) for tag, _ in allowed):
        allowed[_MASK, _NO_ID] = _MAY_LOCK
    return sorted((tag, bits, name) for (tag, name), bits in allowed.items())


def _entries(directory: Path, status: os.stat_result) -> list[Entry]:
    """Return the access control list of a directory, or its mode as such a list."""
    acl = _acl(directory)
    if acl is not None:
        return list(_ACL_ENTRY.iter_unpack(acl[len(_ACL_VERSION) :]))
    shifts = ((_OWNER, 6), (_GROUP, 3), (_OTHERS, 0))
    return [(tag, status.st_mode >> shift & 0b111, _NO_ID) for tag, shift in shifts]


def _acl(file: int | Path) -> bytes | None:
    """Read the access control list of a file; None where it has none besides its mode."""
    try:
        return os.getxattr(file, _ACL)
    except (OSError, AttributeError):  # only Linux has the function
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _shown(value: object) -> str:
    """Shorten a value of another process's record to what an error may show."""
    return "".join(each for each in str(value)[:100] if each.isprintable())


def _pids_with_lock(status: os.stat_result) -> set[int]:
    """Return the processes of this host that hold a lock on a file, as far as Linux lists them."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError, IndexError):
        fields = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return {int(line[4]) for line in fields if line[1] != "->" and line[5] == device}
    return set()
