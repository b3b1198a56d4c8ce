"""Defines a limit: a table and a merge into it, of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LimitMerge:
    """A merge into a table that was written for it.

    Attributes:
        target: The table's directory.
        statement: The MERGE statement.
        expected: The values that the merge's metrics must have, by Delta's names.
        conf: Spark configuration in addition to that of all limits.
    """

    target: Path
    statement: str
    expected: Mapping[str, int]
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A size that a merge must complete or refuse.

    Attributes:
        name: The name on the command line.
        title: What the size counts.
        size: The size.
        smallest: The smallest size that makes sense.
        write: Writes the table and the source of a given size into a directory.
    """

    name: str
    title: str
    size: int
    smallest: int
    write: Callable[[Path, int], LimitMerge]

    def scaled(self, scale: float) -> int:
        """Return the size times a factor, and at least the smallest size."""
        return max(self.smallest, round(self.size * scale))
