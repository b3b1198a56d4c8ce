"""A source partition in a landing directory: its key, its fingerprint and its problem."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

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


def problem_of_partition_key(partition: str) -> str | None:
    """Why a text cannot be both a partition key and the name of a directory; None if it can."""
    found = _NO_KEY.search(partition)
    if found is None:
        return None
    return f"{found.group()!a} cannot be in a partition key" if found.group() else "it is empty"


def hive_value(name: str) -> str | None:
    """The value in a directory's name of the form `<column>=<value>`, as Hive escapes it."""
    column, equals, value = name.partition("=")
    return unquote(value) if column and equals else None


class ListedFile(NamedTuple):
    """A file of a delivery: its path below the partition, its size and its time."""

    path: str
    size: int
    mtime_ns: int


def is_partition(name: str) -> bool:
    """Whether a directory of this name is a partition: `.` and `_` begin other names."""
    return not name.startswith((".", "_")) and name != ""


def digest(files: Iterable[ListedFile]) -> str | None:
    """A digest of names, sizes and times of the files; None where there are none."""
    described = "\n".join(f"{path}\t{size}\t{mtime}" for path, size, mtime in sorted(files))
    if not described:
        return None
    return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:20]
