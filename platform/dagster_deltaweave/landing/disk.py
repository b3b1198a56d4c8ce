"""Finds deliveries on a local disk by markers, names, sizes and times; it follows links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dagster_deltaweave.landing.delivery import (
    Delivery,
    ListedFile,
    digest,
    file_delivery,
    is_partition,
    problem_of_partition_key,
)


def deliveries_on_disk(root: Path, marker: str | None, suffix: str) -> Iterator[Delivery]:
    """List the source partitions in a directory on a local disk: files if there is a suffix."""
    with os.scandir(root) as entries:
        for entry in entries:
            if not is_partition(entry.name, suffix):
                continue
            try:
                found = delivery_on_disk(entry, marker, suffix)
                if found is not None:
                    yield found
            except FileNotFoundError:
                # Removed or renamed since it was listed: the next tick sees the result.
                continue
            except OSError as error:
                # One directory must not stop the others. Only the system's message is shown.
                yield Delivery(entry.name, None, 0, problem=error.strerror or "it cannot be read")


def delivery_on_disk(entry: os.DirEntry[str], marker: str | None, suffix: str) -> Delivery | None:
    """Return the delivery in a directory, or with a suffix in a file; None for the other kind.

    Raises:
        OSError: It cannot be read, or no longer exists.
    """
    if entry.is_dir() == bool(suffix):
        return None
    problem = problem_of_partition_key(entry.name.removesuffix(suffix))
    if problem is not None:
        return Delivery(entry.name, None, 0, problem=problem)
    if suffix:
        return _delivered_file(entry, marker, suffix)
    return _measured_delivery(entry) if marker is None else _marked_delivery(entry, marker)


def _delivered_file(entry: os.DirEntry[str], marker: str | None, suffix: str) -> Delivery:
    """Return the delivery in a file, complete once the file `<its name><marker>` exists."""
    mtime, changed = _times(entry.path)
    if entry.is_symlink():
        changed = max(changed, _links_changed(entry.path))
    if marker is None:
        fingerprint = digest([ListedFile("", entry.stat().st_size, mtime)])
        return file_delivery(entry.name, suffix, fingerprint, changed)
    try:
        mtime, marked_at = _times(f"{entry.path}{marker}")
    except FileNotFoundError:
        return file_delivery(entry.name, suffix, None, changed)
    return file_delivery(entry.name, suffix, str(mtime), max(changed, marked_at), marked_at)


def _marked_delivery(entry: os.DirEntry[str], marker: str) -> Delivery:
    """Return the delivery in a directory, which is complete once its marker exists."""
    changed = _directory_changed(entry)
    try:
        mtime, marked_at = _times(f"{entry.path}/{marker}")
    except FileNotFoundError:
        return Delivery(entry.name, None, changed)
    # The directory's own time changes if a delivery is replaced by moving another one there.
    return Delivery(entry.name, str(mtime), max(changed, marked_at), marked_at)


def _times(path: str) -> tuple[int, int]:
    """Return a file's modification time, and when the file or a link that leads to it changed."""
    status = own = os.lstat(path)
    if stat.S_ISLNK(own.st_mode):
        status = os.stat(path)
    return status.st_mtime_ns, max(own.st_ctime_ns, status.st_ctime_ns)


def _directory_changed(entry: os.DirEntry[str]) -> int:
    changed = entry.stat().st_ctime_ns
    return max(changed, _links_changed(entry.path)) if entry.is_symlink() else changed


def _links_changed(path: str) -> int:
    """Return the latest change time in the chain of links that begins with this link."""
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


def _measured_delivery(entry: os.DirEntry[str]) -> Delivery:
    """Return the delivery in a directory, by names, sizes and times of all its files."""
    changed = _directory_changed(entry)
    files = []
    for path, status, own in _files_under(entry.path, frozenset()):
        changed = max(changed, status.st_ctime_ns, own.st_ctime_ns)
        if not stat.S_ISDIR(status.st_mode):
            path = path[len(entry.path) + 1 :]
            files.append(ListedFile(path, status.st_size, status.st_mtime_ns))
    return Delivery(entry.name, digest(files), changed)


def _files_under(
    directory: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """Yield files and directories with their status and, for links, the link's; follow links.

    Raises:
        OSError: One of them cannot be read, or a link leads to a directory that contains it.
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


def link_in(directory: Path) -> str | None:
    """Return the name of a link in a directory, or its own name if it is one; or None."""
    if directory.is_symlink():
        return directory.name
    for parent, directories, files in os.walk(directory):  # follows no link
        for name in (*directories, *files):
            path = Path(parent, name)
            if path.is_symlink():
                return str(path.relative_to(directory.parent))
    return None
