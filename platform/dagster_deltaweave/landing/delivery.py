"""A source partition in a landing directory: its key, its fingerprint and its problem.

It is a directory, or a single file if the landing directory's partitions have a suffix.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

# What leads to another directory, forms a Hadoop pattern, or is invalid in Dagster's keys.
_NO_KEY = re.compile(r"[/\\*?\[\]{}\x00-\x1f\x7f\ud800-\udfff]|\.\.\.|^\.{0,2}$")


@dataclass(frozen=True)
class Delivery:
    """The current state of a source partition in the landing directory.

    Attributes:
        partition: Its partition key: the name of the directory, or of the file without its suffix,
            or the part of it after `=`.
        fingerprint: The marker's modification time or, without a marker, a digest of all names,
            sizes and times. None while the marker is missing or the directory is empty.
        changed_at: When the storage last saw it change, in ns since 1970. No writer sets this time:
            on a disk it is the change time of inodes, so a directory that was moved here, or copied
            with its times, has a new one.
        marked_at: When the storage last saw the marker change, in ns since 1970; 0 without a
            marker, and on an object store, where the fingerprint is that time.
        directory: The name of the directory or file if it is not the partition key, else empty.
        problem: Why it cannot be requested, or None.
        files: Digest of names, sizes and times of all its files, if they were listed.
    """

    partition: str
    fingerprint: str | None
    changed_at: int
    marked_at: int = 0
    directory: str = ""
    problem: str | None = None
    files: str | None = None

    @property
    def name(self) -> str:
        """The name of its directory or file."""
        return self.directory or self.partition

    @property
    def identity(self) -> str | None:
        """Identifies the delivery among the partition's, even if their markers' times are equal."""
        return f"{self.fingerprint}@{self.marked_at}" if self.marked_at else self.fingerprint


def problem_of_partition_key(partition: str) -> str | None:
    """Return why a text cannot be a partition key and a directory's name; None if it can."""
    found = _NO_KEY.search(partition)
    if found is None:
        return None
    return f"{found.group()!a} cannot be in a partition key" if found.group() else "it is empty"


def hive_value(name: str) -> str | None:
    """Return the unescaped value in a directory's name of the form `<column>=<value>`, or None."""
    column, equals, value = name.partition("=")
    return unquote(value) if column and equals else None


class ListedFile(NamedTuple):
    """A file of a delivery: its path below the partition, its size and its time."""

    path: str
    size: int
    mtime_ns: int


def is_partition(name: str, suffix: str) -> bool:
    """Return whether a directory, or file with the suffix, is a partition: no `.` or `_` first."""
    return not name.startswith((".", "_")) and name.endswith(suffix) and name != suffix


def file_delivery(
    name: str, suffix: str, fingerprint: str | None, changed_at: int, marked_at: int = 0
) -> Delivery:
    """Return the delivery in a file with this name."""
    return Delivery(name.removesuffix(suffix), fingerprint, changed_at, marked_at, name)


def digest(files: Iterable[ListedFile]) -> str | None:
    """Return a digest of names, sizes and times of the files; None if there are none."""
    described = "\n".join(f"{path}\t{size}\t{mtime}" for path, size, mtime in sorted(files))
    if not described:
        return None
    return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:20]
