"""What has landed: source partitions as directories, on a local disk or on an object store."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.errors import SourceError

# What leads to another directory or is a pattern for Hadoop, and what Dagster takes in no key.
_NO_KEY = re.compile(r"[/\\*?\[\]{}\x00-\x1f\x7f\ud800-\udfff]|\.\.\.|^\.{0,2}$")


@dataclass(frozen=True)
class Delivery:
    """A source partition as it now lies in the landing directory.

    Attributes:
        partition: Its partition key: the name of the directory, or what follows `=` in it.
        fingerprint: The marker's time of modification or, without a marker, a digest of all names,
            sizes and times. None while the marker is missing, or nothing is in the directory.
        changed_at: When the storage last saw it change, in ns since 1970. It is a time that no
            writer sets: on a disk that of the inodes' change, so that a directory which was moved
            here, or copied with its times, has a new one.
        marked_at: When the storage last saw the marker change, in ns since 1970; 0 without a
            marker, and on an object store, where the fingerprint is that time.
        directory: The directory's name where it is not the partition key, else empty.
        problem: Why it cannot be requested, or None.
    """

    partition: str
    fingerprint: str | None
    changed_at: int
    marked_at: int = 0
    directory: str = ""
    problem: str | None = None

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory or self.partition

    @property
    def identity(self) -> str | None:
        """What tells this delivery from the partition's others, also where markers keep times."""
        return f"{self.fingerprint}@{self.marked_at}" if self.marked_at else self.fingerprint


def deliveries(directory: str | Path, marker: str | None) -> list[Delivery] | None:
    """The source partitions in a landing directory, unordered; None if there is no directory.

    Names that begin with `.` or `_` are no partitions. On an object store all objects under the
    directory are listed, by a thousand in a request.

    Args:
        directory: A path or a URI.
        marker: Name of the file that is written last; None where sizes have to settle.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        path = local_path(directory)
        if path is None:
            listed = _in_store(str(directory))
            # A store has no directories: one in which nothing lies is one that is not there.
            return list(_landed(listed, marker)) if listed else None
        return list(_on_disk(path, marker)) if path.is_dir() else None
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=str(directory),
            operation="looking for new partitions",
            state="Nothing was requested; the next tick looks again.",
        ) from None


def partition_path(root: str | Path, partition: str) -> str:
    """The directory of a source partition: `<root>/<key>`, or `<root>/<column>=<key>` as of Hive.

    The key is one name in that directory: it cannot lead out of it, and it is no pattern.

    Args:
        root: The landing directory, a path or a URI.
        partition: The partition key.

    Returns:
        A path, or a URI where the root is one. Where there is neither directory, the first.

    Raises:
        SourceError: The key is no name of a directory, several directories are Hive's for it, or
            the root cannot be listed.
    """
    problem = problem_of_key(partition)
    if problem is not None:
        raise _no_directory(root, partition, problem, "Give the partition a key that is a name.")
    try:
        name = _directory_name(root, partition)
    except OSError as error:
        raise _no_directory(root, partition, redacted(error)) from None
    path = local_path(root)
    return f"{without_query(root)}/{name}" if path is None else str(path / name)


def problem_of_key(partition: str) -> str | None:
    """Why a text cannot be both a partition key and the name of a directory; None if it can."""
    found = _NO_KEY.search(partition)
    if found is None:
        return None
    return f"{found.group()!a} cannot be in a partition key" if found.group() else "it is empty"


def hive_value(name: str) -> str | None:
    """The value in a directory's name of the form `<column>=<value>`, as Hive escapes it."""
    column, equals, value = name.partition("=")
    return unquote(value) if column and equals else None


def _directory_name(root: str | Path, partition: str) -> str:
    path = local_path(root)
    if path is not None:
        if (path / partition).exists() or not path.is_dir():
            return partition
        names = os.listdir(path)
    else:
        from pyarrow.fs import FileSelector, FileType

        store, base = file_system(root)
        [info] = store.get_file_info([f"{base}/{partition}"])
        if info.type != FileType.NotFound:
            return partition
        names = [
            each.base_name for each in store.get_file_info(FileSelector(base, allow_not_found=True))
        ]
    found = [each for each in names if hive_value(each) == partition and not problem_of_key(each)]
    if len(found) > 1:
        raise _no_directory(root, partition, f"{' and '.join(sorted(found))} are both its own")
    return found[0] if found else partition


def _no_directory(
    root: str | Path, partition: str, problem: str, hint: str | None = None
) -> SourceError:
    return SourceError(
        f"the source partition {partition!a} has no directory: {problem}.",
        table=without_query(root),
        operation="reading a source partition",
        state="Nothing was read.",
        hint=hint,
    )


class _File(NamedTuple):
    path: str
    size: int
    mtime_ns: int


def delivery(directory: str | Path, partition: str, marker: str | None) -> Delivery | None:
    """One source partition as it now lies in a landing directory; None if it is not there.

    Args:
        directory: A path or a URI.
        partition: The partition.
        marker: Name of the file that is written last, or None for the digest of all files.

    Raises:
        SourceError: The directory cannot be listed.
    """
    try:
        return _one(directory, _directory_name(directory, partition), marker)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(directory),
            operation="looking for a delivery",
            state="Nothing was read.",
        ) from None


