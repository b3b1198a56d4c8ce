"""New rows of a merge on the driver by their partitions: the directory and values of each file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltaweave.engine import limits
from deltaweave.engine.find import PartitionColumns
from deltaweave.engine.tasks import NotRewritableError, make_directory

if TYPE_CHECKING:
    import pyarrow

# Other values and names are escaped in a directory's name, and once more in the log.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Part:
    """Rows of one partition.

    Attributes:
        directory: Where their file lies below the table's directory, as Spark names it; empty in a
            table without partitions.
        values: The partition values as the log has them.
        rows: The rows as a file stores them.
    """

    directory: str
    values: Mapping[str, str | None]
    rows: pyarrow.Table


def parts_of(rows: pyarrow.Table, columns: PartitionColumns, stored: pyarrow.Schema) -> list[Part]:
    """The rows by partition, each in their order; none if there are no rows.

    Args:
        rows: Whole rows of the table.
        columns: The partition columns.
        stored: The columns of a file.

    Raises:
        NotRewritableError: There are too many partitions, or a value that Spark escapes.
    """
    import numpy as np
    import pyarrow as pa

    if not rows.num_rows:
        return []
    of_file = rows.select(stored.names).cast(stored)
    names = columns.fields.names
    if not names:
        return [Part("", {}, of_file)]
    keys = [f"p{i}" for i in range(len(names))]  # unlike the names of other columns
    placed = pa.table([*rows.select(names).columns, np.arange(len(rows))], names=[*keys, "place"])
    groups = placed.group_by(keys, use_threads=False).aggregate([("place", "list")])
    if len(groups) > limits.MAX_PARTITIONS_ON_DRIVER:
        raise NotRewritableError(f"the new rows are in {len(groups)} partitions")
    parts = []
    for group in groups.to_pylist():
        values = {name: _text(group[key]) for name, key in zip(names, keys, strict=True)}
        levels = [f"{name}={_NULL if text is None else text}" for name, text in values.items()]
        parts.append(Part("/".join(levels), values, of_file.take(pa.array(group["place_list"]))))
    return parts


def is_plain(name: str) -> bool:
    """Whether a column's name is in the names of directories as it is."""
    return bool(_PLAIN.fullmatch(name))


def _text(value: Any) -> str | None:
    """A partition value as the log has it (Delta protocol, "Partition Value Serialization")."""
    if value is None:
        return None
    text = str(value)  # a date as 2026-10-25
    if not _PLAIN.fullmatch(text):
        raise NotRewritableError(f"partition value {text!r} is escaped in the names of directories")
    return text


def made(root: str, directory: str, mode: int) -> str:
    """The path of a directory below another one; it is made if it is missing.

    Args:
        root: The other one.
        directory: The levels, with slashes between them.
        mode: The permissions of files.
    """
    path = root
    for level in filter(None, directory.split("/")):
        path = os.path.join(path, level)
        make_directory(path, mode)
    return path
