"""Partition columns in merges on the driver: the log has their value for each file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, TypeAlias

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import PartitioningColumn, row_schema
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import pyarrow

PartitionValues: TypeAlias = "Mapping[str, pyarrow.Scalar]"
"""The values of a file's partition columns, by the names in the log."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


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
        """Return these partition columns of a merge's target."""
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
        num_rows: How many there are, since a table without columns does not say it.
        values: The file's partition.
        names: The columns, in their order.
    """
    import pyarrow as pa

    columns = {
        name: pa.repeat(values[name], num_rows) if name in values else rows[name] for name in names
    }
    return pa.table(columns)