def _one(directory: str | Path, name: str, marker: str | None) -> Delivery | None:
    """The delivery in the directory of this name, without a look at the others."""
    path = local_path(directory)
    if path is None:
        uri, mark, query = str(directory).partition("?")
        files = _in_store(f"{uri.rstrip('/')}/{name}{mark}{query}")
        listed = [file._replace(path=f"{name}/{file.path}") for file in files]
        return next(iter(_landed(listed, marker)), None)
    if not path.is_dir():
        return None
    with os.scandir(path) as entries:
        entry = next((each for each in entries if each.name == name and each.is_dir()), None)
        if entry is None:
            return None
        return _measured(entry) if marker is None else _marked(entry, marker)


def _is_partition(name: str) -> bool:
    return not name.startswith((".", "_")) and name != ""


def _on_disk(root: Path, marker: str | None) -> Iterator[Delivery]:
    with os.scandir(root) as entries:
        for entry in entries:
            if not _is_partition(entry.name):
                continue
            try:
                if not entry.is_dir():
                    continue
                problem = problem_of_key(entry.name)
                if problem is not None:
                    yield Delivery(entry.name, None, 0, problem=problem)
                else:
                    yield _marked(entry, marker) if marker is not None else _measured(entry)
            except FileNotFoundError:
                # Removed, or renamed, since it was listed: the next look sees how it ended.
                continue
            except OSError as error:
                # Of the system's words only the problem: one directory is no reason to stop.
                yield Delivery(entry.name, None, 0, problem=error.strerror or "it cannot be read")


def _marked(entry: os.DirEntry[str], marker: str) -> Delivery:
    changed = _directory_changed(entry)
    try:
        mtime, marked_at = _times(f"{entry.path}/{marker}")
    except FileNotFoundError:
        return Delivery(entry.name, None, changed)
    # The directory's own time tells of a delivery moved into the place of another.
    return Delivery(entry.name, str(mtime), max(changed, marked_at), marked_at)


def _times(path: str) -> tuple[int, int]:
    """A file's time of modification, and when it or the link that leads to it changed."""
    status = own = os.lstat(path)
    if stat.S_ISLNK(own.st_mode):
        status = os.stat(path)
    return status.st_mtime_ns, max(own.st_ctime_ns, status.st_ctime_ns)


def _directory_changed(entry: os.DirEntry[str]) -> int:
    changed = entry.stat().st_ctime_ns
    return max(changed, _links_changed(entry.path)) if entry.is_symlink() else changed


def _links_changed(path: str) -> int:
    """When the newest of all the links changed that lead on from this link."""
    parent, name = os.path.split(path)
    newest, at, left = 0, os.path.realpath(parent), [name]
    while left:
        name = left.pop()
        if name in ("", ".", ".."):
            at = os.path.dirname(at) if name == ".." else at
            continue
        status = os.lstat(f"{at}/{name}")
        if not stat.S_ISLNK(status.st_mode):
            at = f"{at}/{name}"
            continue
        newest = max(newest, status.st_ctime_ns)
        target = os.readlink(f"{at}/{name}")
        at = "" if target.startswith("/") else at
        left += reversed(target.split("/"))
    return newest


def _measured(entry: os.DirEntry[str]) -> Delivery:
    changed = _directory_changed(entry)
    files = []
    for path, status, own in _files_under(entry.path, frozenset()):
        changed = max(changed, status.st_ctime_ns, own.st_ctime_ns)
        if not stat.S_ISDIR(status.st_mode):
            path = path[len(entry.path) + 1 :]
            files.append(_File(path, status.st_size, status.st_mtime_ns))
    return Delivery(entry.name, _digest(files), changed)


def _files_under(
    directory: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """Files and directories with their status and, of links, the link's; each link is followed.

    Raises:
        OSError: One of them cannot be read, or a link leads to a directory that it is in.
    """
    status = os.stat(directory)
    inode = (status.st_dev, status.st_ino)
    if inode in above:
        raise OSError(0, "A link in it leads to a directory above")
    with os.scandir(directory) as entries:
        for entry in entries:
            own = entry.stat(follow_symlinks=False)
            try:
                status = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    raise OSError(0, "A link in it leads nowhere") from None
                raise
            yield entry.path, status, own
            if stat.S_ISDIR(status.st_mode):
                yield from _files_under(entry.path, above | {inode})


def _in_store(uri: str) -> list[_File]:
    """Everything under a directory of a store."""
    from pyarrow.fs import FileSelector, FileType

    store, base = file_system(uri)
    infos = store.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    return [
        _File(info.path[len(base) + 1 :], info.size, info.mtime_ns)
        for info in infos
        # Some tools put an entry for a directory, which is no file of a partition.
        if info.type == FileType.File
    ]


def _landed(listed: Iterable[_File], marker: str | None) -> Iterator[Delivery]:
    files: defaultdict[str, list[_File]] = defaultdict(list)
    for file in listed:
        partition, _, path = file.path.partition("/")
        # An object beside the partitions is no partition.
        if path and _is_partition(partition):
            files[partition].append(_File(path, file.size, file.mtime_ns))
    for partition, found in files.items():
        changed = max(file.mtime_ns for file in found)
        problem = problem_of_key(partition)
        if problem is not None:
            yield Delivery(partition, None, 0, problem=problem)
        elif marker is None:
            yield Delivery(partition, _digest(found), changed)
        else:
            written = next((file.mtime_ns for file in found if file.path == marker), None)
            yield Delivery(partition, None if written is None else str(written), written or changed)


def _digest(files: Iterable[_File]) -> str | None:
    """What names, sizes and times of the files amount to; None where there are none."""
    described = "\n".join(f"{path}\t{size}\t{mtime}" for path, size, mtime in sorted(files))
    if not described:
        return None
    return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:20]
