"""Read and write partition values on the driver: of files, as the log has them, and of new rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import PartitioningColumn, row_schema
from deltaweave.engine import limits
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import pyarrow

PartitionValues: TypeAlias = "Mapping[str, pyarrow.Scalar]"
"""The values of a file's partition columns, by the names in the log."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


# Other values and names are escaped in a directory's name, and once more in the log.
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")

_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class PartitionColumns:
    """A table's partition columns: strings, whole numbers and dates.

    Attributes:
        fields: The columns, by the names in the log; none in a table without partitions.
    """

    fields: pyarrow.Schema

    @classmethod
    def of(
        cls, transaction: Transaction, columns: Sequence[PartitioningColumn]
    ) -> PartitionColumns:
        """Return the partition columns of a merge's target."""
        import pyarrow as pa

        if not columns:
            return cls(pa.schema([]))
        physical, rows = transaction.table.physical_names, row_schema(transaction)
        return cls(pa.schema([rows.field(physical[each.name]) for each in columns]))

    def of_file(self, partition: str) -> PartitionValues:
        """Return the partition values of a file.

        Args:
            partition: Its partition values as JSON, as `FileList.rows` has them.

        Raises:
            NotRewritableError: A value is not understood.
        """
        texts = json.loads(partition) if self.fields else {}
        return {field.name: _value(texts.get(field.name), field) for field in self.fields}


def _value(text: str | None, field: pyarrow.Field) -> pyarrow.Scalar:
    """Parse a partition value from the log's text.

    "" is null to the protocol, and an empty text to Delta's reader: Spark says which.
    """
    import pyarrow as pa
    import pyarrow.types as types

    problem = f"partition value {text!r} of {field.name!r} is not understood"
    if text is None:
        return pa.scalar(None, field.type)
    if types.is_string(field.type) and text:
        return pa.scalar(text, field.type)
    try:
        if types.is_integer(field.type) and _WHOLE.fullmatch(text):
            return pa.scalar(int(text), field.type)
        if types.is_date(field.type) and _DAY.fullmatch(text):
            return pa.scalar(date.fromisoformat(text), field.type)
    except (ValueError, OverflowError) as error:  # of Arrow, too
        raise NotRewritableError(problem) from error
    raise NotRewritableError(problem)


def with_partition(
    rows: pyarrow.Table, num_rows: int, values: PartitionValues, names: Collection[str]
) -> pyarrow.Table:
    """Return columns of a file's rows, and of its partition.

    Args:
        rows: The rows, with the columns that are in the file.
        num_rows: The number of rows, which a table without columns does not have.
        names: The columns, in their order.
    """
    import pyarrow as pa

    columns = {
        name: pa.repeat(values[name], num_rows) if name in values else rows[name] for name in names
    }
    return pa.table(columns)


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

    def in_pieces(self) -> list[Part]:
        """Split the rows into as many parts as threads may write at once; small ones stay whole."""
        rows, threads = self.rows, min(limits.MAX_SMALL_FILES, os.cpu_count() or 1)
        number = max(1, min(threads, rows.nbytes // limits.MIN_FILE_BYTES))
        length = -(-rows.num_rows // number)
        starts = range(0, rows.num_rows, length)
        return [replace(self, rows=rows.slice(start, length)) for start in starts]


def parts_of(rows: pyarrow.Table, columns: PartitionColumns, stored: pyarrow.Schema) -> list[Part]:
    """Split the rows by partition, each part in their order; none if there are no rows.

    Args:
        stored: The columns of a file.

    Raises:
        NotRewritableError: A value is escaped in the names of directories.
    """
    import pyarrow as pa

    of_file = rows.select(stored.names).cast(stored)
    if not columns.fields.names:
        return [Part("", {}, of_file)] if of_file.num_rows else []
    return [
        Part("/".join(_level(*each) for each in values.items()), values, of_file.take(pa.array(at)))
        for values, at in _by_partition(rows, columns)
    ]


def check_partitions(
    new_rows: pyarrow.Table, columns: PartitionColumns, recorded: Sequence[PartitionValues]
) -> None:
    """Raise NotRewritableError unless the driver can write to all partitions.

    Args:
        columns: The partition columns, one at least.
        recorded: The partitions of files whose changed rows go into the change feed.
    """
    partitions = {tuple(values.values()) for values, _ in _by_partition(new_rows, columns)}
    partitions |= {
        tuple(partition_text(value.as_py()) for value in each.values()) for each in recorded
    }
    if len(partitions) > limits.MAX_LOCAL_PARTITIONS:
        raise NotRewritableError(f"the changed rows are in {len(partitions)} partitions")


def _by_partition(
    rows: pyarrow.Table, columns: PartitionColumns
) -> list[tuple[dict[str, str | None], Sequence[int]]]:
    """Return the rows' partitions, as the log has their values, and each one's row indexes.

    The table has partition columns.
    """
    import numpy as np
    import pyarrow as pa

    names = columns.fields.names
    keys = [f"p{i}" for i in range(len(names))]  # unlike the names of other columns
    placed = pa.table([*rows.select(names).columns, np.arange(len(rows))], names=[*keys, "place"])
    groups = placed.group_by(keys, use_threads=False).aggregate([("place", "list")])
    return [
        (
            {name: partition_text(each[key]) for name, key in zip(names, keys, strict=True)},
            each["place_list"],
        )
        for each in groups.to_pylist()
    ]


def _level(name: str, text: str | None) -> str:
    """Return the name of a directory, as Spark names those of partitions."""
    return f"{name}={_NULL if text is None else text}"


def is_plain(text: str) -> bool:
    """Return whether a column's name or value is unescaped in directory names and in the log."""
    return bool(_PLAIN.fullmatch(text)) and text != _NULL


def partition_text(value: Any) -> str | None:
    """Write a partition value for the log (Delta protocol, "Partition Value Serialization")."""
    if value is None:
        return None
    text = str(value)  # a date as 2026-10-25
    if not is_plain(text):
        raise NotRewritableError(f"partition value {text!r} is escaped in the names of directories")
    return text
