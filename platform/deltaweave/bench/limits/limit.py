"""What a limit is: a table and a merge into it, made of any size."""

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
        expected: What the merge's metrics must be, by Delta's names.
        conf: Spark's configuration beside that of all limits.
    """

    target: Path
    statement: str
    expected: Mapping[str, int]
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A size that a merge has to bear.

    Attributes:
        name: As the command line names it.
        title: What there is so much of.
        size: How much of it.
        smallest: The least that makes sense.
        write: Writes the table and the source into a directory, given how much.
    """

    name: str
    title: str
    size: int
    smallest: int
    write: Callable[[Path, int], LimitMerge]

    def scaled(self, scale: float) -> int:
        """The size times a factor, but not less than the smallest."""
        return max(self.smallest, round(self.size * scale))


def sql_table(path: Path) -> str:
    """The name of the Delta table at a path in SQL."""
    return f"delta.`{path}`"
