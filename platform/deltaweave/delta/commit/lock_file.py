"""The file whose lock lets one commit at a time through, and its record of who holds the lock.

Whoever can open a file can lock it, also for reading. So the lock file can be opened by those alone
who may write to its directory: they could overwrite the table's log anyway. It is opened for
writing, because NFS turns such a lock into one that the server keeps for all its hosts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import socket
import stat
import struct
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

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


class UnusableLockFileError(Exception):
    """There is something in the place of a lock file that cannot serve as one."""


class LockFile:
    """An open lock file, which is not locked yet.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open the file, or create it for those who may write to its directory.

        Args:
            path: Where it is.
            create: Whether it is created if it does not exist.

        Raises:
            FileNotFoundError: The directory does not exist, or the file if it is not created.
            UnusableLockFileError: Another file, a link or a directory is in its place.
            OSError: It cannot be opened.
        """
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
        """Lock it unless another holds it, and record who does; return whether it is locked.

        Raises:
            OSError: The file system does not have locks.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_in_place():
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

        Args:
            remove: Whether the file is deleted too; those who wait for it take a new one.
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

    def _is_in_place(self) -> bool:
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
        """Open the directory.

        Raises:
            OSError: It cannot be opened.
        """
        self.path = path
        self._is_shared = True
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release(self, *, remove: bool) -> None:
        """Release the lock; the directory stays."""
        super().release(remove=False)


def _opened(path: Path, *, create: bool) -> tuple[int, bool]:
    """Open a lock file; return its descriptor, and whether it was created now."""
    try:
        if not create:
            return os.open(path, _FLAGS), False
        with suppress(FileNotFoundError):
            return os.open(path, _FLAGS), False
        # It is for its owner alone until its directory's rights for others are copied.
        with suppress(FileExistsError):
            return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _OWNER_ALONE), True
        return os.open(path, _FLAGS), False
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            what = f"{path} is a link, a directory or a socket"
            raise UnusableLockFileError(what) from error
        raise


def _admit_writers(descriptor: int, directory: Path) -> None:
    """Let those open a lock file who may create files in its directory, and nobody else."""
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


Entry = tuple[int, int, int]
"""Of an access control list: a tag, bits, and the id of a user or group."""


def writers(entries: list[Entry], of_directory: os.stat_result, own: os.stat_result) -> list[Entry]:
    """Return the access control list of a lock file.

    Args:
        entries: The list of its directory.
        of_directory: The directory, whose owner and group may be others than those of the file.
        own: The lock file.
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
