"""The time that pyarrow needs for what a merge cannot do without: reading keys, writing rows.

A merge has to read the key columns of the touched files, to know which rows change, and all columns
of those that it rewrites. And it has to write the rows of the new files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from deltaweave.engine.report import TouchedFiles

T = TypeVar("T")
U = TypeVar("U")

_TARGET_COLUMN = re.compile(r"\bt\.(\w+)")


@dataclass(frozen=True)
class ParquetLimit:
    """What pyarrow needs for the Parquet of a merge.

    Attributes:
        read_seconds: How long it takes to read keys, and the rows of rewritten files.
        write_seconds: How long it takes to write the rows of the new files.
    """

    read_seconds: float
    write_seconds: float

    @property
    def seconds(self) -> float:
        """How long both take."""
        return self.read_seconds + self.write_seconds


def parquet_limit(
    table: Path, files: TouchedFiles, condition: str, directory: Path, cores: int
) -> ParquetLimit:
    """Read and write with pyarrow what a merge had to read and write.

    Args:
        table: The table that was merged into; its old files are still there.
        files: The files that the merge touched and added.
        condition: The statement's ON condition, which names the keys as columns of `t`.
        directory: An existing directory, for copies of the new files.
        cores: How many files are read or written at a time.
    """
    added = set(files.added)
    marked = [table / unquote(path) for path in files.removed if path in added]
    rewritten = [table / unquote(path) for path in files.removed if path not in added]
    new = [table / unquote(path) for path in files.added if path not in set(files.removed)]
    keys = list(dict.fromkeys(_TARGET_COLUMN.findall(condition)))
    reads = [*((file, keys) for file in marked), *((file, None) for file in rewritten)]
    # Read once before, so that neither side finds the disk's cache cold.
    _timed(cores, reads, lambda read: _read(*read))
    read_seconds, _ = _timed(cores, reads, lambda read: _read(*read))
    _, rows = _timed(cores, new, lambda file: _read(file, None))
    numbered = list(enumerate(rows))
    write_seconds, _ = _timed(
        cores, numbered, lambda each: pq.write_table(each[1], directory / f"{each[0]}.parquet")
    )
    return ParquetLimit(read_seconds, write_seconds)


def _read(file: Path, columns: Sequence[str] | None) -> pa.Table:
    # The file alone: by its path, pyarrow would take the names of directories for partitions.
    with pq.ParquetFile(file) as opened:
        present = set(opened.schema_arrow.names)
        wanted = None if columns is None else [name for name in columns if name in present]
        return opened.read(columns=wanted)


def _timed(cores: int, items: Iterable[T], do: Callable[[T], U]) -> tuple[float, list[U]]:
    with ThreadPoolExecutor(cores) as threads:
        began = time.perf_counter()
        done = list(threads.map(do, items))
        return time.perf_counter() - began, done
