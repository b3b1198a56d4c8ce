"""What has landed: source partitions as directories, on a local disk or on an object store."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dagster_deltaweave.storage import file_system, local_path
from deltaweave.errors import SourceError


@dataclass(frozen=True)
class Delivery:
    """A source partition as it now lies in the landing directory.

    Attributes:
        partition: Its name, that of the directory.
        fingerprint: What tells this delivery of the partition from others: the marker's time of
            modification or, without a marker, a digest of all names, sizes and times. None while
            the marker is missing, or nothing is in the directory.
        changed_at: When the storage last saw it change, in ns since 1970. It is a time that no
            writer sets: on a disk that of the inodes' change, so that a directory which was moved
            here, or copied with its times, has a new one.
    """

    partition: str
    fingerprint: str | None
    changed_at: int


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
            f"it cannot be listed: {error}",
            table=str(directory),
            operation="looking for new partitions",
            state="Nothing was requested; the next tick looks again.",
        ) from error


class _File(NamedTuple):
    path: str
    size: int
    mtime_ns: int


def _is_partition(name: str) -> bool:
    return not name.startswith((".", "_"))


def _on_disk(root: Path, marker: str | None) -> Iterator[Delivery]:
    with os.scandir(root) as entries:
        for entry in entries:
            if not (_is_partition(entry.name) and entry.is_dir()):
                continue
            try:
                if marker is not None:
                    yield _marked(entry, marker)
                else:
                    yield _measured(entry)
            except FileNotFoundError:
                # Removed, or renamed, since it was listed: the next look sees how it ended.
                continue


def _marked(entry: os.DirEntry[str], marker: str) -> Delivery:
    changed = entry.stat().st_ctime_ns
    try:
        status = os.stat(f"{entry.path}/{marker}")
    except FileNotFoundError:
        return Delivery(entry.name, None, changed)
    # The directory's own time tells of a delivery moved into the place of another.
    return Delivery(entry.name, str(status.st_mtime_ns), max(changed, status.st_ctime_ns))


def _measured(entry: os.DirEntry[str]) -> Delivery:
    changed = entry.stat().st_ctime_ns
    files = []
    for parent, directories, names in os.walk(entry.path):
        for name in names:
            status = os.stat(f"{parent}/{name}")
            changed = max(changed, status.st_ctime_ns)
            path = f"{parent}/{name}"[len(entry.path) + 1 :]
            files.append(_File(path, status.st_size, status.st_mtime_ns))
        for name in directories:
            changed = max(changed, os.stat(f"{parent}/{name}").st_ctime_ns)
    return Delivery(entry.name, _digest(files), changed)


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
        if marker is None:
            yield Delivery(partition, _digest(found), changed)
            continue
        written = next((file.mtime_ns for file in found if file.path == marker), None)
        yield Delivery(partition, None if written is None else str(written), written or changed)


def _digest(files: Iterable[_File]) -> str | None:
    """What names, sizes and times of the files amount to; None where there are none."""
    described = "\n".join(f"{path}\t{size}\t{mtime}" for path, size, mtime in sorted(files))
    return hashlib.sha256(described.encode()).hexdigest()[:20] if described else None
